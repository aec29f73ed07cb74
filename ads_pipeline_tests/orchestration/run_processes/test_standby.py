"""A standby process executes one run, once, with the files of this moment, and never outlives its code server."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.orchestration.run_processes.standby import Load, Standby
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


def load_nothing() -> Collection[Path]:
    """These runs need nothing."""
    return ()


def load_file(path: Path) -> Collection[Path]:
    """The definitions of these runs name a file that the code server did not know."""
    return [path]


def execute(directory: Path, _queue: Any, event: Any) -> None:
    """The run: it notes its process, and that it was told to end."""
    (directory / str(os.getpid())).touch()
    if event.wait(0):
        (directory / "terminated").touch()


@contextmanager
def ready_standby(files: list[Path], load: Load = load_nothing) -> Iterator[Standby]:
    standby = Standby(load, files)
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


def write_in_place(path: Path) -> None:
    path.write_text("second")


def put_an_older_file_of_the_same_size(path: Path) -> None:
    """As a tool does that keeps the time of the file it copies."""
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    new = path.with_suffix(".new")
    new.write_text("FIRST")
    os.utime(new, ns=times)
    new.replace(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.invariant("L10")
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("change", [write_in_place, put_an_older_file_of_the_same_size, remove])
def test_run_after_a_rotation_uses_a_new_process(
    file: Path, directory: Path, *, is_known: bool, change: Callable[[Path], None]
) -> None:
    """However a file is rotated, whether the code server or only the standby process knew that it is used."""
    files, load = ([file], load_nothing) if is_known else ([], partial(load_file, file))
    with ready_standby(files, load) as standby:
        waiting = standby.process.pid
        change(file)
        assert start(standby, directory) == 0
    (executed,) = find_pids(directory)
    assert executed != waiting


@pytest.mark.invariant("L10")
def test_run_in_a_changed_environment_uses_a_new_process(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby process has the variables of its start."""
    with ready_standby([]) as standby:
        waiting = standby.process.pid
        monkeypatch.setenv("GOOGLE_ADS_REFRESH_TOKEN", "second")
        assert start(standby, directory) == 0
    (executed,) = find_pids(directory)
    assert executed != waiting


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
