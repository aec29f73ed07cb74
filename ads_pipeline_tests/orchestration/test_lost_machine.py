"""A machine is lost while a run works: the run is closed and its partition is run again."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.materialization_status import AttemptOutcome
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.doctor import dagster_records
from ads_pipeline.orchestration.runs.ended_runs import LEASE_EXPIRED
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.ledger.status.finished_attempts import read_attempts
from ads_pipeline_tests.orchestration.dagster_server import dagster_server
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, seal_run, visible_runs
from ads_pipeline_tests.polling import wait_for

NO_SPARK = cast("SparkSession", None)  # only Dagster's processes judge and load
RAW, WAREHOUSE = ("raw", "campaign_daily"), ("warehouse", "campaign_daily")
ENVIRONMENT = {"ADS_PIPELINE_LEASE_SECONDS": "10"}


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[LocalDeployment]:
    home = tmp_path / "home"
    home.mkdir()
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger:
        yield LocalDeployment(home=home, spark=NO_SPARK, ledger=ledger)


@pytest.mark.invariant("O1", "O3", "P12")
@pytest.mark.timeout(1100)
def test_partition_of_a_lost_machine_is_run_again(deployment: LocalDeployment) -> None:
    """All processes of Dagster are killed while a run holds its partition. After a restart Dagster shows the run as
    started. Once its lease has expired, the run is closed, counts as one failed attempt without a verdict, and its
    partition is run again and loaded."""
    yesterday = datetime.now(UTC).date() - timedelta(days=1)  # within the window of raw_arrivals
    partition, ledger = replace(key(1), logical_date=yesterday), deployment.ledger
    with dagster_server(deployment.home, ENVIRONMENT) as server:
        server.stop_sensor("raw_arrivals")  # a run that it requests and that is lost too would delay the next one
        seal_run(deployment, partition, count=5_000)
        assert server.add_customer("1") == "AddDynamicPartitionSuccess"
        server.launch_backfill([RAW, WAREHOUSE], [partition])
        server.wait_for(lambda: ledger.runs.registered(partition), every=0.05)
        lost_run = ledger.leases.holders([partition])[partition].engine_run_id
    wait_for(lambda: not living_processes(deployment.home))
    assert ledger.states.get(partition).attempt_count == 0, "the run had finished before it was killed"
    assert dagster_records.read_statuses(deployment.home, None, [lost_run]) == {lost_run: "STARTED"}

    with dagster_server(deployment.home, ENVIRONMENT | {"ADS_PIPELINE_ARRIVAL_SECONDS": "5"}) as server:
        server.start_sensor("raw_arrivals")
        server.wait_for(lambda: server.run_status(lost_run) == "FAILURE")
        server.wait_for(lambda: visible_runs(deployment))
        assert visible_runs(deployment) == {partition: "r1"}
    assert ledger.states.get(partition).attempt_count == 1
    attempts = read_attempts(ledger.engine)[RAW[0], partition]
    assert [each.outcome for each in attempts] == [AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED]
    with open_part(EventReader, f"sqlite:///{deployment.home / 'ledger.db'}") as events:
        assert events.fetch(lost_run)[-1].event.event_data == {"why": LEASE_EXPIRED}


def living_processes(home: Path) -> list[str]:
    """The processes that were started for this home."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has ended, or belongs to another user
            if f"ADS_PIPELINE_HOME={home}".encode() in environment.read_bytes().split(b"\0"):
                found.append(environment.parent.name)
    return found
