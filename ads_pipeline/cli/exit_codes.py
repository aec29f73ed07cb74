"""Says how a command ends: an exit code for each failure, one line for whoever reads it, silence for a closed pipe.

What a failure means is for `errors` to say. Mistakes in the spelling of options never come here: Typer ends with 2.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import typer
from typer.core import TyperGroup

from ads_pipeline.errors import (
    AdsPipelineError,
    BadCommand,
    BadName,
    BadSettings,
    ContractMissing,
    EventsNotFound,
    LedgerInUse,
    LedgerOutdated,
    LedgerRefused,
    RunOpen,
    printable,
)

# The codes of sysexits.h.
DATA: Final = 65
UNAVAILABLE: Final = 69
EXIT_CODES: Final[Mapping[type[AdsPipelineError], int]] = {
    BadCommand: 64,
    BadName: 64,
    EventsNotFound: 64,
    RunOpen: 64,
    LedgerInUse: 64,
    LedgerRefused: 70,
    BadSettings: 78,
    ContractMissing: 78,
    LedgerOutdated: 78,
}
PIPE_CLOSED: Final = 141  # what shells report of a program that SIGPIPE ended; 1 would say that there are gaps
LONGEST: Final = 20_000  # a line may list every mistake of the query file


class Commands(TyperGroup):
    """The commands, whose failures end as one line on stderr and an exit code."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # --help is written here
        with _endings():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with _endings():
            return super().invoke(ctx)


def exit_code(error: AdsPipelineError) -> int:
    """The code by which a script learns what kind of failure it was."""
    if error.is_transient:
        return UNAVAILABLE
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), DATA)


def one_line(error: AdsPipelineError) -> str:
    """The message on one line, with what it lists behind semicolons, and what waiting is good for."""
    first, *listed = str(error).splitlines() or [type(error).__name__]
    said = " ".join([first, "; ".join(line.strip() for line in listed)]).strip()
    cure = "; the same command may succeed later" if error.is_transient else ""
    return printable(said, limit=LONGEST) + cure


@contextmanager
def _endings() -> Iterator[None]:
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except AdsPipelineError as error:
        print(f"ads-pipeline: {one_line(error)}", file=sys.stderr)  # noqa: T201 - a person reads it
        raise typer.Exit(exit_code(error)) from error
    except BrokenPipeError as error:
        # What is still to be written nobody reads, so Python must not try to write it when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from error
