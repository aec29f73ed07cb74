"""Starts `dagster dev` in a home of its own, and talks to it through GraphQL as the UI does."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline_tests import polling

ROOT = Path(__file__).parents[2]
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
BACKFILL = """
query($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } }
}"""
RUNS = """
query { runsOrError { ... on Runs { results { runId tags { key value } } } } }"""
RUN = """
query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"""
CHECKS = """
query($asset: AssetKeyInput!, $check: String!, $partition: String) {
  assetCheckExecutions(assetKey: $asset, checkName: $check, limit: 1, partition: $partition) {
    evaluation { success }
  }
}"""
STALE = """
query($asset: AssetKeyInput!, $partition: String) {
  assetNodeOrError(assetKey: $asset) { ... on AssetNode { staleStatus(partition: $partition) } }
}"""
SELECTOR = {"repositoryName": "__repository__", "repositoryLocationName": "ads_pipeline.definitions"}

T = TypeVar("T")


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

    def launch_backfill(self, assets: Sequence[Sequence[str]], keys: Sequence[PartitionKey]) -> str:
        """Launch a backfill of exactly these partitions; return its id."""
        params = {
            "assetSelection": [{"path": list(asset)} for asset in assets],
            "partitionNames": [key.dagster_key for key in keys],
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

    def run_tags(self) -> dict[str, dict[str, str]]:
        """The tags of every run."""
        results = self.query(RUNS)["runsOrError"]["results"]
        return {run["runId"]: {tag["key"]: tag["value"] for tag in run["tags"]} for run in results}

    def run_status(self, run_id: str) -> str:
        """The status of a run in Dagster."""
        return str(self.query(RUN, id=run_id)["runOrError"]["status"])

    def stale_status(self, asset: Sequence[str], key: PartitionKey) -> str:
        """Whether Dagster marks the partition as unsynced: FRESH, STALE or MISSING."""
        answer = self.query(STALE, asset={"path": list(asset)}, partition=key.dagster_key)
        return str(answer["assetNodeOrError"]["staleStatus"])

    def check_passed(self, asset: Sequence[str], key: PartitionKey, check: str = "valid") -> bool | None:
        """Whether the last check of this partition passed; None when there was none."""
        answer = self.query(CHECKS, asset={"path": list(asset)}, check=check, partition=key.dagster_key)
        executions = answer["assetCheckExecutions"]
        evaluation = executions[0]["evaluation"] if executions else None
        return None if evaluation is None else bool(evaluation["success"])

    def wait_for(self, find: Callable[[], T | None], seconds: float = SECONDS_TO_FINISH, *, every: float = 0.5) -> T:
        """Call `find` until its result is true. Fails with the end of the log at the limit or when Dagster died."""
        return polling.wait_for(
            find, seconds, every=every, is_alive=lambda: self.process.poll() is None, describe=self._log_end
        )

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def dagster_server(home: Path, environment: Mapping[str, str]) -> Iterator[DagsterServer]:
    """Run `dagster dev` from this checkout, without the caller's settings, and kill it at the end."""
    home.mkdir(parents=True, exist_ok=True)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    log = home / "dagster.log"
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "DAGSTER_"))}
    own = {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT,
            env=shell | own | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    server = DagsterServer(url=f"http://127.0.0.1:{port}", log=log, process=process)
    try:
        server.wait_for(lambda: _answers(server), SECONDS_TO_START)
        yield server
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(server: DagsterServer) -> bool | None:
    try:
        server.query("{ version }")
    except (urllib.error.URLError, ConnectionError):
        return None
    return True
