"""Runs share one Spark server that other users cannot use and that leaves no process behind."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.spark.engine.keeper import SUPERVISOR
from ads_pipeline.spark.engine.supervisor import LOG, engine
from ads_pipeline.spark.engine_address import (
    SECONDS_TO_START,
    UNTIL_STDIN_CLOSES,
    Answer,
    EngineLimits,
    engine_directory,
    engine_link,
    is_running,
    request_server,
)
from ads_pipeline.spark.private_directory import remove_abandoned
from ads_pipeline.spark.session import SECONDS_TO_RELEASE
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.spark.engine import engine_client
from ads_pipeline_tests.spark.servers import build_environment

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
    pytest.mark.timeout(1000),  # they wait for processes, and start first
]
SECONDS = 120.0
SHORT = EngineLimits(seconds_to_answer=4.0, seconds_between_checks=0.5, silent_checks=3, seconds_to_stop=1.0)
# An engine with other limits than those of `ads-pipeline dev`.
LIMITED = """
import os
from ads_pipeline.spark.engine_address import EngineLimits
from ads_pipeline.spark.engine.supervisor import run_engine
from ads_pipeline.settings.environment import read_settings

run_engine(read_settings(os.environ), until_stdin_closes=True, limits={limits!r})
"""
HEAVY = {"dagster", "google", "pandera", "sqlalchemy"}


def settings_for(home: Path, spark: str = "local[2]") -> Settings:
    return read_settings({"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": spark})


@contextmanager
def supervisor(home: Path, *, limits: EngineLimits | None = None, **more: str) -> "Iterator[subprocess.Popen[bytes]]":
    """An engine as `ads-pipeline dev` starts it, or one with other limits."""
    program = ["-c", LIMITED.format(limits=limits)] if limits else ["-m", SUPERVISOR, UNTIL_STDIN_CLOSES]
    environment = build_environment() | {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]"} | more
    process = subprocess.Popen(
        [sys.executable, *program],
        env=environment,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        wait_for(lambda: is_running(home), SECONDS, is_alive=lambda: process.poll() is None)
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdin
        process.stdin.close()
        process.wait()


def run_client(home: Path, prefix: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """What a process that uses Spark prints, and its log. The prefix starts it."""
    done = subprocess.run(
        [*prefix, sys.executable, "-m", engine_client.__name__, str(home)],
        env=build_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def descendants(pid: int) -> dict[int, str]:
    """The processes below this one, with their command lines."""
    parents, commands = {}, {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(directory.name)] = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            commands[int(directory.name)] = (directory / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    found, below = dict[int, str](), {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found |= {child: commands.get(child, "") for child in below}
    return found


def find_java(pid: int) -> int:
    return next(child for child, command in descendants(pid).items() if re.match(r"\S*java ", command))


def find_warm_workers(pid: int) -> set[int]:
    """The Python workers of Spark after the warm-up. They are children of a process with the same command."""
    commands = descendants(pid)
    if any(command.split()[-1:] == ["ads_pipeline.spark.engine.warm_up"] for command in commands.values()):
        return set()
    daemons = {child for child, command in commands.items() if "pyspark.daemon" in command}
    return {worker for daemon in daemons for worker in descendants(daemon)}


def find_server(home: Path) -> Answer | None:
    """The engine's server, unless it has a problem."""
    found = request_server(home)
    return found if found is not None and found.problem is None else None


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(exists, pids)), SECONDS)


def test_runs_share_a_server_that_ends_with_its_parent(tmp_path: Path) -> None:
    """It starts by itself, and again when it died. Two runs have the same workers, which import little.

    The first run has workers that were there before. The token is in no argument and in no log. The server listens on
    the loopback address. When the supervisor is killed, no process is left, and a run starts its own Spark and says
    so once.
    """
    with supervisor(tmp_path) as process:
        warm = wait_for(lambda: find_warm_workers(process.pid), SECONDS)
        first, log = run_client(tmp_path)
        assert set(first["pids"]) & warm
        assert first["session"].startswith("pyspark.sql.connect.")
        assert "engine.unavailable" not in log
        second, log = run_client(tmp_path)
        assert set(first["pids"]) & set(second["pids"])
        assert not HEAVY & set(second["modules"])
        assert "ads_pipeline.validation.payload_task" in second["own"]
        answer = request_server(tmp_path)
        assert answer is not None
        below = descendants(process.pid)
        for text in (log, (engine_directory(tmp_path) / LOG).read_text(), *below.values()):
            assert answer.token not in text
        assert (engine_directory(tmp_path) / LOG).stat().st_mode & 0o077 == 0
        assert find_listening_address(answer.port).endswith("0100007F")
        os.kill(find_java(process.pid), signal.SIGKILL)
        again, _log = run_client(tmp_path)
        restarted = request_server(tmp_path)
        assert again["session"].startswith("pyspark.sql.connect.")
        assert restarted is not None
        assert restarted.token != answer.token
        below = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        wait_until_gone(list(below))
    alone, log = run_client(tmp_path)
    assert alone["session"] == "pyspark.sql.session"
    assert log.count("engine.unavailable") == 1


@pytest.mark.invariant("L5", "L6")
def test_engine_that_hangs_is_left_out_and_then_replaced(tmp_path: Path) -> None:
    """The answer to a run has a limit and says why. The engine ends the stopped JVM, and later runs use a new one."""
    with supervisor(tmp_path, limits=SHORT) as process:
        answer = wait_for(lambda: find_server(tmp_path), SECONDS)
        java = find_java(process.pid)
        os.kill(java, signal.SIGSTOP)
        hung = request_server(tmp_path)
        assert hung is not None
        assert hung.problem == "the engine's Spark did not answer within 4 s"
        wait_until_gone([java])

        other = wait_for(lambda: find_server(tmp_path), SECONDS)
        assert other.token != answer.token
        again, _log = run_client(tmp_path)
        assert again["session"].startswith("pyspark.sql.connect.")


@pytest.mark.invariant("L5")
def test_run_does_not_wait_for_an_engine_whose_processes_all_hang(tmp_path: Path) -> None:
    """The kernel accepts connections, and nobody answers. A run starts its own Spark and says so once.

    A run that has a session then, and ends, leaves it behind.
    """
    with supervisor(tmp_path) as process:
        assert request_server(tmp_path) is not None
        java = find_java(process.pid)
        try:
            started = release_while_engine_hangs(tmp_path, [java, process.pid])
            assert time.monotonic() - started < SECONDS_TO_RELEASE + 60
            started = time.monotonic()
            answer = request_server(tmp_path, SHORT)
            assert time.monotonic() - started < SECONDS_TO_START
            assert answer is not None
            assert "does not answer" in (answer.problem or "")
            alone, log = run_client(tmp_path)
            assert alone["session"] == "pyspark.sql.session"
            assert log.count("engine.unavailable") == 1
        finally:
            os.kill(java, signal.SIGKILL)


def release_while_engine_hangs(home: Path, pids: list[int]) -> float:
    """Stop these processes while another one has a session on them. Return when that one began to release it.

    The clock is the same in all processes. The other process has ended.
    """
    code = f"""
import os, signal, sys, time
from pathlib import Path
from ads_pipeline.spark.session import release_session, start_spark
from ads_pipeline_tests.spark.engine.test_engine import settings_for

settings = settings_for(Path({str(home)!r}))
spark = start_spark(settings)
assert spark.range(3).count() == 3
for pid in {pids}:
    os.kill(pid, signal.SIGSTOP)
print(time.monotonic())
release_session(spark, settings)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=build_environment(), capture_output=True, text=True, check=True, timeout=300
    )
    return float(done.stdout.splitlines()[-1])


def find_listening_address(port: int) -> str:
    """The address in the kernel's list of listening sockets, in hexadecimal."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    (address,) = {
        fields[1].partition(":")[0] for fields in lines if fields[1].endswith(f":{port:04X}") and fields[3] == "0A"
    }
    return address


def test_engine_ends_when_standard_input_closes(tmp_path: Path) -> None:
    """As it does when `dagster dev` ends. Its link and its directory are removed."""
    with supervisor(tmp_path) as process:
        directory = engine_link(tmp_path).readlink().parent
        assert directory.stat().st_mode & 0o077 == 0
        assert process.stdin
        process.stdin.close()
        assert process.wait(SECONDS) == 0
    assert not directory.exists()
    assert not engine_link(tmp_path).is_symlink()
    assert request_server(tmp_path) is None


@pytest.mark.invariant("L6")
def test_temporary_directory_of_a_killed_engine_is_removed_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next engine removes it when it is a minute old, and leaves nothing itself. That of a live engine stays."""
    temporary = Path(tempfile.mkdtemp())  # a short path: a socket's has at most 107 bytes
    with supervisor(tmp_path / "home", TMPDIR=str(temporary)) as process:
        directory = engine_link(tmp_path / "home").readlink().parent
        assert directory.parent == temporary
        os.utime(directory, (0, 0))
        remove_abandoned(temporary)
        assert directory.exists()
        os.kill(process.pid, signal.SIGSTOP)  # it starts no process between the look and the kill
        below = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        wait_until_gone(list(below))
    for left in temporary.iterdir():
        os.utime(left, (0, 0))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with engine(settings_for(tmp_path / "other")):
        assert not directory.exists()
    temporary.rmdir()  # nothing is left in it


def test_second_engine_of_a_home_is_refused(tmp_path: Path) -> None:
    """Runs would not know which of two servers to use; the message says that one serves already."""
    with (
        engine(settings_for(tmp_path)),
        pytest.raises(BadCommand, match="already serves"),
        engine(settings_for(tmp_path)),
    ):
        pytest.fail("two engines")


@pytest.mark.parametrize("spark", ["sc://localhost:15002", "our_sessions:build"])
def test_engine_needs_a_master(tmp_path: Path, spark: str) -> None:
    """A Connect endpoint is a server already, and a user's function returns a session of its own."""
    with pytest.raises(BadCommand, match="must name a master"), engine(settings_for(tmp_path, spark)):
        pytest.fail("started")


def test_socket_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server could return any verdict."""
    with engine(settings_for(tmp_path)):
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert request_server(tmp_path) == Answer(problem="the engine belongs to another user")


def test_engine_that_cannot_start_spark_says_why(tmp_path: Path) -> None:
    """The run reads where the log is, and starts its own Spark."""
    with engine(replace(settings_for(tmp_path), spark="local[nonsense]")):
        answer = request_server(tmp_path)
    assert answer is not None
    assert "did not start" in (answer.problem or "")


def test_engine_that_dies_before_it_answers_is_a_problem(tmp_path: Path) -> None:
    """The run starts its own Spark then."""
    engine_directory(tmp_path).mkdir()
    path = tmp_path.parent / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        engine_link(tmp_path).symlink_to(path)
        closing = threading.Thread(target=close_first_connection, args=[listener])
        closing.start()
        answer = request_server(tmp_path)
        closing.join()
    assert answer is not None
    assert answer.problem


def close_first_connection(listener: socket.socket) -> None:
    listener.accept()[0].close()
