"""What `ads-pipeline dev` prepares before Dagster takes its place."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.cli.dev import prepare_dagster
from ads_pipeline.settings import read_settings
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
