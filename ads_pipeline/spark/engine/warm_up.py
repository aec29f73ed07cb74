"""Runs a small job on the server at a port, so that the first run finds Spark and its Python workers warm.

It is a program of its own, because only jobs over Spark Connect share workers, and the server's process cannot be its
client. It ends with that process.
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, Final

from ads_pipeline.spark.engine_address import TOKEN
from ads_pipeline.spark.engine_connection import connect

TASKS: Final = 4


def warm_up(port: int) -> None:
    """Let Spark load what a job needs, and start Python workers which load what judging needs."""
    spark = connect(port, os.environ[TOKEN], {})
    spark.range(0, TASKS, 1, TASKS).mapInArrow(_load_judging, "id long").collect()
    spark.stop()


def _load_judging(batches: Iterator[Any]) -> Iterator[Any]:
    """Runs in a Python worker."""
    import ads_pipeline.pipeline.staged_runs  # noqa: F401, PLC0415 - only workers need it

    yield from batches


def _end_with_server() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)  # without the client's retries, which take minutes


if __name__ == "__main__":
    threading.Thread(target=_end_with_server, daemon=True).start()
    warm_up(int(sys.argv[1]))
