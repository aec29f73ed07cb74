"""Runs in Dagster that never started, or whose tags and configuration cannot be read, hold nothing back."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.storage.runs.schema import RunsTable
from dagster._core.test_utils import create_run_for_test
from pyspark.sql import SparkSession

from ads_pipeline.orchestration.runs.due_partitions import RESOURCE
from ads_pipeline.orchestration.runs.run_tags import END, START
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, open_location
from ads_pipeline_tests.orchestration.sensors.ticks import requested_ranges, tick
from ads_pipeline_tests.pipeline.builders import key, seal_run

RANGE = {START: key(1, 1).dagster_key, END: key(1, 1).dagster_key}


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    return clock


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, clock: FakeClock) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark, clock=clock) as opened:
        opened.add_customers(1, 2)
        yield opened


def create_run(
    location: Location,
    created_at: datetime,
    *,
    tags: dict[str, str],
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.NOT_STARTED,
    run_config: dict[str, Any] | None = None,
) -> str:
    """Create a run of both assets in Dagster, which nothing launches."""
    run = create_run_for_test(
        location.instance,
        status=status,
        tags=tags,
        run_config=run_config,
        asset_selection=frozenset({RAW, WAREHOUSE}),
    )
    with location.instance.run_storage.connect() as connection:  # type: ignore[attr-defined]
        values = {"create_timestamp": created_at.replace(tzinfo=None)}
        connection.execute(sa.update(RunsTable).where(RunsTable.c.run_id == run.run_id).values(values))
    return str(run.run_id)


@pytest.mark.invariant("L4", "L6")
def test_run_that_was_never_queued_holds_its_partitions_for_a_quarter_of_an_hour(
    location: Location, clock: FakeClock
) -> None:
    """A failed launch leaves a run that Dagster never ends. Its partitions are requested again after 15 minutes."""
    seal_run(location.deployment, key(1, 1))
    create_run(location, clock.now, tags=RANGE)
    assert requested_ranges(tick(location)) == []
    clock.now += timedelta(minutes=16)
    assert requested_ranges(tick(location)) == ["1|2026-01-01..1|2026-01-01"]


@pytest.mark.invariant("L6")
def test_request_whose_run_was_never_queued_is_made_again(location: Location, clock: FakeClock) -> None:
    """The run of the sensor's own request was created and not queued: the next request has a new run key."""
    seal_run(location.deployment, key(1, 1))
    (request,) = tick(location).run_requests or []
    create_run(location, clock.now, tags=dict(request.tags or {}), run_config=dict(request.run_config or {}))
    assert tick(location).run_requests == []
    clock.now += timedelta(minutes=16)
    (again,) = tick(location).run_requests or []
    assert again.run_key != request.run_key


@pytest.mark.invariant("L6")
def test_run_that_was_never_queued_is_reported_as_failed(location: Location, clock: FakeClock) -> None:
    """The sensor run_completion ends it. A run that starts, and a run of other assets, stay."""
    never = create_run(location, clock.now, tags=RANGE)
    starting = create_run(location, clock.now, tags=RANGE, status=dg.DagsterRunStatus.STARTING)
    other = create_run_for_test(location.instance, asset_selection=frozenset({dg.AssetKey("theirs")})).run_id
    clock.now += timedelta(minutes=14)
    tick(location, "run_completion")
    assert status_of(location, never) is dg.DagsterRunStatus.NOT_STARTED
    clock.now += timedelta(minutes=2)
    tick(location, "run_completion")
    assert status_of(location, never) is dg.DagsterRunStatus.FAILURE
    assert status_of(location, starting) is dg.DagsterRunStatus.STARTING
    assert status_of(location, other) is dg.DagsterRunStatus.NOT_STARTED


@pytest.mark.invariant("L4")
@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.CANCELED])
@pytest.mark.parametrize(
    ("tags", "due"),
    [
        ({START: "%%%", END: "%%%"}, None),
        ({START: "1|2026-01-01"}, None),
        ({END: "1|2026-01-01"}, None),
        ({START: "1|2026-02-31", END: "2|2026-13-01"}, None),
        ({START: "1|2|2026-01-01", END: "1|2026-01-01"}, None),
        (RANGE, {"campaign daily": {"1": {"2026-01-01": "x"}}}),
        (RANGE, {"campaign_daily": {"1": {"yesterday": "x"}}}),
        (RANGE, {"campaign_daily": {"1-2": {"2026-01-01": "x"}}}),
        (RANGE, {"campaign_daily": ["1"]}),
        (RANGE, 7),
    ],
)
def test_run_that_cannot_be_read_is_left_out_with_a_warning(
    location: Location,
    clock: FakeClock,
    status: dg.DagsterRunStatus,
    tags: dict[str, str],
    due: Any,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every sensor goes on and names the run, whatever tags and configuration an operator gave it."""
    seal_run(location.deployment, key(2, 2))
    config = {"resources": {RESOURCE: {"config": {"due": due}}}} if due is not None else None
    is_request = status is dg.DagsterRunStatus.CANCELED
    requested = request_tags(location) if is_request else {}
    run_id = create_run(location, clock.now, tags=requested | tags, status=status, run_config=config)
    assert "2|2026-01-02..2|2026-01-02" in requested_ranges(tick(location))
    names = ("raw_arrivals", "states_to_load", "retries_due", "readable_changes", "run_completion")
    for name in names:
        tick(location, name)
    warning = f"run {run_id} was left out, because its partitions cannot be read. "
    assert warning in capfd.readouterr().err


def request_tags(location: Location) -> dict[str, str]:
    """The tags of a request of the sensor `raw_arrivals`, without its range."""
    (request,) = tick(location).run_requests or []
    return {name: value for name, value in (request.tags or {}).items() if name not in {START, END}}


def status_of(location: Location, run_id: str) -> dg.DagsterRunStatus:
    run = location.instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_range_of_a_deleted_customer_is_empty(location: Location, clock: FakeClock) -> None:
    """A range whose end names a customer that Dagster does not have fails when it starts, and holds nothing."""
    seal_run(location.deployment, key(1, 1))
    tags = {START: "9|2026-01-01", END: "1|2026-01-01"}
    create_run(location, clock.now, tags=tags, status=dg.DagsterRunStatus.STARTING)
    assert requested_ranges(tick(location)) == ["1|2026-01-01..1|2026-01-01"]
