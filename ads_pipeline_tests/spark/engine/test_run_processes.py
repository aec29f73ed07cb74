"""The engine hands each run to one process, once, with the files of this moment. No process is left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from ads_pipeline.spark.engine import run_processes
from ads_pipeline.spark.engine.run_files import RunFiles, run_files
from ads_pipeline.spark.engine.run_processes import RunProcesses
from ads_pipeline.spark.engine.start_requests import RunRequest, describe_environment
from ads_pipeline.spark.engine_address import Answer
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.spark.engine import light_worker
from ads_pipeline_tests.spark.engine.test_engine import exists
from ads_pipeline_tests.spark.servers import build_environment

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
    pytest.mark.timeout(1000),  # they wait for processes, and start first
]
MODULE = "location"
RUN = "11111111-2222-3333-4444-555555555555"
PARENT = f"""
import os, sys, threading
from pathlib import Path
from ads_pipeline.spark.engine import run_processes
from ads_pipeline_tests.spark.engine import light_worker
from ads_pipeline_tests.polling import wait_for

run_processes.SECONDS_BEHIND_START = 0.0
processes = run_processes.RunProcesses(Path(sys.argv[1]), {MODULE!r}, {{}}, light_worker.__name__)
threading.Thread(target=processes.keep_ready, args=[threading.Event()], daemon=True).start()
wait_for(processes.has_ready)
print(processes._waiting.process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the definitions are made from."""
    path = tmp_path / "queries.yaml"
    path.write_text("first")
    monkeypatch.setenv(light_worker.FILES, f"{path}:{tmp_path / 'absent.yaml'}")
    return path


@pytest.fixture
def executed(tmp_path: Path) -> Path:
    path = tmp_path / "executed"
    path.mkdir()
    return path


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    return run_files(tmp_path / "home")


@contextmanager
def keeping(home: Path, environ: dict[str, str] | None = None) -> Iterator[RunProcesses]:
    """Processes of which one waits."""
    processes, ended = RunProcesses(home, MODULE, environ or {}, light_worker.__name__), threading.Event()
    thread = threading.Thread(target=processes.keep_ready, args=[ended])
    thread.start()
    try:
        yield processes
    finally:
        ended.set()
        thread.join()
        processes.stop()


@pytest.fixture
def processes(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunProcesses]:
    monkeypatch.setattr(run_processes, "SECONDS_BEHIND_START", 0.0)
    with keeping(tmp_path / "home") as started:
        wait_for(started.has_ready)
        yield started


def request_for(executed: Path, run_id: str = RUN, module: str = MODULE, **environ: str) -> RunRequest:
    return RunRequest(
        engine_run_id=run_id,
        module=module,
        executable=sys.executable,
        arguments=(str(executed),),
        environment=describe_environment(environ),
    )


def waiting_pid(processes: RunProcesses) -> int:
    assert processes._waiting is not None
    return processes._waiting.process.pid


def find_executed(directory: Path) -> list[int]:
    return [int(path.name) for path in directory.iterdir() if path.name.isdigit()]


def end(executed: Path, files: RunFiles, exit_code: int = 0, run_id: str = RUN) -> int | None:
    """End a run with this exit code, and return the one that was noted."""
    wait_for(lambda: find_executed(executed))
    (executed / light_worker.END).write_text(str(exit_code))
    return wait_for_exit(files, run_id)


def wait_for_exit(files: RunFiles, run_id: str = RUN) -> int | None:
    def is_noted() -> bool:
        process = files.find(run_id)
        return process is not None and process.exit_code is not None

    wait_for(is_noted)
    process = files.find(run_id)
    return process.exit_code if process else None


def test_run_is_executed_by_the_process_that_waited(processes: RunProcesses, executed: Path, files: RunFiles) -> None:
    """Its file names it and is locked while it lives. Then the next process waits."""
    waiting = waiting_pid(processes)
    assert processes.execute(request_for(executed)) == Answer(pid=waiting)
    process = files.find(RUN)
    assert process is not None
    assert (process.pid, process.is_here, files.is_alive(RUN)) == (waiting, True, True)
    assert end(executed, files, exit_code=7) == 7
    assert find_executed(executed) == [waiting]
    assert not files.is_alive(RUN)
    wait_for(processes.has_ready)


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


def create_the_file_that_would_win(path: Path) -> None:
    """As a query file in the home, which is used instead of that of the package."""
    path.with_name("absent.yaml").write_text("")


CHANGES = (write_in_place, put_an_older_file_of_the_same_size, remove, create_the_file_that_would_win)


@pytest.mark.invariant("L10")
@pytest.mark.parametrize("change", CHANGES)
def test_run_after_a_change_uses_a_new_process(
    processes: RunProcesses, file: Path, executed: Path, files: RunFiles, *, change: Callable[[Path], None]
) -> None:
    """However a file is rotated, the old definitions and credentials are not used, and their process ends."""
    waiting = waiting_pid(processes)
    change(file)
    answer = processes.execute(request_for(executed))
    assert answer.pid not in {0, waiting}
    assert end(executed, files) == 0
    assert find_executed(executed) == [answer.pid]
    assert not exists(waiting)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_process_that_does_not_answer_is_replaced(
    processes: RunProcesses, executed: Path, files: RunFiles, number: int
) -> None:
    """It is killed before another one starts, so that no run is executed twice."""
    waiting = waiting_pid(processes)
    os.kill(waiting, number)
    answer = processes.execute(request_for(executed))
    assert answer.pid not in {0, waiting}
    assert end(executed, files) == 0
    assert find_executed(executed) == [answer.pid]
    assert not exists(waiting)


def test_two_runs_at_once_have_a_process_each(processes: RunProcesses, tmp_path: Path, files: RunFiles) -> None:
    """One has waited, the other one is new."""
    directories = {run_id: tmp_path / run_id for run_id in ("first", "second")}
    for directory in directories.values():
        directory.mkdir()
    waiting = waiting_pid(processes)
    with ThreadPoolExecutor(2) as pool:
        requests = [request_for(directory, run_id) for run_id, directory in directories.items()]
        answers = list(pool.map(processes.execute, requests))
    pids = {answer.pid for answer in answers}
    assert waiting in pids
    assert len(pids - {0}) == 2
    for run_id, directory in directories.items():
        assert end(directory, files, run_id=run_id) == 0


def test_run_that_is_launched_twice_is_executed_once(
    processes: RunProcesses, executed: Path, files: RunFiles
) -> None:
    """The second request gets no process, and the launcher sees in the file who has the run."""
    first = processes.execute(request_for(executed))
    wait_for(processes.has_ready)
    second = processes.execute(request_for(executed))
    assert (second.pid, second.problem is not None) == (0, True)
    assert not files.give_up(RUN)
    process = files.find(RUN)
    assert process is not None
    assert process.pid == first.pid
    assert end(executed, files) == 0
    assert find_executed(executed) == [first.pid]


def test_run_that_was_given_up_is_not_taken(processes: RunProcesses, executed: Path, files: RunFiles) -> None:
    """The launcher did not wait for the answer and has given the run to Dagster."""
    assert files.give_up(RUN)
    assert processes.execute(request_for(executed)).pid == 0
    assert find_executed(executed) == []
    assert files.find(RUN) is None


@pytest.mark.invariant("L10")
def test_engine_of_another_environment_takes_no_run(tmp_path: Path, file: Path, executed: Path) -> None:
    """Its processes have the variables of its start. The answer names the variable and not its value."""
    with keeping(tmp_path / "home", {"GOOGLE_ADS_REFRESH_TOKEN": "first", "TERM": "dumb"}) as processes:
        answer = processes.execute(request_for(executed, GOOGLE_ADS_REFRESH_TOKEN="second", SHLVL="2"))
        assert answer.pid == 0
        assert answer.problem is not None
        assert "(GOOGLE_ADS_REFRESH_TOKEN)" in answer.problem
        assert "first" not in answer.problem
        same = processes.execute(request_for(executed, GOOGLE_ADS_REFRESH_TOKEN="first", SHLVL="2"))
        assert same.pid != 0


def test_run_of_another_code_location_is_not_taken(processes: RunProcesses, executed: Path) -> None:
    """The engine says nothing about it."""
    assert processes.execute(request_for(executed, module="others")) == Answer()


def test_killed_run_is_named_with_its_signal(processes: RunProcesses, executed: Path, files: RunFiles) -> None:
    """The engine notes how each process ended."""
    pid = processes.execute(request_for(executed)).pid
    wait_for(lambda: find_executed(executed))
    os.kill(pid, signal.SIGKILL)
    assert wait_for_exit(files) == -signal.SIGKILL
    process = files.find(RUN)
    assert process is not None
    assert process.describe_end() == f"its process {pid} was killed by SIGKILL"


def test_interrupt_reaches_the_process_of_the_run_only(
    processes: RunProcesses, executed: Path, files: RunFiles
) -> None:
    """When that has ended, or is of another machine, no process gets a signal."""
    pid = processes.execute(request_for(executed)).pid
    wait_for(lambda: find_executed(executed))
    assert files.interrupt(RUN)
    assert wait_for_exit(files) != 0
    assert not exists(pid)
    assert not files.interrupt(RUN)
    assert not files.interrupt("unknown")


def test_run_goes_on_when_the_engine_is_killed(tmp_path: Path, file: Path, executed: Path, files: RunFiles) -> None:
    """The process that waits ends with the engine. The run does not, and can be interrupted."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.replace("sys.stdin.read()", EXECUTE), str(tmp_path / "home"), str(executed)],
        env=build_environment() | {light_worker.FILES: str(file)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout
        running, waiting = (int(parent.stdout.readline()) for _ in range(2))
        parent.kill()
    wait_for(lambda: not exists(waiting))
    assert files.is_alive(RUN)
    assert files.interrupt(RUN)
    wait_for(lambda: not files.is_alive(RUN))
    assert not exists(running)
    process = files.find(RUN)
    assert process is not None
    assert "its exit code is unknown" in process.describe_end()


EXECUTE = f"""
from ads_pipeline_tests.spark.engine.test_run_processes import request_for
processes.execute(request_for(Path(sys.argv[2]), {RUN!r}))
wait_for(lambda: os.listdir(sys.argv[2]))
processes._next_start = 0.0
wait_for(processes.has_ready)
print(processes._waiting.process.pid, flush=True)
sys.stdin.read()
"""


def test_orderly_end_of_the_engine_interrupts_its_runs(
    tmp_path: Path, file: Path, executed: Path, files: RunFiles
) -> None:
    """Their Spark ends with it. No process is left."""
    with keeping(tmp_path / "home") as processes:
        pid = processes.execute(request_for(executed)).pid
        wait_for(lambda: find_executed(executed))
    assert not exists(pid)
    assert not files.is_alive(RUN)


def test_files_of_old_runs_are_removed(files: RunFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while their process lives."""
    held = files.take("alive")
    assert held is not None
    files.give_up("old")
    for path in files.directory.iterdir():
        os.utime(path, (0, 0))
    files.give_up("young")
    files.remove_old()
    assert {path.name for path in files.directory.iterdir()} == {"alive", "young"}
    os.close(held)
