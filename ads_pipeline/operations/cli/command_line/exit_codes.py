"""Turns failures into one line on stderr and an exit code, and ends silently on a closed pipe.

Typer itself reports misspelt options, with exit code 2.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import typer

from ads_pipeline.domain import errors
from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.domain.quoting import printable

# The codes of sysexits.h.
INCONSISTENT_DATA: Final = 65
UNAVAILABLE: Final = 69
EXIT_CODES: Final[Mapping[type[AdsPipelineError], int]] = {
    errors.BadCommand: 64,
    errors.BadName: 64,
    errors.EventsNotFound: 64,
    errors.RunOpen: 64,
    errors.TargetNotEmpty: 64,
    errors.LedgerRefused: 70,
    errors.BadSettings: 78,
    errors.HomeReadOnly: 78,
    errors.LedgerMissing: 78,
    errors.ContractMissing: 78,
    errors.LedgerOutdated: 78,
}
PIPE_CLOSED: Final = 141  # as shells report SIGPIPE; 1 would mean that gaps were found
LONGEST_MESSAGE: Final = 20_000  # a message may list every mistake of the query file


def exit_code(error: AdsPipelineError) -> int:
    """The exit code for this kind of failure."""
    if error.is_transient:
        return UNAVAILABLE
    return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), INCONSISTENT_DATA)


def one_line(error: AdsPipelineError) -> str:
    """The message on one line, with a hint to try again when the failure is transient."""
    first, *details = str(error).splitlines() or [type(error).__name__]
    message = " ".join([first, "; ".join(line.strip() for line in details)]).strip()
    hint = "; the same command may succeed later" if error.is_transient else ""
    return printable(message, limit=LONGEST_MESSAGE) + hint


@contextmanager
def failures_as_exit_codes() -> Iterator[None]:
    """Let a failure in the block become one line on stderr and an exit code."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except AdsPipelineError as error:
        print(f"ads-pipeline: {one_line(error)}", file=sys.stderr)  # noqa: T201 - a person reads it
        raise typer.Exit(exit_code(error)) from error
    except BrokenPipeError as error:
        # Python would try to flush the rest at exit and fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from error
