"""Run requests of the sensors: every due partition once, and again after a run crashed."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.materialization_status import AttemptOutcome
from ads_pipeline.domain.errors import LeaseLost, LedgerUnavailable, RawUnavailable
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS, define_partitions
from ads_pipeline.orchestration.runs.ended_runs import build_event_origin
from ads_pipeline.orchestration.runs.run_tags import CUSTOMERS_TAG, DAYS_TAG, END, QUERY_TAG, START
from ads_pipeline.orchestration.sensors.earlier_runs import REQUEST_TAG
from ads_pipeline.orchestration.sensors.raw_arrivals import CUSTOMERS_INTERVAL
from ads_pipeline.orchestration.sensors.run_requests import (
    RequestedPartitions,
    build_run_requests,
)
from ads_pipeline.orchestration.sensors.states_to_load import LOAD_GRACE_PERIOD
from ads_pipeline.pipeline.loading import Loader, LoadResult
from ads_pipeline_tests.ledger.builders import FakeClock, open_part
from ads_pipeline_tests.orchestration.builders import (
    RAW,
    WAREHOUSE,
    Location,
    open_location,
    open_resources,
    request_partitions,
)
from ads_pipeline_tests.orchestration.sensors.ticks import (
    crash_run,
    create_run,
    execute_requests,
    requested_ranges,
    tick,
)
from ads_pipeline_tests.pipeline.builders import QUERY, key, seal_run, seal_unknown_version, visible_runs


@pytest.fixture
def clock() -> FakeClock:
    """February 2026, so that partitions of January are recent."""
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    return clock


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark, clock=clock) as opened:
        yield opened


@pytest.mark.invariant("O1", "O2")
def test_sealed_runs_are_requested_once(location: Location) -> None:
    """New customers are added on the first tick and run on the second. A late run with an older name is found too."""
    for partition in (key(1, 1), key(1, 2), key(2, 2)):
        seal_run(location.deployment, partition, "z-newer")
    assert requested_ranges(tick(location)) == []
    second = tick(location)
    assert requested_ranges(second) == ["1|2026-01-01..2|2026-01-02"]
    assert [request.asset_selection for request in second.run_requests or []] == [[RAW, WAREHOUSE]]
    execute_requests(location, second)
    assert requested_ranges(tick(location)) == []
    seal_run(location.deployment, key(1, 1), "a-older")
    execute_requests(location, tick(location))
    assert visible_runs(location.deployment) == {key(1, 1): "a-older", key(1, 2): "z-newer", key(2, 2): "z-newer"}
    assert location.deployment.ledger.states.get(key(1, 1)).attempt_count == 2
    assert requested_ranges(tick(location)) == []


def test_request_names_query_customers_and_days(location: Location, capfd: pytest.CaptureFixture[str]) -> None:
    """In the tags of its run, which the UI lists, and in the log of the tick."""
    location.add_customers(1, 2)
    for customer in (1, 2):
        seal_run(location.deployment, key(customer))
    (request,) = tick(location).run_requests or []
    assert (request.tags[QUERY_TAG], request.tags[CUSTOMERS_TAG], request.tags[DAYS_TAG]) == (
        QUERY,
        "1 to 2",
        "2026-01-01",
    )
    text = f"{QUERY}, customers 1 to 2, days 2026-01-01"
    assert request.tags[REQUEST_TAG].startswith(text)
    assert request.run_key is not None
    assert request.run_key.startswith(text)
    assert f"requests {text}: 2 partitions: sealed runs without a verdict" in capfd.readouterr().err


@pytest.mark.parametrize("leave", [None, "directory", "file"])
def test_tick_fails_without_the_raw_root(location: Location, leave: str | None) -> None:
    """A root that is missing, empty or no directory is not a root without new runs. Before the first use it is."""
    root = Path(location.settings.raw_location)
    assert requested_ranges(tick(location)) == []
    location.add_customers(1)
    location.deployment.pipeline.judge_and_load([seal_run(location.deployment, key(1))])
    assert requested_ranges(tick(location)) == []
    root.rename(root.with_name("unmounted"))
    if leave == "directory":
        root.mkdir()
    elif leave == "file":
        root.touch()
    with pytest.raises(RawUnavailable, match="mount its disk, or correct ADS_PIPELINE_HOME") as caught:
        tick(location)
    assert caught.value.path == str(root)
    assert not location.run([key(1)], [RAW]).success


@pytest.mark.invariant("O1")
def test_lost_tick_is_repeated_with_the_same_run_key(location: Location) -> None:
    """Dagster executes requests with the same run key once."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    first, second = tick(location), tick(location)
    keys = [[request.run_key for request in each.run_requests or []] for each in (first, second)]
    assert keys[0] == keys[1] != []


def test_crashed_run_is_requested_again_after_a_delay(location: Location) -> None:
    """Partitions of an unfinished run are not requested. After a failure the run key changes."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    partitions = define_partitions(Names(), location.settings.google_apis.start_date)
    due = request_partitions({key(1): "r1"})
    (request,) = build_run_requests(location.instance, partitions, due, now=datetime.now(UTC))
    job = location.defs.resolve_implicit_global_asset_job_def()
    run = location.instance.create_run_for_job(
        job, tags=dict(request.tags), run_config=request.run_config, asset_selection=frozenset([RAW, WAREHOUSE])
    )
    assert build_run_requests(location.instance, partitions, due, now=datetime.now(UTC)) == []
    location.instance.report_run_failed(run)
    assert build_run_requests(location.instance, partitions, due, now=datetime.now(UTC)) == []
    later = datetime.now(UTC) + timedelta(minutes=3)
    (again,) = build_run_requests(location.instance, partitions, due, now=later)
    assert again.run_key != request.run_key
    assert again.tags[REQUEST_TAG] == request.tags[REQUEST_TAG]


@pytest.mark.invariant("O1")
def test_partitions_are_requested_after_any_number_of_failures(location: Location) -> None:
    """Each request has a run key that Dagster has not seen. The delay after a failure grows to one hour and stays."""
    location.add_customers(1)
    partitions = define_partitions(Names(), location.settings.google_apis.start_date)
    due = request_partitions({key(1): "r1"})
    run_keys, now = list[str](), datetime.now(UTC)
    for failures in range(45):
        assert failures < 6 or build_requests(location, partitions, due, now + timedelta(minutes=59)) == []
        now += timedelta(minutes=61)
        (request,) = build_requests(location, partitions, due, now)
        assert request.run_key
        run_keys.append(request.run_key)
        fail_request(location, request, now)
    assert len(set(run_keys)) == len(run_keys)


def build_requests(
    location: Location, partitions: dg.MultiPartitionsDefinition, due: RequestedPartitions, now: datetime
) -> list[dg.RunRequest]:
    return build_run_requests(location.instance, partitions, due, now=now)


def fail_request(location: Location, request: dg.RunRequest, now: datetime) -> None:
    """Create the run of a request as Dagster's daemon does, and let it fail at this time."""
    job = location.defs.resolve_implicit_global_asset_job_def()
    tags = {**request.tags, "dagster/run_key": str(request.run_key)}
    run = location.instance.create_run_for_job(
        job, tags=tags, run_config=request.run_config, asset_selection=frozenset([RAW, WAREHOUSE])
    )
    location.instance.report_run_failed(run)
    engine = sa.create_engine(f"sqlite:///{location.deployment.home}/dagster/history/runs.db")
    with engine.begin() as connection:  # the clock of Dagster cannot be set
        update = "UPDATE runs SET end_time = :ended WHERE run_id = :run_id"
        connection.execute(sa.text(update), {"ended": now.timestamp(), "run_id": run.run_id})
    engine.dispose()


@pytest.mark.invariant("O1", "O2")
@pytest.mark.parametrize("age", [200, 5 * 365])
def test_late_run_of_an_old_day_is_requested_within_an_hour(
    tmp_path: Path, spark: SparkSession, clock: FakeClock, age: int
) -> None:
    """Each tick also searches a month of older days. The days of five years are searched in 60 ticks, then again."""
    day = clock.now.date() - timedelta(days=age)
    with open_location(tmp_path / "home", spark, clock=clock, start_date=day) as location:
        seal_run(location.deployment, replace(key(1), logical_date=day))
        found, cursor = list[int](), None
        for number in range(1, 121):
            result = tick(location, cursor=cursor)
            cursor = result.cursor
            found += [number for each in requested_ranges(result) if each == f"1|{day}..1|{day}"]
    assert found[0] <= 60 < found[-1], "requested in the first hour, and as it did not run, in the second again"
    assert all(later - earlier <= 60 for earlier, later in pairwise(found))


def test_partitions_of_an_operators_run_are_not_requested(location: Location) -> None:
    """They are requested after that run has ended."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    job = location.defs.resolve_implicit_global_asset_job_def()
    tags = {START: key(1).dagster_key, END: key(1).dagster_key}
    operators_run = location.instance.create_run_for_job(job, tags=tags, asset_selection=frozenset([RAW]))
    assert requested_ranges(tick(location)) == []
    location.instance.report_run_failed(operators_run)
    assert requested_ranges(tick(location)) == ["1|2026-01-01..1|2026-01-01"]


def test_unloaded_partitions_are_requested(
    location: Location, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loads of unpublished successes are requested after a grace period, for the warehouse asset only."""
    monkeypatch.setattr("ads_pipeline.orchestration.sensors.run_requests.SENSOR_WINDOW", timedelta(days=40_000))
    location.add_customers(1, 2)
    runs = [seal_run(location.deployment, key(1)), seal_run(location.deployment, key(2))]
    location.deployment.pipeline.judge_and_load(runs[:1])
    location.deployment.pipeline.validation.judge(runs[1:])
    clock.now = location.deployment.ledger.states.get(key(2)).updated_at or clock.now
    assert requested_ranges(tick(location, "states_to_load")) == []
    clock.tick(2 * LOAD_GRACE_PERIOD)
    result = tick(location, "states_to_load")
    assert requested_ranges(result) == ["2|2026-01-01..2|2026-01-01"]
    assert [request.asset_selection for request in result.run_requests or []] == [[WAREHOUSE]]
    execute_requests(location, result)
    assert visible_runs(location.deployment) == {key(1): "r1", key(2): "r1"}


def test_runs_of_a_removed_query_are_reported(location: Location, capfd: pytest.CaptureFixture[str]) -> None:
    """Its raw data stays, and runs of the other queries are requested."""
    removed = seal_run(location.deployment, key(1, 1, query_name="gone_daily"))
    seal_run(location.deployment, key(1))
    tick(location)
    assert (
        "the sealed runs of 1 partition have no asset: the query is not in the query file" in capfd.readouterr().err
    )
    assert requested_ranges(tick(location)) == ["1|2026-01-01..1|2026-01-01"]
    assert location.deployment.raw.verify(removed)


def test_later_start_date_loses_no_data(
    tmp_path: Path, spark: SparkSession, clock: FakeClock, capfd: pytest.CaptureFixture[str]
) -> None:
    """Loaded days stay visible; new runs before the start date are reported and not requested."""
    with open_location(tmp_path / "home", spark, clock=clock) as before:
        before.deployment.pipeline.judge_and_load([seal_run(before.deployment, key(1, 1))])
    with open_location(tmp_path / "home", spark, clock=clock, start_date=date(2026, 1, 2)) as after:
        after.add_customers(1)
        seal_run(after.deployment, key(1, 1), "r2"), seal_run(after.deployment, key(1, 2))
        assert requested_ranges(tick(after)) == ["1|2026-01-02..1|2026-01-02"]
        assert f"before the start date 2026-01-02. The data are kept. First: {key(1, 1)}" in capfd.readouterr().err
        assert visible_runs(after.deployment) == {key(1, 1): "r1"}


@pytest.mark.invariant("O1")
def test_run_sealed_during_a_load_is_requested(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next tick requests it, and each run gets one verdict."""
    location.add_customers(1)
    seal_run(location.deployment, key(1), "r1")
    commit = Loader.commit

    def interrupted(self: Loader, *loadable: Any) -> LoadResult:
        seal_run(location.deployment, key(1), "r2")
        return commit(self, *loadable)

    with monkeypatch.context() as patch:
        patch.setattr(Loader, "commit", interrupted)
        execute_requests(location, tick(location))
    assert visible_runs(location.deployment) == {key(1): "r1"}
    execute_requests(location, tick(location))
    assert visible_runs(location.deployment) == {key(1): "r2"}
    assert [attempt.verdict.run.run_id for attempt in location.deployment.ledger.runs.attempts(key(1))] == [
        "r1",
        "r2",
    ]
    assert requested_ranges(tick(location)) == []


@pytest.mark.parametrize(
    ("end", "status", "outcome"),
    [
        (dg.DagsterInstance.report_run_failed, RunStatus.FAILED, AttemptOutcome.FAILED),
        (dg.DagsterInstance.report_run_canceled, RunStatus.CANCELLED, AttemptOutcome.CANCELLED),
    ],
)
def test_crashed_run_is_closed_once(
    location: Location, capfd: pytest.CaptureFixture[str], end: Any, status: RunStatus, outcome: AttemptOutcome
) -> None:
    """Its sealed run counts as one attempt and is reported, and no state changes."""
    location.add_customers(1, 2)
    run = seal_run(location.deployment, key(1))
    crashed = crash_run(location, key(1), key(2))
    ledger = location.deployment.ledger
    tick(location, "run_completion")
    assert ledger.statuses.get_many("raw", [key(1)])[key(1)] is None, (
        "ended while Dagster says that it may yet be at work"
    )
    end(location.instance, crashed)
    tick(location, "run_completion")
    assert f"left 1 sealed runs without a verdict. First: {run.key}" in capfd.readouterr().err
    found = ledger.statuses.get_many("raw", [key(1), key(2)])
    status_row = found[key(1)]
    assert status_row is not None
    assert (status_row.last_attempt_run_id, status_row.last_attempt_outcome) == (run.run_id, outcome)
    assert found[key(2)] is None, "nothing was sealed, so there was no attempt"
    assert ledger.states.get(key(1)).attempt_count == 0
    with open_part(EventReader, location.settings.database_url) as events:
        assert events.get_current_snapshot(crashed.run_id).status is status
        event_count = len(events.fetch(crashed.run_id))
        tick(location, "run_completion")
        assert len(events.fetch(crashed.run_id)) == event_count
        assert events.get_lag() == timedelta(0)
    assert ledger.statuses.get_many("raw", [key(1)])[key(1)] == status_row


def test_events_of_a_run_are_ordered(location: Location) -> None:
    """Each event is emitted once. A finished run cannot be opened again."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    result = location.run([key(1)])
    tick(location, "run_completion")
    with open_part(EventReader, location.settings.database_url) as events:
        events_seen = [(each.event.event_type, each.event.step_id) for each in events.fetch(result.run_id)]
    step = str(key(1))
    assert events_seen == [
        ("RunStarted", None),
        ("StepStarted", step),
        ("RawSealed", step),
        ("VerdictAccepted", step),
        ("PartitionLoaded", step),
        ("RunCompleted", None),
    ]
    assert location.deployment.ledger.leases.holders([key(1)]) == {}
    run = location.instance.get_run_by_id(result.run_id)
    assert run is not None
    with pytest.raises(LeaseLost), open_resources(location, build_event_origin(run)):
        pytest.fail("a run was opened that has ended")


def test_repeated_step_emits_no_event_twice(location: Location) -> None:
    """A retried step changes neither events nor attempts."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    run = create_run(location, key(1))
    events_seen = []
    with open_resources(location, build_event_origin(run)) as resources:
        for _ in range(2):
            claim = resources.claim([key(1)])
            assert list(claim.granted) == [key(1)]
            resources.seals.register(resources.source.land([key(1)]).runs)
            pipeline = resources.pipeline(lambda: location.deployment.spark)
            pipeline.validation.judge(resources.ledger.runs.unjudged([key(1)]))
            pipeline.loader.load([key(1)])
            events_seen.append([each.event.event_type for each in resources.events.fetch(run.run_id)])
    assert (
        events_seen[0]
        == events_seen[1]
        == ["RunStarted", "StepStarted", "RawSealed", "VerdictAccepted", "PartitionLoaded"]
    )
    assert location.deployment.ledger.states.get(key(1)).attempt_count == 1


def test_invalid_customer_does_not_stop_the_sensor(location: Location) -> None:
    """A customer that was added in the UI with an invalid name is ignored."""
    location.instance.add_dynamic_partitions(CUSTOMERS, ["1", "a|b"])
    seal_run(location.deployment, key(1))
    assert requested_ranges(tick(location)) == ["1|2026-01-01..1|2026-01-01"]
    seal_run(location.deployment, key(2))
    tick(location)
    assert requested_ranges(tick(location)) == ["1|2026-01-01..2|2026-01-01"]


def test_outage_fails_the_tick(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick without the ledger fails and does not skip."""
    seal_run(location.deployment, key(1))
    monkeypatch.setattr("ads_pipeline.ledger.state.run_history.RunHistory.judged_by_run", _fail)
    with pytest.raises(LedgerUnavailable):
        tick(location)


def _fail(*_args: object, **_kwargs: object) -> None:
    raise LedgerUnavailable("the ledger's database is busy or out of reach: no connection")


@pytest.mark.invariant("L2", "L4")
def test_run_without_a_contract_is_tried_once(location: Location) -> None:
    """It is registered by one run of Dagster, which judges the others. The later ticks only name it."""
    location.add_customers(1, 2)
    deployment = location.deployment
    stuck, good = seal_unknown_version(deployment, key(1)), seal_run(deployment, key(2))
    execute_requests(location, tick(location))
    assert visible_runs(deployment) == {key(2): "r1"}
    assert deployment.ledger.runs.unjudged([key(1), key(2)]) == [stuck]
    assert requested_ranges(tick(location)) == []
    newer = seal_run(deployment, key(1), "r2")
    execute_requests(location, tick(location))
    assert visible_runs(deployment) == {key(1): newer.run_id, key(2): good.run_id}


def test_customers_of_the_ledger_are_added_to_a_new_instance(location: Location, clock: FakeClock) -> None:
    """A ledger that was copied has customers without a new run. They are searched every ten minutes."""
    location.add_customers(1, 2)
    for customer in (1, 2):
        seal_run(location.deployment, key(customer))
    execute_requests(location, tick(location))
    for name in ("1", "2"):
        location.instance.delete_dynamic_partition(CUSTOMERS, name)
    assert tick(location).dynamic_partitions_requests == []
    clock.now += CUSTOMERS_INTERVAL
    tick(location)
    assert set(location.instance.get_dynamic_partitions(CUSTOMERS)) == {"1", "2"}
    clock.now += CUSTOMERS_INTERVAL
    assert tick(location).dynamic_partitions_requests in (None, [])
