"""Run requests of the sensor `retries_due`, by the retry policy or by an operator's request."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import dagster as dg
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from ads_pipeline.domain.fetching.fetch_results import Backfill, FailedFetch, SkippedFetch
from ads_pipeline.domain.fetching.retry_policy import RETRY_POLICY as OPERATOR
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.sql import database
from ads_pipeline.orchestration.resources import SensorResources
from ads_pipeline.orchestration.runs.run_tags import END, START
from ads_pipeline.orchestration.sensors.run_requests import PRIORITY_TAG
from ads_pipeline_tests.ledger.builders import FakeClock, action_request
from ads_pipeline_tests.orchestration.builders import Location, dagster_keys, open_location
from ads_pipeline_tests.orchestration.sensors import ticks
from ads_pipeline_tests.pipeline.builders import FACTS, key, rows_for, seal_invalid_run, visible_runs


class FetchingSource:
    """A source whose first run of each partition is invalid and whose later runs are valid."""

    fetches = True

    def __init__(self, resources: SensorResources, fetched: Counter[PartitionKey]) -> None:
        self._raw, self._sealed, self._fetched = resources.raw, resources.sealed_runs, fetched

    def land(self, partitions: Sequence[PartitionKey], backfill: Backfill | None = None) -> Landed:  # noqa: ARG002
        for partition in partitions:
            self._fetched[partition] += 1
            run = Run(key=partition, run_id=f"f{self._fetched[partition]}")
            wrong = {"cost_micros": -1} if self._fetched[partition] == 1 else {}
            self._raw.land(run, rows_for(partition, 2, **wrong), FACTS)
        return self._sealed.land(partitions)


@pytest.fixture
def clock() -> FakeClock:
    """February 2026, so that the last days of January are fresh."""
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    return clock


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> Iterator[Location]:
    source_factory = partial(FetchingSource, fetched=Counter())
    with open_location(tmp_path / "home", spark, clock=clock, source_factory=source_factory) as opened:
        opened.add_customers(1, 2)
        yield opened


def tick(location: Location) -> dg.SensorResult:
    return ticks.tick(location, "retries_due")


def requested_ranges(result: dg.SensorResult) -> list[tuple[str, str, str]]:
    tags = [dict(request.tags or {}) for request in result.run_requests or []]
    return [(each[START], each[END], each[PRIORITY_TAG]) for each in tags]


def make_due(location: Location) -> None:
    """Make all scheduled retries due. The clock of the database cannot be advanced."""
    engine = database.open_engine(location.settings.database_url)
    changed = "UPDATE retry_queue SET due_at = strftime('%Y-%m-%dT%H:%M:%f000Z', failed_at, '+0.002 seconds')"
    database.transact(engine, lambda c: c.exec_driver_sql(changed))
    engine.dispose()


@pytest.mark.invariant("S13")
def test_failed_partition_is_requested_when_it_is_due(location: Location) -> None:
    """After its delay it is requeued by the policy and requested until it has run."""
    backfill, fresh = key(1, 5), key(2, 30)
    for partition in (backfill, fresh):
        location.run([partition])
    ledger = location.deployment.ledger
    assert [state.status for state in ledger.states.get_many([backfill, fresh]).values()] == [Status.FAILED] * 2
    assert requested_ranges(tick(location)) == []
    assert ledger.states.get(backfill).status is Status.FAILED
    make_due(location)
    first, second = tick(location), tick(location)
    assert (
        requested_ranges(first)
        == requested_ranges(second)
        == [
            (*dagster_keys(fresh), *dagster_keys(fresh), "1"),
            (*dagster_keys(backfill), *dagster_keys(backfill), "0"),
        ]
    )
    assert [each.run_key for each in first.run_requests or []] == [each.run_key for each in second.run_requests or []]
    (act,) = ledger.audit.of_partition(backfill)
    assert (act.action, act.operator, ledger.states.get(backfill).status) == ("requeue", OPERATOR, Status.PENDING)
    for request in first.run_requests or []:
        partition = fresh if request.tags[START] == fresh.dagster_key else backfill
        location.run([partition], request.asset_selection or (), tags=request.tags, run_config=request.run_config)
    assert visible_runs(location.deployment) == {backfill: "f2", fresh: "f2"}
    assert ledger.states.get(backfill).attempt_count == 2
    assert requested_ranges(tick(location)) == []


def test_reprocess_request_is_requested_at_once(location: Location) -> None:
    """Readers keep the previous run until the new one is loaded."""
    location.run([key(1, 5)])
    location.run([key(1, 5)])
    assert visible_runs(location.deployment) == {key(1, 5): "f2"}
    ledger = location.deployment.ledger
    ledger.actions.execute(Action.REPROCESS, [key(1, 5)], action_request())
    (request,) = tick(location).run_requests or []
    assert ledger.states.get(key(1, 5)).status is Status.SUCCESS
    location.run([key(1, 5)], request.asset_selection or (), tags=request.tags, run_config=request.run_config)
    assert visible_runs(location.deployment) == {key(1, 5): "f3"}
    assert requested_ranges(tick(location)) == []


def test_external_source_only_schedules_failures(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> None:
    """Nothing is requeued, and the skip message names the commands for the extractors."""
    with open_location(tmp_path / "home", spark, clock=clock) as location:
        location.add_customers(1)
        seal_invalid_run(location.deployment, key(1, 5))
        location.run([key(1, 5)])
        result = tick(location)
        assert "New failures with a scheduled retry: 1." in str(result.skip_reason)
        assert "ads-pipeline state due" in str(result.skip_reason)
        make_due(location)
        assert requested_ranges(tick(location)) == []
        assert location.deployment.ledger.states.get(key(1, 5)).status is Status.FAILED
        (scheduled,) = location.deployment.ledger.retry_queue.find_scheduled([key(1, 5)]).values()
        assert scheduled.due_at is not None
        assert scheduled.due_at - scheduled.failed_at < timedelta(minutes=1)


def test_run_and_sensor_open_one_engine_each(location: Location, opened_engines: list[sa.Engine]) -> None:
    """All resources of a run share one engine on the ledger, and so do those of a sensor that executes actions."""
    location.run([key(1)])
    assert len(opened_engines) == 1
    tick(location)
    assert len(opened_engines) == 2


class PartlyFailingSource:
    """A source that fetches customer 1, has to wait for customer 2 and does not ask for customer 3."""

    fetches = True

    def __init__(self, resources: SensorResources) -> None:
        self._resources = resources

    def land(self, partitions: Sequence[PartitionKey], backfill: Backfill | None = None) -> Landed:  # noqa: ARG002
        fetched, waiting, skipped = partitions
        self._resources.raw.land(Run(key=fetched, run_id="f1"), rows_for(fetched, 2), FACTS)
        return Landed(
            runs=self._resources.sealed_runs.land([fetched]).runs,
            failed=(
                FailedFetch(
                    key=waiting, error_class="quota_exhausted", error_message="no operations left", wait_until=LATER
                ),
            ),
            skipped=(SkippedFetch(key=skipped, reason="the account's day is not closed", until=LATER),),
        )


LATER = datetime(2099, 1, 1, tzinfo=UTC)


def test_raw_asset_records_failed_and_skipped_fetches(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> None:
    """The run succeeds; a failed fetch is no attempt at a verdict; a skipped one leaves only an event."""
    fetched, waiting, skipped = key(1, 30), key(2, 30), key(3, 30)
    with open_location(tmp_path / "home", spark, clock=clock, source_factory=PartlyFailingSource) as location:
        location.add_customers(1, 2, 3)
        result = location.run([fetched, skipped])
        assert result.success
        ledger = location.deployment.ledger
        assert visible_runs(location.deployment) == {fetched: "f1"}
        states = ledger.states.get_many([fetched, waiting, skipped])
        assert [(each.recorded_status, each.attempt_count) for each in states.values()] == [
            (Status.SUCCESS, 1),
            (Status.PENDING, 0),
            (None, 0),
        ]
        (scheduled,) = ledger.retry_queue.find_scheduled([waiting, skipped]).values()
        assert (scheduled.key, scheduled.due_at, scheduled.failures) == (waiting, LATER, 0)
        events = [each.event for each in ledger.events.fetch(result.run_id)]
        assert {each.event_type: each.event_data for each in events if each.step_id == str(skipped)}[
            "StepSkipped"
        ] == {
            "why": "the account's day is not closed",
            "until": LATER.isoformat(),
        }
        assert [each.event_type for each in events if each.step_id == str(waiting)] == ["StepStarted", "FetchFailed"]
