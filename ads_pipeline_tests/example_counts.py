"""How much a test tries: little for each change, much in `make soak`."""

import os
from typing import Final

TIMES: Final = int(os.environ.get("SOAK", "1"))


def examples(number: int) -> int:
    """So many examples of a property for a change, and as many times more in a soak as it was told."""
    return number * TIMES
