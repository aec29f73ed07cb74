"""Starts `dagster dev` in a home of its own, and talks to it through GraphQL as the UI does."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.cli.local.dev import ENGINE
from ads_pipeline.spark.engine_address import LOCATION, MODULE
from ads_pipeline_tests import polling
from ads_pipeline_tests.ports import reserve_port
from ads_pipeline_tests.processes import PROCESS_START, PYTHON_PATH, ROOT

# Limits for a process that hangs. A wait ends as soon as its result is there or the process is dead.
SECONDS_TO_START = 300
SECONDS_TO_FINISH = 900
SECONDS_TO_ANSWER = 180
ADD = """
mutation($selector: RepositorySelector!, $name: String!, $key: String!) {
  addDynamicPartition(repositorySelector: $selector, partitionsDefName: $name, partitionKey: $key) {
    __typename ... on PythonError { message }
  }
}"""
LAUNCH = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename ... on LaunchBackfillSuccess { backfillId } ... on PythonError { message }
  }
}"""
CANCEL = """
mutation($id: String!) {
  cancelPartitionBackfill(backfillId: $id) { __typename ... on PythonError { message } }
}"""
BACKFILL = """
query($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } }
}"""
RUNS = """
query { runsOrError { ... on Runs { results { runId status tags { key value } } } } }"""
LOG = """
query($id: ID!) {
  logsForRun(runId: $id) { ... on EventConnection { events { ... on MessageEvent { message } } } }
}"""
RUN = """
query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
CHECKS = """
query($asset: AssetKeyInput!, $check: String!, $partition: String) {
  assetCheckExecutions(assetKey: $asset, checkName: $check, limit: 5, partition: $partition) {
    evaluation { success severity description }
  }
}"""
STALE = """
query($asset: AssetKeyInput!, $partition: String) {
  assetNodeOrError(assetKey: $asset) { ... on AssetNode { staleStatus(partition: $partition) } }
}"""
SENSOR = """
query($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) { ... on Sensor {
    sensorState { id status ticks(limit: 1) { tickId status } }
  } }
}"""
START_SENSOR = """
mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) { __typename } }"""
STOP_SENSOR = """
mutation($id: String!) { stopSensor(id: $id) { __typename } }"""
PARTITIONS = """
query($asset: AssetKeyInput!) {
  assetNodeOrError(assetKey: $asset) { ... on AssetNode {
    partitionStats { numMaterialized numFailed numMaterializing }
    assetPartitionStatuses { ... on MultiPartitionStatuses { ranges {
      primaryDimStartKey primaryDimEndKey
      secondaryDim { ... on DefaultPartitionStatuses {
        materializedPartitions failedPartitions materializingPartitions
      } }
    } } }
  } }
}"""
CHECK_STATUSES = """
query($asset: AssetKeyInput!) {
  assetNodeOrError(assetKey: $asset) { ... on AssetNode { assetChecksOrError { ... on AssetChecks { checks {
    name
    partitionStatuses { ... on AssetCheckMultiPartitionStatuses { ranges {
      primaryDimStartKey primaryDimEndKey
      secondaryDim { ... on AssetCheckDefaultPartitionStatuses {
        succeededPartitions failedPartitions inProgressPartitions skippedPartitions executionFailedPartitions
      } }
    } } }
  } } } } }
}"""
SELECTOR = {"repositoryName": "__repository__", "repositoryLocationName": "ads_pipeline.definitions"}

T = TypeVar("T")
Partition = PartitionKey | str  # a name where the customer is invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class DagsterServer:
    """A running `dagster dev`."""

    url: str
    log: Path
    process: "subprocess.Popen[bytes]"

    def query(self, query: str, **variables: Any) -> Any:
        """Send a GraphQL query and return its data."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def add_customer(self, customer: str) -> str:
        """Add a dynamic partition; return the type of the answer."""
        added = self.query(ADD, selector=SELECTOR, name="google_ads_customers", key=customer)
        return str(added["addDynamicPartition"]["__typename"])

    def launch_backfill(self, assets: Sequence[Sequence[str]], keys: Sequence[Partition]) -> str:
        """Launch a backfill of exactly these partitions; return its id."""
        params = {
            "assetSelection": [{"path": list(asset)} for asset in assets],
            "partitionNames": [_name(key) for key in keys],
        }
        launched = self.query(LAUNCH, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def wait_for_backfill(self, backfill: str) -> str:
        """Wait until the backfill has ended; return its status."""
        return self.wait_for(lambda: self._final_status(backfill))

    def _final_status(self, backfill: str) -> str | None:
        status = str(self.query(BACKFILL, id=backfill)["partitionBackfillOrError"]["status"])
        return None if status in {"REQUESTED", "CANCELING", "FAILING"} else status

    def cancel_backfill(self, backfill: str) -> None:
        """Cancel a backfill and its runs."""
        answer = self.query(CANCEL, id=backfill)["cancelPartitionBackfill"]
        assert answer["__typename"] == "CancelBackfillSuccess", answer

    def backfill_runs(self, backfill: str) -> dict[str, str]:
        """Map each run of a backfill to its status."""
        return {
            run["runId"]: run["status"]
            for run in self.query(RUNS)["runsOrError"]["results"]
            if {"key": "dagster/backfill", "value": backfill} in run["tags"]
        }

    def start_sensor(self, name: str) -> None:
        """Let the daemon evaluate the sensor."""
        started = self.query(START_SENSOR, selector={**SELECTOR, "sensorName": name})["startSensor"]
        assert started["__typename"] == "Sensor", started

    def stop_sensor(self, name: str) -> None:
        """Let the daemon evaluate the sensor no more, and wait until its last tick has ended.

        A tick under way would find part of what the caller does next. It also stores the state of the sensor that it
        has read, which can undo this stop or the next start.
        """
        looks: list[Any] = []

        def stop_and_look() -> bool:
            found = self.query(SENSOR, selector={**SELECTOR, "sensorName": name})["sensorOrError"]["sensorState"]
            if found["status"] != "STOPPED":
                stopped = self.query(STOP_SENSOR, id=found["id"])["stopSensor"]
                assert stopped["__typename"] == "StopSensorMutationResult", stopped
            looks.append(found)
            has_ended = found["status"] == "STOPPED" and all(each["status"] != "STARTED" for each in found["ticks"])
            return has_ended and looks[-2:] == [found, found]

        self.wait_for(stop_and_look)

    def partition_counts(self, asset: Sequence[str]) -> dict[str, int]:
        """The numbers on the Partitions tab of the asset."""
        counts: dict[str, int] = self.query(PARTITIONS, asset={"path": list(asset)})["assetNodeOrError"][
            "partitionStats"
        ]
        return counts

    def partition_status(self, asset: Sequence[str], key: Partition) -> str:
        """The colour of a partition on the Partitions tab: materialized, failed, materializing or missing."""
        found = self.query(PARTITIONS, asset={"path": list(asset)})["assetNodeOrError"]["assetPartitionStatuses"]
        return _status_in(found["ranges"], key) or "missing"

    def check_status(self, asset: Sequence[str], key: Partition, check: str) -> str:
        """The colour of a partition on the Checks tab: succeeded, failed, inProgress, skipped, … or none."""
        node = self.query(CHECK_STATUSES, asset={"path": list(asset)})["assetNodeOrError"]
        (found,) = (each for each in node["assetChecksOrError"]["checks"] if each["name"] == check)
        return _status_in(found["partitionStatuses"]["ranges"], key) or "none"

    def check_result(self, asset: Sequence[str], key: Partition, check: str) -> dict[str, Any] | None:
        """The last evaluation of a partition: success, severity and description; None when there was none.

        A sensor may have begun another evaluation, which has no result yet.
        """
        answer = self.query(CHECKS, asset={"path": list(asset)}, check=check, partition=_name(key))
        evaluations = [each["evaluation"] for each in answer["assetCheckExecutions"]]
        return next((each for each in evaluations if each is not None), None)

    def run_tags(self) -> dict[str, dict[str, str]]:
        """The tags of every run."""
        results = self.query(RUNS)["runsOrError"]["results"]
        return {run["runId"]: {tag["key"]: tag["value"] for tag in run["tags"]} for run in results}

    def run_status(self, run_id: str) -> str:
        """The status of a run in Dagster."""
        return str(self.query(RUN, id=run_id)["runOrError"]["status"])

    def find_message(self, run_id: str, start: str) -> str:
        """The first message in the log of a run that starts like this."""
        return self.find_messages(run_id, start)[0]

    def find_messages(self, run_id: str, start: str) -> list[str]:
        """The messages in the log of a run that start like this."""
        events = self.query(LOG, id=run_id)["logsForRun"]["events"]
        return [str(each["message"]) for each in events if each["message"].startswith(start)]

    def stale_status(self, asset: Sequence[str], key: Partition) -> str:
        """Whether Dagster marks the partition as unsynced: FRESH, STALE or MISSING."""
        answer = self.query(STALE, asset={"path": list(asset)}, partition=_name(key))
        return str(answer["assetNodeOrError"]["staleStatus"])

    def check_passed(self, asset: Sequence[str], key: Partition, check: str = "valid") -> bool | None:
        """Whether the last check of this partition passed; None when there was none."""
        evaluation = self.check_result(asset, key, check)
        return None if evaluation is None else bool(evaluation["success"])

    def wait_for(self, find: Callable[[], T | None], seconds: float = SECONDS_TO_FINISH, *, every: float = 0.5) -> T:
        """Call `find` until its result is true. Fails with the end of the log at the limit or when Dagster died."""
        return polling.wait_for(
            find, seconds, every=every, is_alive=lambda: self.process.poll() is None, describe=self._log_end
        )

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def dagster_server(
    home: Path,
    environment: Mapping[str, str],
    *,
    program: Path | None = None,
    directory: Path = ROOT,
    engine: bool = False,
    module: str = LOCATION,
) -> Iterator[DagsterServer]:
    """Run `dagster dev` of this checkout, or `dev` of an installed `ads-pipeline`, and kill it at the end.

    It gets none of the caller's settings. With `engine`, an engine executes the runs of the module's code location,
    which share a Spark server, as in `ads-pipeline dev`.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = reserve_port()
    log = home / "dagster.log"
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "DAGSTER_"))}
    path = str(PROCESS_START) if program else PYTHON_PATH
    own = {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]", "PYTHONPATH": path}
    own["ADS_PIPELINE_ARRIVAL_SECONDS"] = "60"  # a test seals runs, and then does what the sensor must not do first
    command = [program, "dev"] if program else [sys.executable, "-m", "dagster", "dev"]
    complete = shell | own | dict(environment)
    with log.open("wb") as output, _engine(complete, directory, module) if engine else nullcontext():
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            cwd=directory,
            env=complete,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        server = DagsterServer(url=f"http://127.0.0.1:{port}", log=log, process=process)
        try:
            server.wait_for(lambda: answers(server), SECONDS_TO_START)
            yield server
        finally:
            with suppress(ProcessLookupError):  # a test has ended it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _engine(environment: Mapping[str, str], directory: Path, module: str) -> Iterator[None]:
    """Run the engine of the home, which ends when its standard input closes."""
    command = [sys.executable, "-m", ENGINE, MODULE, module]
    with subprocess.Popen(command, cwd=directory, env=environment, stdin=subprocess.PIPE):
        yield


def _status_in(ranges: Sequence[Mapping[str, Any]], key: Partition) -> str | None:
    """The status whose list has the customer, in the range of days that has the day."""
    customer, _, day = _name(key).rpartition("|")
    for each in ranges:
        if each["primaryDimStartKey"] <= day <= each["primaryDimEndKey"]:
            for name, customers in each["secondaryDim"].items():
                if customer in customers:
                    return str(name).removesuffix("Partitions")
    return None


def _name(key: Partition) -> str:
    return key if isinstance(key, str) else key.dagster_key


def answers(server: DagsterServer) -> bool | None:
    try:
        server.query("{ version }")
    except (urllib.error.URLError, ConnectionError):
        return None
    return True
