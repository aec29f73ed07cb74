"""Ends the process of a run that has lost its lease.

Other runs may have taken its partitions, and the ledger refuses its writes. The process may wait for a database or an
engine that does not answer, so it is ended without a word to either. Dagster's daemon or code server reports the run
as failed; where both have died too, the sensor `run_completion` does.
"""

import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Final

_COMMANDS: Final = {
    "execute_run",
    "execute_step",
}  # of `dagster api`, with which launchers and executors start processes
EXIT_CODE: Final = 75  # EX_TEMPFAIL of sysexits.h: a later run may succeed
_LOG: Final = logging.getLogger(__name__)


def end_on_loss() -> Callable[[], None] | None:
    """The function that ends a run without its lease; None in a process of others, such as a notebook."""
    is_started_by_code_server = multiprocessing.parent_process() is not None
    is_started_by_launcher = not _COMMANDS.isdisjoint(sys.argv)
    return _end_process if is_started_by_code_server or is_started_by_launcher else None


def _end_process() -> None:
    _LOG.error("the run has lost its lease, so its process ends with code %d", EXIT_CODE)
    os._exit(EXIT_CODE)
