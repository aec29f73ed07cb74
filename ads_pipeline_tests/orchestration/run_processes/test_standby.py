"""A standby process executes one run, once, with the files of this moment, and never outlives its code server."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.orchestration.run_processes.standby import Standby
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.spark.servers import build_environment

PARENT = """
import sys, time
from pathlib import Path
from ads_pipeline.orchestration.run_processes.standby import Standby
from ads_pipeline_tests.polling import wait_for

if __name__ == "__main__":
    standby = Standby(dict, [])
    wait_for(standby.is_ready)
    print(standby.process.pid, flush=True)
    time.sleep(600)
"""


def load_nothing() -> None:
    """These runs need nothing."""


def execute(directory: Path, _queue: Any, event: Any) -> None:
    """The run: it notes its process, and that it was told to end."""
    (directory / str(os.getpid())).touch()
    if event.wait(0):
        (directory / "terminated").touch()


@contextmanager
def ready_standby(files: list[Path]) -> Iterator[Standby]:
    standby = Standby(load_nothing, files)
    try:
        wait_for(standby.is_ready, is_alive=standby.process.is_alive)
        yield standby
    finally:
        standby.discard()


def start(standby: Standby, directory: Path) -> int | None:
    """Start the run as a code server does; return the exit code."""
    queue, event = standby.Queue(), standby.Event()
    process = standby.Process(target=execute, args=[directory, queue, event])
    event.set()
    process.start()
    wait_for(lambda: not process.is_alive())
    return process.exitcode


def find_pids(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "queries.yaml"
    path.write_text("first")
    return path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "executed"
    path.mkdir()
    return path


def test_run_is_executed_by_the_standby_process(file: Path, directory: Path) -> None:
    """It has the queue and the event that the code server was given."""
    with ready_standby([file]) as standby:
        waiting = standby.process.pid
        assert start(standby, directory) == 0
    assert find_pids(directory) == [waiting]
    assert (directory / "terminated").exists()


def test_changed_file_starts_a_new_process(file: Path, directory: Path) -> None:
    """The old definitions are not used, and the standby process ends."""
    with ready_standby([file]) as standby:
        waiting = standby.process.pid
        file.write_text("second")
        assert start(standby, directory) == 0
    (executed,) = find_pids(directory)
    assert executed != waiting
    assert not Path(f"/proc/{waiting}").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_process_that_does_not_answer_is_replaced(file: Path, directory: Path, number: int) -> None:
    """It is killed before another one starts, so that no run is executed twice."""
    with ready_standby([file]) as standby:
        waiting = standby.process.pid
        os.kill(waiting, number)
        assert start(standby, directory) == 0
    (executed,) = find_pids(directory)
    assert executed != waiting
    assert not Path(f"/proc/{waiting}").exists()


def test_standby_process_ends_with_its_killed_parent(tmp_path: Path) -> None:
    """Nothing is left of a code server that was killed."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    with subprocess.Popen(
        [sys.executable, script], env=build_environment(), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        waiting = int(parent.stdout.readline())
        parent.kill()
        wait_for(lambda: not Path(f"/proc/{waiting}").exists())
