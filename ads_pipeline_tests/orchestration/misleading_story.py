"""A story of everything that changes what readers get without a finished run of the assets.

`play_story` runs it on a Dagster server: withdrawn, demoted and restored days, a rejected rerun, a day without a run,
a cancelled backfill, a killed run and a customer with an invalid name.
"""

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.actions.row_actions import demote, restore
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, narrow_query_file
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server
from ads_pipeline_tests.pipeline.builders import QUERY, V2, LocalDeployment, key, seal_invalid_run, seal_run

RAW, WAREHOUSE = ("raw", QUERY), ("warehouse", QUERY)
HYPHENATED = "204-661-9385"
# Days of customer 1. All but ABSENT have a run before the first backfill.
WITHDRAWN, DEMOTED, RESTORED, RERUN, ABSENT, REJECTED, UNTOUCHED, KILLED, CANCELLED, QUEUED = (
    key(1, day) for day in (1, 2, 3, 4, 5, 6, 7, 9, 11, 13)
)
INVALID_CUSTOMER = "204-661-9385|2026-01-04"
DAYS = tuple(key(1, day) for day in range(1, 14))
LOADED = (WITHDRAWN, DEMOTED, RESTORED, RERUN, UNTOUCHED, KILLED, CANCELLED, QUEUED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A running Dagster after all events, its deployment, and the Dagster runs that were killed and cancelled."""

    server: DagsterServer
    deployment: LocalDeployment
    killed_run: str
    cancelled_runs: dict[str, str]

    def wait_for_check(self, partition: PartitionKey, status: str, check: str = "readable") -> None:
        """Wait until the Checks tab shows the partition with this status."""
        asset = WAREHOUSE if check == "readable" else RAW
        self.server.wait_for(lambda: self.server.check_status(asset, partition, check) == status)


@contextmanager
def play_story(home: Path, spark: SparkSession) -> Iterator[Story]:
    """Run the story, and keep its server until the block ends."""
    home.mkdir()
    (home / DEFAULT_QUERIES_FILE.name).write_text(narrow_query_file(DAYS[0].logical_date, [QUERY]))
    # Without an engine: its runs take long enough to be cancelled and killed.
    environment = {"ADS_PIPELINE_ARRIVAL_SECONDS": "5"}
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger, dagster_server(home, environment) as server:
        server.stop_sensor("raw_arrivals")  # the story requests its runs by backfills
        deployment = LocalDeployment(home=home, spark=spark, ledger=ledger)
        _load_days(server, deployment)
        _hide_and_rerun_days(server, deployment)
        cancelled_runs = _cancel_backfill(server, home / "ledger.db")
        killed_run = _kill_run(server, deployment)
        server.start_sensor("raw_arrivals")  # it requests the day of the killed run
        yield Story(server=server, deployment=deployment, killed_run=killed_run, cancelled_runs=cancelled_runs)


def _load_days(server: DagsterServer, deployment: LocalDeployment) -> None:
    """Run the first thirteen days in one backfill: ABSENT has no run, and REJECTED has an invalid one."""
    for partition in DAYS:
        if partition == REJECTED:
            seal_invalid_run(deployment, partition)
        elif partition != ABSENT:
            seal_run(deployment, partition, **V2)  # of the version that the query file names
    seal_run(deployment, RESTORED, "r2", **V2)
    for customer in ("1", HYPHENATED):
        assert server.add_customer(customer) == "AddDynamicPartitionSuccess"
    backfill = server.launch_backfill([RAW, WAREHOUSE], DAYS)
    assert server.wait_for_backfill(backfill) == "COMPLETED_FAILED"  # Dagster counts materializations
    assert list(server.backfill_runs(backfill).values()) == ["SUCCESS"]


def _hide_and_rerun_days(server: DagsterServer, deployment: LocalDeployment) -> None:
    """Withdraw and demote outside Dagster, rerun a day with an invalid run, and restore one day that was red."""
    seal_invalid_run(deployment, RERUN, "r2")
    rerun = server.launch_backfill([RAW, WAREHOUSE], [RERUN, INVALID_CUSTOMER])
    deployment.ledger.actions.execute(Action.WITHDRAW, [WITHDRAWN], action_request("a1"))
    demoted = [Run(key=DEMOTED, run_id="r1"), Run(key=RESTORED, run_id="r2")]
    demote(deployment.pipeline, demoted, action_request("a2"))
    server.wait_for(lambda: server.check_status(WAREHOUSE, RESTORED, "readable") == "failed")
    restored = [Run(key=RESTORED, run_id="r1")]
    restore(deployment.pipeline, deployment.ledger.states, restored, action_request("a3"))
    server.wait_for_backfill(rerun)


def _cancel_backfill(server: DagsterServer, ledger: Path) -> dict[str, str]:
    """Cancel a backfill of two runs while one of them works and the other one waits in the queue.

    The one that works waits for the ledger until it is cancelled, so that it cannot end before.
    """
    backfill = server.launch_backfill([RAW, WAREHOUSE], [CANCELLED, QUEUED])
    server.wait_for(lambda: _find_process(server, backfill), every=0.05)
    with _locked(ledger):
        runs = server.backfill_runs(backfill)
        assert sorted(runs.values()) == ["QUEUED", "STARTED"]
        server.cancel_backfill(backfill)
        server.wait_for(lambda: "STARTED" not in server.backfill_runs(backfill).values())
    assert server.wait_for_backfill(backfill) == "CANCELED"
    return runs


@contextmanager
def _locked(ledger: Path) -> Iterator[None]:
    """Let every other writer of the ledger's file wait."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def _kill_run(server: DagsterServer, deployment: LocalDeployment) -> str:
    """Kill the process of a run once it has registered a second sealed run."""
    seal_run(deployment, KILLED, "r2", count=5_000, **V2)
    backfill = server.launch_backfill([RAW, WAREHOUSE], [KILLED])
    run_id, process = server.wait_for(lambda: _find_process(server, backfill), every=0.05)
    server.wait_for(lambda: len(deployment.ledger.runs.registered(KILLED)) == 2, every=0.05)
    os.kill(process, signal.SIGKILL)
    assert deployment.ledger.states.get(KILLED).attempt_count == 1, "the run was judged before it was killed"
    return run_id


def _find_process(server: DagsterServer, backfill: str) -> tuple[str, int] | None:
    """The only run of the backfill and the process that executes it, as its log names that."""
    for run_id in server.backfill_runs(backfill):
        for message in server.find_messages(run_id, "Executing steps in process"):
            found = re.search(r"pid: ([0-9]+)", message)
            assert found
            return run_id, int(found[1])
    return None
