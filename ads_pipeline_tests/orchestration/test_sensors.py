"""What sensors ask for: everything that is due, nothing else, once; and again when a run died."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.freshness import AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.errors import LeaseLost, LedgerUnavailable
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.orchestration.partitions import CUSTOMERS, define_partitions
from ads_pipeline.orchestration.resources import open_run_resources as rooms_for
from ads_pipeline.orchestration.run_completion import event_origin
from ads_pipeline.orchestration.run_requests import END, REQUEST_TAG, START, RequestedPartitions, run_requests
from ads_pipeline.orchestration.sensors import LOAD_GRACE_PERIOD
from ads_pipeline.pipeline.loading import Loader, LoadResult
from ads_pipeline.pipeline.registration import register_runs
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, open_location
from ads_pipeline_tests.pipeline.builders import QUERY, key, seal_run, visible_runs


@pytest.fixture
def clock() -> FakeClock:
    """February 2026, to which January's partitions are recent."""
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    return clock


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark, clock=clock) as opened:
        yield opened


def tick(location: Location, name: str = "raw_arrivals") -> dg.SensorResult:
    """One evaluation; customers that it asks for are added, as the daemon does."""
    sensor = location.defs.resolve_sensor_def(name)
    defined: Any = location.defs.resources
    with (
        dg.build_resources({"sensor_resources": defined["sensor_resources"]}) as resources,
        dg.build_sensor_context(instance=location.instance, definitions=location.defs) as context,
    ):
        result = sensor(context, sensor_resources=resources.sensor_resources)
    assert isinstance(result, dg.SensorResult)
    for request in result.dynamic_partitions_requests or []:
        location.instance.add_dynamic_partitions(CUSTOMERS, list(request.partition_keys))
    return result


def asked(result: dg.SensorResult) -> list[str]:
    tags = [dict(request.tags or {}) for request in result.run_requests or []]
    return [f"{each[START]}..{each[END]}" for each in tags]


def carry_out(location: Location, result: dg.SensorResult) -> None:
    """Run what was asked for, here."""
    for request in result.run_requests or []:
        start, end = (_parsed(request.tags[tag]) for tag in (START, END))
        location.run([start, end], request.asset_selection or (), tags=request.tags)


def _parsed(name: str) -> PartitionKey:
    customer, day = name.split("|")
    return key(int(customer), int(day[-2:]))


@pytest.mark.invariant("O1", "O2")
def test_what_was_sealed_is_run_once(location: Location) -> None:
    """New customers on the first tick, exactly the arrivals on the second, nothing on the third; a late seal with an
    older name is found all the same."""
    for partition in (key(1, 1), key(1, 2), key(2, 2)):
        seal_run(location.deployment, partition, "z-newer")
    assert asked(tick(location)) == []
    second = tick(location)
    assert asked(second) == ["1|2026-01-01..1|2026-01-01", "1|2026-01-02..2|2026-01-02"]
    assert [request.asset_selection for request in second.run_requests or []] == [[RAW, WAREHOUSE]] * 2
    carry_out(location, second)
    assert asked(tick(location)) == []
    seal_run(location.deployment, key(1, 1), "a-older")
    carry_out(location, tick(location))
    assert visible_runs(location.deployment) == {key(1, 1): "a-older", key(1, 2): "z-newer", key(2, 2): "z-newer"}
    assert location.deployment.ledger.state(key(1, 1)).attempt_count == 2
    assert asked(tick(location)) == []


@pytest.mark.invariant("O1")
def test_a_tick_that_was_lost_is_asked_again_under_the_same_key(location: Location) -> None:
    """Nothing came of the first tick's requests: the next makes the same ones, so that Dagster runs them once."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    first, second = tick(location), tick(location)
    keys = [[request.run_key for request in each.run_requests or []] for each in (first, second)]
    assert keys[0] == keys[1] != []


def test_a_run_at_work_is_not_doubled_and_a_dead_one_is_tried_again_later(location: Location) -> None:
    """While a run is unfinished its partitions are left to it; after its death the key changes and the wait grows."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    partitions = define_partitions(location.settings.google_apis.start_date)
    due = RequestedPartitions(query_name=QUERY, assets=(RAW, WAREHOUSE), reasons={key(1): "r1"})
    (request,) = run_requests(location.instance, partitions, due, now=datetime.now(UTC))
    job = location.defs.resolve_implicit_global_asset_job_def()
    run = location.instance.create_run_for_job(job, tags=dict(request.tags), asset_selection=frozenset([RAW]))
    assert run_requests(location.instance, partitions, due, now=datetime.now(UTC)) == []
    location.instance.report_run_failed(run)
    assert run_requests(location.instance, partitions, due, now=datetime.now(UTC)) == []
    later = datetime.now(UTC) + timedelta(minutes=3)
    (again,) = run_requests(location.instance, partitions, due, now=later)
    assert again.run_key != request.run_key
    assert again.tags[REQUEST_TAG] == request.tags[REQUEST_TAG]


def test_partitions_of_somebody_elses_run_are_left_to_it(location: Location) -> None:
    """An operator's unfinished backfill is at work on them: nothing is asked for until it has ended."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    job = location.defs.resolve_implicit_global_asset_job_def()
    tags = {START: key(1).dagster_key, END: key(1).dagster_key}
    theirs = location.instance.create_run_for_job(job, tags=tags, asset_selection=frozenset([RAW]))
    assert asked(tick(location)) == []
    location.instance.report_run_failed(theirs)
    assert asked(tick(location)) == ["1|2026-01-01..1|2026-01-01"]


def test_ranges_hold_nothing_but_what_is_due(location: Location) -> None:
    """Whatever the pattern of arrivals, the requested ranges cover each of them once and no other partition."""
    location.add_customers(1, 2, 3, 4)
    wanted = [key(c, d) for c, d in ((1, 1), (1, 2), (2, 2), (4, 1), (4, 3), (3, 5), (1, 5))]
    partitions = define_partitions(location.settings.google_apis.start_date)
    due = RequestedPartitions(query_name=QUERY, assets=(RAW,), reasons=dict.fromkeys(wanted, "r1"))
    requests = run_requests(location.instance, partitions, due, now=datetime.now(UTC))
    covered = [
        key(customer, day)
        for request in requests
        for customer in _span(request.tags, 0)
        for day in _span(request.tags, 1)
    ]
    assert sorted(covered) == sorted(wanted)


def _span(tags: Mapping[str, str], part: int) -> range:
    ends = [int(tags[tag].split("|")[part][-2:]) for tag in (START, END)]
    return range(ends[0], ends[1] + 1)


def test_accepted_and_unloaded_partitions_are_loaded(
    location: Location, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A success that readers are not pointed at is asked for, of the warehouse alone, once it has settled."""
    monkeypatch.setattr("ads_pipeline.orchestration.sensors.LOOKBACK", timedelta(days=40_000))
    location.add_customers(1, 2)
    runs = [seal_run(location.deployment, key(1)), seal_run(location.deployment, key(2))]
    location.deployment.pipeline.judge_and_load(runs[:1])
    location.deployment.pipeline.validation.judge(runs[1:])
    clock.now = location.deployment.ledger.state(key(2)).updated_at or clock.now
    assert asked(tick(location, "states_to_load")) == []
    clock.tick(2 * LOAD_GRACE_PERIOD)
    result = tick(location, "states_to_load")
    assert asked(result) == ["2|2026-01-01..2|2026-01-01"]
    assert [request.asset_selection for request in result.run_requests or []] == [[WAREHOUSE]]
    carry_out(location, result)
    assert visible_runs(location.deployment) == {key(1): "r1", key(2): "r1"}


def test_a_query_that_left_the_query_file_is_told_and_not_lost(
    location: Location, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its runs stay where they are and are named; the other queries' arrivals are run."""
    gone = seal_run(location.deployment, key(1, 1, query_name="gone_daily"))
    seal_run(location.deployment, key(1))
    tick(location)
    assert (
        "1 partitions have sealed runs but no asset: their query is not in the query file" in capfd.readouterr().err
    )
    assert asked(tick(location)) == ["1|2026-01-01..1|2026-01-01"]
    assert location.deployment.raw.verify(gone)


def test_a_later_start_date_loses_nothing(
    tmp_path: Path, spark: SparkSession, clock: FakeClock, capfd: pytest.CaptureFixture[str]
) -> None:
    """What was loaded before the new start date stays readable; what is sealed there now is named and left alone."""
    with open_location(tmp_path / "home", spark, clock=clock) as before:
        before.deployment.pipeline.judge_and_load([seal_run(before.deployment, key(1, 1))])
    with open_location(tmp_path / "home", spark, clock=clock, start_date=date(2026, 1, 2)) as after:
        after.add_customers(1)
        seal_run(after.deployment, key(1, 1), "r2"), seal_run(after.deployment, key(1, 2))
        assert asked(tick(after)) == ["1|2026-01-02..1|2026-01-02"]
        assert f"before the start date 2026-01-02. Their data is kept. First: {key(1, 1)}" in capfd.readouterr().err
        assert visible_runs(after.deployment) == {key(1, 1): "r1"}


@pytest.mark.invariant("O1")
def test_an_arrival_while_its_partition_is_being_loaded_is_not_lost(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer run is sealed between the verdict and the load of the older: the next tick asks for it, and each run
    has one verdict."""
    location.add_customers(1)
    seal_run(location.deployment, key(1), "r1")
    load = Loader.load

    def interrupted(self: Loader, keys: Iterable[PartitionKey]) -> LoadResult:
        seal_run(location.deployment, key(1), "r2")
        return load(self, keys)

    with monkeypatch.context() as patch:
        patch.setattr(Loader, "load", interrupted)
        carry_out(location, tick(location))
    assert visible_runs(location.deployment) == {key(1): "r1"}
    carry_out(location, tick(location))
    assert visible_runs(location.deployment) == {key(1): "r2"}
    assert [attempt.run.run_id for attempt in location.deployment.ledger.attempts(key(1))] == ["r1", "r2"]
    assert asked(tick(location)) == []


def created(location: Location, *keys: PartitionKey) -> dg.DagsterRun:
    """A run for the range of these partitions that nobody has started."""
    tags = {START: keys[0].dagster_key, END: keys[-1].dagster_key}
    job = location.defs.resolve_implicit_global_asset_job_def()
    return location.instance.create_run_for_job(job, tags=tags, asset_selection=frozenset([RAW, WAREHOUSE]))


def die(location: Location, *keys: PartitionKey) -> dg.DagsterRun:
    """A run that began with these partitions, registered what is sealed of them, and was never heard of again."""
    dead = created(location, *keys)
    with rooms_for(location.settings, event_origin(dead)) as rooms:
        rooms.claim(keys)
        register_runs(rooms.source.collect(keys), raw=rooms.raw, ledger=rooms.ledger)
    return dead


@pytest.mark.parametrize(
    ("end", "status", "outcome"),
    [
        (dg.DagsterInstance.report_run_failed, RunStatus.FAILED, AttemptOutcome.FAILED),
        (dg.DagsterInstance.report_run_canceled, RunStatus.CANCELLED, AttemptOutcome.CANCELLED),
    ],
)
def test_what_a_dead_run_left_is_told_and_counted_once(
    location: Location, capfd: pytest.CaptureFixture[str], end: Any, status: RunStatus, outcome: AttemptOutcome
) -> None:
    """A run that died ends in the log of events too: its sealed run counts as tried, is named, and no state moved."""
    location.add_customers(1, 2)
    run = seal_run(location.deployment, key(1))
    dead = die(location, key(1), key(2))
    ledger = location.deployment.ledger
    tick(location, "run_completion")
    assert ledger.partition_statuses("raw", [key(1)])[key(1)] is None, (
        "ended while Dagster says that it may yet be at work"
    )
    end(location.instance, dead)
    tick(location, "run_completion")
    assert f"left 1 sealed runs without a verdict. First: {run.key}" in capfd.readouterr().err
    found = ledger.partition_statuses("raw", [key(1), key(2)])
    tried = found[key(1)]
    assert tried is not None
    assert (tried.last_attempt_run_id, tried.last_attempt_outcome) == (run.run_id, outcome)
    assert found[key(2)] is None, "nothing was sealed, so nothing was tried"
    assert ledger.state(key(1)).attempt_count == 0
    with EventReader.opened(location.settings.database_url) as events:
        assert events.get_current_snapshot(dead.run_id).status is status
        told = len(events.fetch(dead.run_id))
        tick(location, "run_completion")
        assert len(events.fetch(dead.run_id)) == told
        assert events.get_lag() == timedelta(0)
    assert ledger.partition_statuses("raw", [key(1)])[key(1)] == tried


def test_a_run_tells_its_story_in_order(location: Location) -> None:
    """A run of Dagster is a run of events, its partitions the steps: begun, sealed, judged, loaded, ended, each once.

    Once it has ended it may not be opened again.
    """
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    result = location.run([key(1)])
    tick(location, "run_completion")
    with EventReader.opened(location.settings.database_url) as events:
        told = [(each.event.event_type, each.event.step_id) for each in events.fetch(result.run_id)]
    step = str(key(1))
    assert told == [
        ("RunStarted", None),
        ("StepStarted", step),
        ("RawSealed", step),
        ("VerdictAccepted", step),
        ("PartitionLoaded", step),
        ("RunCompleted", None),
    ]
    assert location.deployment.ledger.lease_holders([key(1)]) == {}
    run = location.instance.get_run_by_id(result.run_id)
    assert run is not None
    with pytest.raises(LeaseLost), rooms_for(location.settings, event_origin(run)):
        pytest.fail("a run was opened that has ended")


def test_a_step_that_is_repeated_tells_nothing_twice(location: Location) -> None:
    """The engine may repeat the steps of a run while it lives: what was told and counted stays as it was."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    run = created(location, key(1))
    told = []
    with rooms_for(location.settings, event_origin(run)) as rooms:
        for _ in range(2):
            begun = rooms.claim([key(1)])
            assert list(begun.granted) == [key(1)]
            register_runs(rooms.source.collect([key(1)]), raw=rooms.raw, ledger=rooms.ledger)
            rooms.pipeline(location.deployment.spark).validation.judge(rooms.ledger.unjudged_runs([key(1)]))
            rooms.pipeline(location.deployment.spark).loader.load([key(1)])
            told.append([each.event.event_type for each in rooms.events.fetch(run.run_id)])
    assert told[0] == told[1] == ["RunStarted", "StepStarted", "RawSealed", "VerdictAccepted", "PartitionLoaded"]
    assert location.deployment.ledger.state(key(1)).attempt_count == 1


def test_a_customer_that_is_none_is_told_and_stops_nobody(location: Location) -> None:
    """Somebody added `a|b` in the UI: it is named with the rule, and the others' arrivals are run."""
    location.instance.add_dynamic_partitions(CUSTOMERS, ["1", "a|b"])
    seal_run(location.deployment, key(1))
    assert asked(tick(location)) == ["1|2026-01-01..1|2026-01-01"]
    seal_run(location.deployment, key(2))
    tick(location)
    assert "2|2026-01-01..2|2026-01-01" in asked(tick(location))


def test_an_outage_is_an_error_of_the_tick(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that cannot be asked makes the tick fail; nobody skips as if nothing were due."""
    seal_run(location.deployment, key(1))
    monkeypatch.setattr("ads_pipeline.ledger.reader.LedgerReader.judged_by_run_between", _broken)
    with pytest.raises(LedgerUnavailable):
        tick(location)


def _broken(*_args: object, **_kwargs: object) -> None:
    raise LedgerUnavailable("the ledger's database is busy or out of reach: no connection")
