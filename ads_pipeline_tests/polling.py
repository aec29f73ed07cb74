"""Waiting for a result of another process or thread."""

import time
from collections.abc import Callable
from typing import TypeVar

LIMIT_S = 600  # for a process that hangs; a wait ends as soon as its result is there

T = TypeVar("T")


def wait_for(
    find: Callable[[], T | None],
    seconds: float = LIMIT_S,
    *,
    every: float = 0.05,
    is_alive: Callable[[], bool] = lambda: True,
    describe: Callable[[], str] = str,
) -> T:
    """Call `find` until its result is true; return that. Fail at the limit, or when nothing is alive."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and is_alive():
        if found := find():
            return found
        time.sleep(every)
    raise AssertionError(f"no result within {seconds} s, or the process ended: {describe()}")
