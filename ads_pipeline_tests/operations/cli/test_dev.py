"""What `ads-pipeline dev` prepares and prints, and how it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.operations.cli.local import dev_start
from ads_pipeline.operations.cli.local.dev import END_SIGNALS, KEEPER, LOG, make_address, prepare_dagster
from ads_pipeline.operations.cli.local.dev_start import DAEMON, LOCATION, UI, report_start
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.spark.engine_address import is_running
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.ports import reserve_port
from ads_pipeline_tests.spark.engine.test_engine import descendants, exists, wait_until_gone
from ads_pipeline_tests.spark.servers import build_environment

CODE = """
import os, sys
from pathlib import Path
from ads_pipeline.operations.cli.local.dev import start_engine
from ads_pipeline.spark.engine_address import is_running
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.polling import wait_for

settings = read_settings(os.environ)
start_engine(os.environ)
wait_for(lambda: is_running(settings.home), 120)
program = "import os; print(os.readlink(os.environ['ADS_PIPELINE_HOME'] + '/engine/socket'))"
os.execv(sys.executable, [sys.executable, "-c", program])
"""


def test_queue_is_read_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is written once, with the shipped settings, and stays as the user changes it."""
    settings = read_settings({"ADS_PIPELINE_HOME": str(tmp_path)})
    environment = prepare_dagster(settings, {})
    monkeypatch.setenv("ADS_PIPELINE_HOME", str(tmp_path))
    with dg.DagsterInstance.from_config(environment["DAGSTER_HOME"]) as instance:
        coordinator: Any = instance.run_coordinator
        assert coordinator.dequeue_interval_seconds == 1
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 2
    file = Path(environment["DAGSTER_HOME"]) / "dagster.yaml"
    file.write_text("{}")
    prepare_dagster(settings, {})
    assert file.read_text() == "{}"


def test_engine_ends_with_the_last_process_that_holds_it(tmp_path: Path) -> None:
    """The command and the process that keeps Dagster hold it in the product."""
    environment = build_environment() | {"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_SPARK": "local[2]"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    socket = Path(done.stdout.strip())
    assert socket.name == "socket"
    wait_for(lambda: not (tmp_path / "engine" / "socket").is_symlink() and not socket.exists(), 120)


@pytest.mark.invariant("L6")
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_engine_that_died_is_started_again(tmp_path: Path) -> None:
    """The command does not watch it, so another process does."""
    code = CODE.replace("os.execv", "input(); os.execv")
    environment = build_environment() | {"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_SPARK": "local[2]"}
    command = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        first = wait_for(lambda: find_supervisor(command.pid), 120)
        wait_for(lambda: is_running(tmp_path), 120)
        os.kill(first, signal.SIGKILL)
        second = wait_for(lambda: find_supervisor(command.pid, other_than=first), 120)
        wait_for(lambda: is_running(tmp_path), 120)
        assert second != first
    finally:
        command.communicate(b"\n", timeout=120)
    wait_for(lambda: not is_running(tmp_path), 120)


def find_supervisor(pid: int, other_than: int = 0) -> int | None:
    commands = descendants(pid)
    found = (child for child, command in commands.items() if "ads_pipeline.spark.engine.supervisor" in command)
    return next((child for child in found if child != other_than and exists(child)), None)


@pytest.mark.parametrize("name", END_SIGNALS)
def test_background_job_can_be_ended(name: str) -> None:
    """A job that a shell starts in the background ignores SIGINT. Each signal ends the command in order."""
    code = f"""
import os, signal
from ads_pipeline.operations.cli.local.dev import end_by_interrupt
end_by_interrupt()
try:
    os.kill(os.getpid(), signal.{name})
except KeyboardInterrupt:
    print("interrupted")
"""
    job = ["bash", "-c", 'trap "" INT; exec "$@"', "job", sys.executable, "-c", code]
    done = subprocess.run(job, env=build_environment(), capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "interrupted\n"


def test_dev_whose_dagster_ends_says_why(empty_cli: CommandLine, tmp_path: Path) -> None:
    """With the last line of its log. The log of the last start is kept under another name."""
    (tmp_path / "dagster.yaml").write_text("nonsense: 1")
    (empty_cli.home / LOG).write_text("of the last start")
    result = empty_cli.process("dev", "--port", str(reserve_port()), DAGSTER_HOME=str(tmp_path))
    assert result.code == 69
    assert "ads-pipeline: Dagster failed: " in result.err
    assert "nonsense" in result.err
    assert f"The log: {empty_cli.home / LOG}" in result.err
    assert (empty_cli.home / f"{LOG}.1").read_text() == "of the last start"


KEPT = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: exit(3))
print("ready", flush=True)
time.sleep(600)
"""
HOLDER = """
import subprocess, sys, time
held = subprocess.Popen([sys.executable, "-m", *sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
print(held.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.invariant("L6")
def test_dagster_ends_when_the_command_was_killed(tmp_path: Path) -> None:
    """Nobody can send it a signal then, so the process between them does when the pipe closes."""
    command = [sys.executable, "-c", HOLDER, KEEPER, sys.executable, "-c", KEPT]
    with subprocess.Popen(command, env=build_environment(), stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        assert "ready\n" in [holder.stdout.readline(), holder.stdout.readline()]
        below = list(descendants(holder.pid))
        assert len(below) == 2
        holder.kill()
        wait_until_gone(below)


def test_start_is_reported_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each part that answers, and one every few seconds. It ends when Dagster has ended, or after a limit."""
    monkeypatch.setattr(dev_start, "SECONDS_BETWEEN_LOOKS", 0.01)
    monkeypatch.setattr(dev_start, "SECONDS_BETWEEN_LINES", 0.0)
    later, lines = iter([[DAEMON], []]), list[str]()

    def find_waiting() -> list[str]:
        """The UI answers once a line has said that it is waited for, however slow the machine is."""
        return next(later) if f"waiting for {UI}" in lines else [UI, DAEMON]

    for line in report_start(find_waiting, lambda: True):
        lines.append(line.split(" s  ")[1])
    news = [line for line in lines if not line.startswith("waiting")]
    assert news == [f"{LOCATION} answers", f"{UI} answers", f"{DAEMON} answers"]
    assert f"waiting for {UI}" in lines
    assert list(report_start(lambda: [UI], lambda: False)) == []
    monkeypatch.setattr(dev_start, "SECONDS_TO_START", 0.0)
    (line,) = report_start(lambda: [UI, DAEMON], lambda: True)
    assert line.endswith("without an answer: the UI, the daemon")


@pytest.mark.parametrize(("host", "address"), [("127.0.0.1", "http://127.0.0.1:3000"), ("::1", "http://[::1]:3000")])
def test_address_can_be_opened(host: str, address: str) -> None:
    """An IPv6 address stands in brackets."""
    assert make_address(host, 3000) == address
