"""What the sensor of retries asks for: what is due by the policy or by order, where it can be fetched."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.orchestration.retry_sensor import OPERATOR
from ads_pipeline.orchestration.run_requests import END, PRIORITY_TAG, START
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline_tests.ledger.builders import FakeClock, action_request
from ads_pipeline_tests.orchestration.builders import Location, dagster_keys, open_location
from ads_pipeline_tests.pipeline.builders import FACTS, key, rows_for, seal_invalid_run, visible_runs


class Fetching:
    """An extractor whose first report of each day is bad, and whose next ones are good."""

    can_fetch = True

    def __init__(self, raw: RawRuns, ledger: LedgerReader, fetched: Counter[PartitionKey]) -> None:
        self._raw, self._sealed, self._fetched = raw, SealedRuns(raw=raw, ledger=ledger), fetched

    def collect(self, partitions: Sequence[PartitionKey]) -> list[Run]:
        for partition in partitions:
            self._fetched[partition] += 1
            run = Run(key=partition, run_id=f"f{self._fetched[partition]}")
            wrong = {"cost_micros": -1} if self._fetched[partition] == 1 else {}
            self._raw.land(run, rows_for(partition, 2, **wrong), FACTS)
        return self._sealed.collect(partitions)


@pytest.fixture
def clock() -> FakeClock:
    """February 2026, to which January's last days are fresh."""
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    return clock


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> Iterator[Location]:
    source_factory = partial(Fetching, fetched=Counter())
    with open_location(tmp_path / "home", spark, clock=clock, source_factory=source_factory) as opened:
        opened.add_customers(1, 2)
        yield opened


def tick(location: Location) -> dg.SensorResult:
    sensor = location.defs.resolve_sensor_def("retries_due")
    defined: Any = location.defs.resources
    wanted = {name: defined[name] for name in ("sensor_resources", "control_actions")}
    with (
        dg.build_resources(wanted) as resources,
        dg.build_sensor_context(instance=location.instance, definitions=location.defs) as context,
    ):
        result = sensor(
            context, sensor_resources=resources.sensor_resources, control_actions=resources.control_actions
        )
    assert isinstance(result, dg.SensorResult)
    return result


def asked(result: dg.SensorResult) -> list[tuple[str, str, str]]:
    tags = [dict(request.tags or {}) for request in result.run_requests or []]
    return [(each[START], each[END], each[PRIORITY_TAG]) for each in tags]


def make_due(location: Location) -> None:
    """The policy's delays pass: only the store's clock counts, and it cannot be sent ahead."""
    engine = database.open_engine(location.settings.database_url)
    changed = "UPDATE retry_schedule SET due_at = strftime('%Y-%m-%dT%H:%M:%f001Z', failed_at)"
    database.transact(engine, lambda c: c.exec_driver_sql(changed))
    engine.dispose()


@pytest.mark.invariant("S13")
def test_what_failed_is_fetched_again_when_it_is_due(location: Location) -> None:
    """Not before its delay; then it is put back to pending by the policy, asked for until it ran, and then not."""
    old, fresh = key(1, 5), key(2, 30)
    for partition in (old, fresh):
        location.run([partition])
    ledger = location.deployment.ledger
    assert [state.status for state in ledger.states([old, fresh]).values()] == [Status.FAILED] * 2
    assert asked(tick(location)) == []
    assert ledger.state(old).status is Status.FAILED
    make_due(location)
    first, second = tick(location), tick(location)
    assert (
        asked(first)
        == asked(second)
        == [(*dagster_keys(fresh), *dagster_keys(fresh), "1"), (*dagster_keys(old), *dagster_keys(old), "0")]
    )
    assert [each.run_key for each in first.run_requests or []] == [each.run_key for each in second.run_requests or []]
    (act,) = ledger.partition_actions(old)
    assert (act.action, act.operator, ledger.state(old).status) == ("requeue", OPERATOR, Status.PENDING)
    for request in first.run_requests or []:
        partition = fresh if request.tags[START] == fresh.dagster_key else old
        location.run([partition], request.asset_selection or (), tags=request.tags)
    assert visible_runs(location.deployment) == {old: "f2", fresh: "f2"}
    assert ledger.state(old).attempt_count == 2
    assert asked(tick(location)) == []


def test_what_an_operator_asks_for_is_fetched(location: Location) -> None:
    """A success that is to be reprocessed is asked for at once, and readers keep what they have until it came."""
    location.run([key(1, 5)])
    location.run([key(1, 5)])
    assert visible_runs(location.deployment) == {key(1, 5): "f2"}
    ledger = location.deployment.ledger
    ledger.execute(Action.REPROCESS, [key(1, 5)], action_request())
    (request,) = tick(location).run_requests or []
    assert ledger.state(key(1, 5)).status is Status.SUCCESS
    location.run([key(1, 5)], request.asset_selection or (), tags=request.tags)
    assert visible_runs(location.deployment) == {key(1, 5): "f3"}
    assert asked(tick(location)) == []


def test_where_nothing_is_fetched_the_failures_are_only_planned(
    tmp_path: Path, spark: SparkSession, clock: FakeClock
) -> None:
    """Runs that others seal cannot be asked of Dagster: nothing is requeued, and the tick says whose turn it is."""
    with open_location(tmp_path / "home", spark, clock=clock) as location:
        location.add_customers(1)
        seal_invalid_run(location.deployment, key(1, 5))
        location.run([key(1, 5)])
        told = tick(location)
        assert "scheduled 1 failures" in str(told.skip_reason)
        assert "ads-pipeline state due" in str(told.skip_reason)
        make_due(location)
        assert asked(tick(location)) == []
        assert location.deployment.ledger.state(key(1, 5)).status is Status.FAILED
        (planned,) = location.deployment.ledger.retry_queue.find_scheduled([key(1, 5)]).values()
        assert planned.due_at is not None
        assert planned.due_at - planned.failed_at < timedelta(minutes=1)
