"""Records the steps of a journey in the browser: how many clicks and commands each takes, and how many seconds."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from playwright.sync_api import Page  # installed for the tests in a browser only

HEADINGS = ("journey", "step", "clicks", "commands", "seconds")
COUNT_CLICKS = "addEventListener('click', (event) => event.isTrusted && event.detail && countClick(), true)"


@dataclass(slots=True)
class Step:
    """One step. `clicks` are those of a person; typing is not counted."""

    text: str
    clicks: int = 0
    commands: int = 0
    seconds: float = 0.0


@dataclass
class Journey:
    """The steps of one person. All journeys are printed at the end of the tests."""

    name: str
    steps: list[Step] = field(default_factory=list)
    _is_running: bool = False
    all: ClassVar[list["Journey"]] = []

    def __post_init__(self) -> None:
        self.all.append(self)

    def watch(self, page: "Page") -> None:
        """Count the clicks of this page."""
        page.expose_function("countClick", self.count_click)
        page.add_init_script(COUNT_CLICKS)

    @contextmanager
    def step(self, text: str, *, commands: int = 0) -> Iterator[None]:
        """Measure one step, with the number of commands that the person types in it."""
        step = Step(text, commands=commands)
        self.steps.append(step)
        begun, self._is_running = time.monotonic(), True
        try:
            yield
        finally:
            step.seconds, self._is_running = time.monotonic() - begun, False

    def count_click(self) -> None:
        """Count a click of the step that runs."""
        if self._is_running:
            self.steps[-1].clicks += 1


def format_journeys() -> list[str]:
    """The table of all journeys."""
    rows = [HEADINGS] + [
        (journey.name, step.text, str(step.clicks), str(step.commands), f"{step.seconds:.1f}")
        for journey in Journey.all
        for step in [*journey.steps, _total(journey)]
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "| " + " | ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)) + " |" for row in rows
    ]


def _total(journey: Journey) -> Step:
    return Step(
        "in all",
        clicks=sum(step.clicks for step in journey.steps),
        commands=sum(step.commands for step in journey.steps),
        seconds=sum(step.seconds for step in journey.steps),
    )
