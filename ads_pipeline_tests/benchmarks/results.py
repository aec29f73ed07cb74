"""Writes RESULTS.md from one run of the suites. No figure is written by hand; the prose is in `results_text`."""

import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, TypeVar

import psutil

from ads_pipeline_tests.benchmarks import results_text
from ads_pipeline_tests.benchmarks.breakdown import PARTS, Breakdown
from ads_pipeline_tests.benchmarks.comparisons import COMPETITORS, Measured
from ads_pipeline_tests.benchmarks.environments import PINS
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio

PATH: Final = Path(__file__).with_name("RESULTS.md")
OWN_PACKAGES: Final = ("dagster", "deltalake", "duckdb", "pandera", "pyarrow", "pyspark", "sqlalchemy")
Result = Ratio | Figure | Measured | Breakdown
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteRun:
    """The results of one suite, and how long it took."""

    name: str
    seconds: float
    results: tuple[Result, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """When a run began, and how busy the machine was."""

    started: datetime
    load: float

    @classmethod
    def now(cls) -> "Conditions":
        return cls(started=datetime.now(UTC), load=os.getloadavg()[0])


def write_results(began: Conditions, runs: Sequence[SuiteRun]) -> None:
    PATH.write_text("\n".join(_render(began, runs)) + "\n")


def _render(began: Conditions, runs: Sequence[SuiteRun]) -> Iterator[str]:
    results = [result for run in runs for result in run.results]
    yield from ("# Results of the benchmarks", "", results_text.INTRODUCTION, "")
    yield from _describe_run(began, runs)
    yield from ("", "## Requirements", "")
    for run in runs:
        yield from _render_requirements(run)
    measured = _select(Measured, results)
    if measured:
        yield from ("## Beside other tools", "", results_text.COMPARISONS, "")
        yield from _table(
            ("tool", "what it does and does not do"), ((each.name, each.remark) for each in COMPETITORS)
        )
        for work in dict.fromkeys(each.work for each in measured):
            yield from _render_work(work, [each for each in measured if each.work == work])
    breakdowns = _select(Breakdown, results)
    if breakdowns:
        yield from ("## What bounds each path", "", results_text.BREAKDOWN, "")
        yield from _render_breakdowns(breakdowns)
        yield from results_text.describe_bounds(breakdowns, measured)
    yield results_text.NEXT_LIMITS


def _describe_run(began: Conditions, runs: Sequence[SuiteRun]) -> Iterator[str]:
    memory = psutil.virtual_memory().total / (1 << 30)
    minutes = sum(run.seconds for run in runs) / 60
    yield (
        f"Run of {began.started:%Y-%m-%d %H:%M} UTC, {minutes:.0f} minutes: {os.cpu_count()} cores, "
        f"{memory:.0f} GiB of memory, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"{_java_version()}. Load average {began.load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end."
    )
    own = ", ".join(f"{name} {version(name)}" for name in OWN_PACKAGES)
    others = "; ".join(f"{name}: {', '.join(pins)}" for name, pins in PINS.items())
    suites = ", ".join(f"{run.name} ({run.seconds:.0f} s)" for run in runs)
    yield from ("", f"Suites: {suites}.", "", f"Versions: {own}. Other environments: {others}.")


def _java_version() -> str:
    answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    return answer.splitlines()[0].replace('"', "")


def _render_requirements(run: SuiteRun) -> Iterator[str]:
    rows = [
        (each.name, each.measured, each.requirement, _answer(each))
        for each in run.results
        if isinstance(each, Ratio | Figure)
    ]
    if rows:
        yield from (f"### {run.name}", "")
        yield from _table(("work", "measured", "required", "met"), rows)


def _answer(result: Ratio | Figure) -> str:
    if result.requirement == "none":
        return ""
    return "yes" if result.is_met else "**no**"


def _render_work(work: str, measured: Sequence[Measured]) -> Iterator[str]:
    yield from (f"### {work[0].upper()}{work[1:]}", "")
    rows = ((each.competitor, *each.columns) for each in measured)
    yield from _table(("tool", "wall s", "CPU s", "peak MiB"), rows)


def _render_breakdowns(breakdowns: Sequence[Breakdown]) -> Iterator[str]:
    rows = (
        (each.work, f"{each.seconds:.2f}", *(f"{each.parts[part]:.2f} ({each.share(part):.0%})" for part in PARTS))
        for each in breakdowns
    )
    yield from _table(("work", "CPU s", *PARTS), rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"
    yield ""


def _select(kind: type[_T], results: Iterable[Result]) -> list[_T]:
    return [each for each in results if isinstance(each, kind)]
