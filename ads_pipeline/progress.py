"""Tells people how far long work has come: a bar on a terminal, lines anywhere else.

What the steps are is for `pipeline` to say.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[int], None]


class ProgressReporter(Protocol):
    """Takes a step's words and how many partitions it is for, and is told as they are done."""

    def __call__(self, words: str, total: int) -> AbstractContextManager[Advance]: ...


@contextmanager
def no_progress(words: str, total: int) -> Iterator[Advance]:  # noqa: ARG001 - what is told is not repeated
    """For callers who show progress by other means."""
    yield lambda _count: None


def progress_on(stream: TextIO, *, unit: str = "partitions") -> ProgressReporter:
    """Whatever suits the stream."""
    return _bars(Console(file=stream)) if stream.isatty() else _lines(stream, unit)


def _bars(console: Console) -> ProgressReporter:
    @contextmanager
    def tell(words: str, total: int) -> Iterator[Advance]:
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            bar = progress.add_task(words, total=total)
            yield lambda count: progress.advance(bar, count)

    return tell


def _lines(stream: TextIO, unit: str) -> ProgressReporter:
    @contextmanager
    def tell(words: str, total: int) -> Iterator[Advance]:
        started, done = time.monotonic(), 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            seconds = time.monotonic() - started
            print(f"{words}: {done:,} of {total:,} {unit}, {seconds:.1f} s", file=stream, flush=True)

        print(f"{words}: {total:,} {unit}", file=stream, flush=True)
        yield advance

    return tell
