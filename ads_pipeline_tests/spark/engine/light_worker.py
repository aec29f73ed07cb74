"""A process of runs that loads nothing: `python -m ads_pipeline_tests.spark.engine.light_worker MODULE`, or `--now`.

Its command writes the process number into a directory, and ends when a file there says with which exit code.
"""

import os
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

from ads_pipeline.orchestration.runs import worker
from ads_pipeline.spark.engine.run_processes import NOW

FILES = "LIGHT_WORKER_FILES"  # the files that its definitions are made from, separated by colons
END = "end"


def execute() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Dagster's command, which handles it itself
    directory = Path(sys.argv[1])
    (directory / str(os.getpid())).touch()
    while not (directory / END).exists():
        time.sleep(0.01)
    sys.exit(int((directory / END).read_text()))


def load_all() -> tuple[worker.Command, Collection[Path]]:
    return execute, [Path(each) for each in os.environ[FILES].split(":") if each]


if __name__ == "__main__":
    if sys.argv[1] == NOW:
        worker.start_now(lambda: execute)
    else:
        worker.wait_for_run(load_all)
