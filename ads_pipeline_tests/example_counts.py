"""The number of Hypothesis examples: few in a normal test run, many in `make soak`."""

import os
from typing import Final

TIMES: Final = int(os.environ.get("SOAK", "1"))


def examples(number: int) -> int:
    """The number of examples, multiplied by the environment variable SOAK."""
    return number * TIMES
