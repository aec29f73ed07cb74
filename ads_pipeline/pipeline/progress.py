"""Progress of long work: a bar on a terminal, lines on any other stream."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol, TextIO

SECONDS_WITHOUT_NEWS: Final = 5.0
Advance = Callable[[int], None]


class ProgressReporter(Protocol):
    """Shows the progress of one step. The context manager returns a function that adds finished partitions."""

    def __call__(self, step: str, total: int) -> AbstractContextManager[Advance]: ...


@contextmanager
def no_progress(step: str, total: int) -> Iterator[Advance]:  # noqa: ARG001 - implements ProgressReporter
    """Displays nothing."""
    yield lambda _count: None


@contextmanager
def lines_while_waiting(
    stream: TextIO, text: str, seconds: float = SECONDS_WITHOUT_NEWS
) -> Iterator[Callable[[str], None]]:
    """Write a line whenever nothing was written for some seconds. The context manager returns what writes news."""
    started, ended, lock = time.monotonic(), threading.Event(), threading.Lock()
    last = started

    def write(line: str) -> None:
        nonlocal last
        with lock:
            print(line, file=stream, flush=True)
            last = time.monotonic()

    def wait() -> None:
        while not ended.wait(max(0.01, last + seconds - time.monotonic())):
            if time.monotonic() - last >= seconds:
                write(f"  {time.monotonic() - started:.0f} s: {text}")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    try:
        yield write
    finally:
        ended.set()
        thread.join()


def progress_on(stream: TextIO, *, unit: str = "partitions") -> ProgressReporter:
    """A reporter for the stream: bars on a terminal, lines otherwise."""
    return _report_bars(stream) if stream.isatty() else _report_lines(stream, unit)


def _report_bars(stream: TextIO) -> ProgressReporter:
    from rich.console import Console  # noqa: PLC0415 - Dagster's processes have no terminal
    from rich.progress import (  # noqa: PLC0415 - the same
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    console = Console(file=stream)

    @contextmanager
    def report(step: str, total: int) -> Iterator[Advance]:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            bar = progress.add_task(step, total=total)
            yield lambda count: progress.advance(bar, count)

    return report


def _report_lines(stream: TextIO, unit: str) -> ProgressReporter:
    @contextmanager
    def report(step: str, total: int) -> Iterator[Advance]:
        started, done = time.monotonic(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            seconds = time.monotonic() - started
            print(f"{step}: {done:,} of {total:,} {unit}, {seconds:.1f} s", file=stream, flush=True)

        print(f"{step}: {total:,} {unit}", file=stream, flush=True)
        yield advance

    return report
