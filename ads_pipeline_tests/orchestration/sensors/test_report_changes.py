"""The sensor `report_changes`: it requests the report when something in it has changed, and tells a failed write."""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import cast

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import ReportNotWritten
from ads_pipeline.orchestration.catalog import REPORT
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.sensors.report_changes import RETRY_AFTER, UNCHANGED
from ads_pipeline_tests.ledger.builders import FakeClock, accepted_runs, key
from ads_pipeline_tests.orchestration.builders import Location, open_location
from ads_pipeline_tests.orchestration.sensors.ticks import tick

NO_SPARK = cast("SparkSession", None)
NAME = "report_changes"


@pytest.fixture
def clock() -> FakeClock:
    """Some hours before the deadline of yesterday. The ledger and Dagster have clocks of their own."""
    clock = FakeClock()
    clock.now = datetime.combine(datetime.now(UTC).date(), time(hour=1), UTC)
    return clock


@pytest.fixture
def location(tmp_path: Path, clock: FakeClock) -> Iterator[Location]:
    with open_location(tmp_path / "home", NO_SPARK, clock=clock) as opened:
        yield opened


def requests(location: Location) -> list[dg.RunRequest]:
    return list(tick(location, NAME).run_requests or ())


def write(location: Location, request: dg.RunRequest | None = None) -> dg.RunRecord:
    """Execute the requested run, or one that an operator starts, and return its record."""
    job = location.defs.resolve_implicit_global_asset_job_def()
    done = job.execute_in_process(
        instance=location.instance,
        asset_selection=[Names().key(REPORT)],
        tags=dict(request.tags or {}) if request else {},
        raise_on_error=False,
    )
    record = location.instance.get_run_record_by_id(done.run_id)
    assert record is not None
    return record


def test_report_is_written_when_something_has_changed(location: Location, clock: FakeClock) -> None:
    """At first, after a change of the ledger, and on a new day; an unchanged day requests nothing.

    It does not matter who started the run that wrote it.
    """
    (first,) = requests(location)
    write(location)
    for _ in range(10):
        clock.tick(timedelta(hours=1))
        assert not requests(location)
    assert tick(location, NAME).skip_reason == dg.SkipReason(UNCHANGED)
    accepted_runs(location.deployment.ledger, [key(day=2)])
    (second,) = requests(location)
    assert second.run_key != first.run_key
    write(location)
    assert not requests(location)
    clock.tick(timedelta(days=1))
    assert len(requests(location)) == 1


def test_failed_write_fails_the_tick_and_is_tried_again(location: Location, clock: FakeClock) -> None:
    """The tick names the run, its error, and the next command; `doctor` reads the newest tick. It ends by itself."""
    (location.settings.home / "report.html").mkdir()
    (first,) = requests(location)
    failed = write(location, first)
    assert failed.dagster_run.status is dg.DagsterRunStatus.FAILURE
    ended = datetime.fromtimestamp(failed.end_time or 0.0, UTC)
    clock.now = ended + RETRY_AFTER - timedelta(seconds=1)
    with pytest.raises(ReportNotWritten, match=r"could not write the report: .*directory.*ads-pipeline report"):
        requests(location)
    clock.now = ended + RETRY_AFTER
    (again,) = requests(location)
    assert again.run_key != first.run_key
    (location.settings.home / "report.html").rmdir()
    assert write(location, again).dagster_run.status is dg.DagsterRunStatus.SUCCESS
    assert tick(location, NAME).skip_reason == dg.SkipReason(UNCHANGED)


def test_reports_pause_while_much_changes(location: Location, clock: FakeClock) -> None:
    """A run is not requested right after the last one, but at most ten times its duration after its start."""
    (first,) = requests(location)
    written = write(location, first)
    accepted_runs(location.deployment.ledger, [key(day=2)])
    clock.now = datetime.fromtimestamp(written.end_time or 0.0, UTC)
    assert not requests(location)
    clock.now += 10 * timedelta(seconds=(written.end_time or 0.0) - (written.start_time or 0.0))
    assert len(requests(location)) == 1
