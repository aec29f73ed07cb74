"""Everything dies at once, as when a machine is lost: what was at work is found, ended and run again."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.doctor import dagster_records
from ads_pipeline.domain.freshness import AttemptOutcome
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.run_completion import LEASE_EXPIRED
from ads_pipeline_tests.ledger.control.test_late_writes import until
from ads_pipeline_tests.ledger.status.finished_attempts import read_attempts
from ads_pipeline_tests.orchestration.dagster_server import SECONDS_TO_FINISH, served
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, seal_run, visible_runs

RAW, WAREHOUSE = ("raw", "campaign_daily"), ("warehouse", "campaign_daily")
ENVIRONMENT = {"ADS_PIPELINE_LEASE_SECONDS": "10"}


@pytest.fixture
def house(tmp_path: Path, spark: SparkSession) -> Iterator[LocalDeployment]:
    home = tmp_path / "home"
    home.mkdir()
    with Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger:
        yield LocalDeployment(home=home, spark=spark, ledger=ledger)


@pytest.mark.invariant("O1", "O3", "P12")
@pytest.mark.timeout(400)
def test_what_a_lost_machine_was_at_work_on_is_run_again(house: LocalDeployment) -> None:
    """Run worker, code server, daemon and webserver are killed while the run holds its partition. Started again,
    Dagster takes the run to be at work; once its lease has expired it is ended, counts once as tried without a
    verdict, and its partition is run again and loaded."""
    yesterday = datetime.now(UTC).date() - timedelta(days=1)  # so that raw_arrivals looks so far back
    partition, ledger = replace(key(1), logical_date=yesterday), house.ledger
    seal_run(house, partition, count=5_000)
    with served(house.home, ENVIRONMENT) as instance:
        # raw_arrivals, which sees the sealed run as well, may have been quicker to add its customer.
        assert instance.add_customer("1") in {"AddDynamicPartitionSuccess", "DuplicateDynamicPartitionError"}
        instance.launch([RAW, WAREHOUSE], [partition])
        until(lambda: ledger.runs(partition) or None, SECONDS_TO_FINISH)
        dead = ledger.lease_holders([partition])[partition].run_id
    until(lambda: True if not alive(house.home) else None)
    assert ledger.state(partition).attempt_count == 0, "it was killed too late to be killed at work"
    assert dagster_records.read_statuses(house.home, None, [dead]) == {dead: "STARTED"}

    with served(house.home, ENVIRONMENT) as instance:
        instance.wait(lambda: True if instance.status(dead) == "FAILURE" else None)
        instance.wait(lambda: visible_runs(house) or None)
        assert visible_runs(house) == {partition: "r1"}
    assert ledger.state(partition).attempt_count == 1
    finishes = read_attempts(ledger._engine)[RAW[0], partition]
    assert [each.outcome for each in finishes] == [AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED]
    with EventReader.opened(f"sqlite:///{house.home / 'ledger.db'}") as events:
        assert events.fetch(dead)[-1].event.event_data == {"why": LEASE_EXPIRED}


def alive(home: Path) -> list[str]:
    """The processes that were started for this home."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile, or is somebody else's
            if f"ADS_PIPELINE_HOME={home}".encode() in environment.read_bytes().split(b"\0"):
                found.append(environment.parent.name)
    return found
