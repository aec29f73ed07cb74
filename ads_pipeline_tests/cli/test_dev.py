"""What `ads-pipeline dev` prepares before Dagster takes its place."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.cli.dev import prepare_dagster
from ads_pipeline.engine.address import is_running
from ads_pipeline.settings import read_settings
from ads_pipeline_tests.engine.test_engine import descendants, exists
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.spark.servers import build_environment

CODE = """
import os, sys
from pathlib import Path
from ads_pipeline.cli.dev import start_engine
from ads_pipeline.engine.address import is_running
from ads_pipeline.settings import read_settings
from ads_pipeline_tests.polling import wait_for

settings = read_settings(os.environ)
start_engine(settings, os.environ)
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


def test_engine_outlives_the_command_and_ends_with_the_program_that_replaced_it(tmp_path: Path) -> None:
    """The program is Dagster in the product."""
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
    """The program that replaced the command does not watch it, so another process does."""
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
    found = (child for child, command in commands.items() if "ads_pipeline.engine.supervisor" in command)
    return next((child for child in found if child != other_than and exists(child)), None)


def test_background_job_can_be_ended(tmp_path: Path) -> None:
    """A job that a shell starts in the background ignores SIGINT. The program that replaces the command does not."""
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    code = f"""
import os, sys
from ads_pipeline.cli.dev import stop_ignoring_interrupts
stop_ignoring_interrupts()
os.execv(sys.executable, [sys.executable, "-c", {program!r}])
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    job = f"trap '' INT; exec {sys.executable} {script}"
    done = subprocess.run(
        ["bash", "-c", job], env=build_environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "True"
