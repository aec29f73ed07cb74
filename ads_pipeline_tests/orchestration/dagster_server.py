"""The real thing: `dagster dev` over a home of its own, asked through GraphQL as the UI asks it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ads_pipeline.domain.partition import PartitionKey

ROOT = Path(__file__).parents[2]
SECONDS_TO_START = 90
SECONDS_TO_FINISH = 150
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
query($asset: AssetKeyInput!, $partition: String) {
  assetCheckExecutions(assetKey: $asset, checkName: "valid", limit: 1, partition: $partition) {
    evaluation { success }
  }
}"""
SELECTOR = {"repositoryName": "__repository__", "repositoryLocationName": "ads_pipeline.definitions"}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running instance and its address."""

    url: str
    log: Path

    def ask(self, query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def add_customer(self, customer: str) -> str:
        added = self.ask(ADD, selector=SELECTOR, name="google_ads_customers", key=customer)
        return str(added["addDynamicPartition"]["__typename"])

    def launch(self, assets: Sequence[Sequence[str]], keys: Sequence[PartitionKey]) -> str:
        """A backfill of exactly these partitions."""
        params = {
            "assetSelection": [{"path": list(asset)} for asset in assets],
            "partitionNames": [key.dagster_key for key in keys],
        }
        launched = self.ask(LAUNCH, params=params)["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return str(launched["backfillId"])

    def end_of(self, backfill: str) -> str:
        """How it ended."""
        return self.wait(lambda: self._ended(backfill))

    def _ended(self, backfill: str) -> str | None:
        found = self.ask(BACKFILL, id=backfill)["partitionBackfillOrError"]
        return None if found["status"] in ("REQUESTED", "CANCELING", "FAILING") else str(found["status"])

    def runs(self) -> dict[str, dict[str, str]]:
        """Every run, with its tags."""
        results = self.ask(RUNS)["runsOrError"]["results"]
        return {each["runId"]: {tag["key"]: tag["value"] for tag in each["tags"]} for each in results}

    def status(self, run_id: str) -> str:
        """What Dagster takes a run to be at."""
        return str(self.ask(RUN, id=run_id)["runOrError"]["status"])

    def check(self, asset: Sequence[str], key: PartitionKey) -> bool | None:
        """Whether the last check of this partition passed; None when it was not checked."""
        found = self.ask(CHECKS, asset={"path": list(asset)}, partition=key.dagster_key)["assetCheckExecutions"]
        return None if not found or found[0]["evaluation"] is None else bool(found[0]["evaluation"]["success"])

    def wait(self, look: Callable[[], T | None], seconds: float = SECONDS_TO_FINISH) -> T:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found is not None:
                return found
            time.sleep(0.5)
        raise AssertionError(f"not in {seconds} s:\n{self.log.read_text(errors='replace')[-4000:]}")


@contextmanager
def served(home: Path, environment: Mapping[str, str]) -> Iterator[Served]:
    """`dagster dev` from this checkout, with nothing else in its environment than what a shell has."""
    home.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = home / "dagster.log"
    shell = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "DAGSTER_"))}
    own = {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]", "PYTHONPATH": str(ROOT)}
    with log.open("wb") as output:
        running = subprocess.Popen(
            [sys.executable, "-m", "dagster", "dev", "--host", "127.0.0.1", "--port", str(port)],
            cwd=ROOT,
            env=shell | own | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    instance = Served(url=f"http://127.0.0.1:{port}", log=log)
    try:
        instance.wait(lambda: _answers(instance, running), SECONDS_TO_START)
        yield instance
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _answers(instance: Served, running: "subprocess.Popen[bytes]") -> bool | None:
    assert running.poll() is None, instance.log.read_text(errors="replace")[-4000:]
    try:
        instance.ask("{ version }")
    except (urllib.error.URLError, ConnectionError):
        return None
    return True
