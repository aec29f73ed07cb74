"""An asset of another code location that follows the days of a table, run by Dagster's daemon."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.orchestration.dagster_server import SENSOR, DagsterServer, dagster_server
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, seal_invalid_run, seal_run
from ads_pipeline_tests.processes import ROOT
from ads_pipeline_tests.spark.servers import connect_server

NO_SPARK = cast("SparkSession", None)  # only Dagster's processes judge and load
NAME = "downstream_location"
EXAMPLE = ROOT / "examples" / "dagster_project" / "src"
LOCATION = f"""
import os
import sys
from pathlib import Path

import dagster as dg

sys.path.insert(0, {str(EXAMPLE)!r})
from agency.spend import build_spend

automation = dg.AutomationConditionSensorDefinition(
    "automation", target="*", default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=5
)
defs = dg.Definitions(assets=[build_spend(Path(os.environ["ADS_PIPELINE_HOME"]))], sensors=[automation])
"""
WORKSPACE = f"""
load_from:
  - python_module: {{module_name: ads_pipeline.definitions}}
  - python_module: {{module_name: {NAME}}}
"""
QUEUE = """
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DagsterServer]:
    (tmp_path / f"{NAME}.py").write_text(LOCATION)
    (tmp_path / "workspace.yaml").write_text(WORKSPACE)
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text() + QUEUE)
    (tmp_path / "spark").mkdir()
    with connect_server(tmp_path / "spark") as (address, _servers):
        environment = {"ADS_PIPELINE_SPARK": address, "ADS_PIPELINE_ARRIVAL_SECONDS": "5"}
        with dagster_server(tmp_path / "home", environment, directory=tmp_path) as running:
            yield running


def has_ticked(server: DagsterServer) -> bool:
    """Whether the automation was evaluated: what was loaded before is no change."""
    selector = {"repositoryName": "__repository__", "repositoryLocationName": NAME, "sensorName": "automation"}
    ticks = server.query(SENSOR, selector=selector)["sensorOrError"]["sensorState"]["ticks"]
    return any(each["status"] in {"SKIPPED", "SUCCESS"} for each in ticks)


def requested_days(server: DagsterServer) -> Counter[str]:
    """The days of the runs that the automation has requested."""
    tags = server.run_tags().values()
    return Counter(each["dagster/partition"] for each in tags if "dagster/from_automation_condition" in each)


def withdraw(home: Path, partition: str) -> None:
    command = [sys.executable, "-m", "ads_pipeline", "state", "withdraw", partition, "--reason", "wrong", "--yes"]
    subprocess.run(command, check=True, env=os.environ | {"ADS_PIPELINE_HOME": str(home)}, capture_output=True)


@pytest.mark.timeout(1100)
def test_asset_is_run_for_exactly_the_days_that_changed(server: DagsterServer, tmp_path: Path) -> None:
    """For a day that was loaded, and again when its rows were withdrawn; not for a rejected rerun. The asset of the
    example then has no result of the day, because an account lacks."""
    home = tmp_path / "home"
    first_day = datetime.now(UTC).date() - timedelta(days=2)
    first, second = (replace(key(1), logical_date=first_day + timedelta(days=n)) for n in (0, 1))
    files = [home / "spend" / f"{each.logical_date}.csv" for each in (first, second)]
    server.wait_for(lambda: has_ticked(server))
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger:
        deployment = LocalDeployment(home=home, spark=NO_SPARK, ledger=ledger)
        seal_run(deployment, first)
        server.wait_for(files[0].exists)
        assert files[0].read_text().splitlines()[1:] == [",1,24.0"]
        seal_invalid_run(deployment, first, "r2")
        server.wait_for(lambda: ledger.states.get(first).attempt_count == 2)
        seal_run(deployment, second)
        server.wait_for(files[1].exists)
        assert requested_days(server) == {str(each.logical_date): 1 for each in (first, second)}
        withdraw(home, str(first))
        server.wait_for(lambda: not files[0].exists())
        assert requested_days(server) == {str(first.logical_date): 2, str(second.logical_date): 1}
        assert files[1].exists()
