"""Limits how often writers of one table try again, and makes the pause between."""

import random
import time
from typing import Final

MAX_COMMIT_ATTEMPTS: Final = 20


def pause(attempt: int) -> None:
    """Wait up to 10 ms after the first attempt, up to twice as long after each other one, and up to 1 s at most."""
    time.sleep(random.uniform(0, min(1.0, 0.01 * 2**attempt)))  # noqa: S311 - jitter between competing loaders
