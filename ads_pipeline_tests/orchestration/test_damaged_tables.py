"""The hourly and the nightly job with one table that cannot be opened."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline_tests.lake.warehouse.builders import list_version_files
from ads_pipeline_tests.orchestration.builders import Location, open_location
from ads_pipeline_tests.pipeline.builders import key, seal_run, visible_runs

DAMAGED = "ad_group_daily"  # the jobs come to it before campaign_daily


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark) as opened:
        store = open_store(opened.deployment.warehouse_location)
        store.create(f"google_ads/{DAMAGED}/_delta_log/{0:020}.json", b'{"protocol":{"minRea')
        yield opened


@pytest.mark.invariant("L4", "L9")
def test_damaged_table_stops_no_other(location: Location) -> None:
    """Other tables are reconciled and compacted. The job is red, and its log names the file and the repair."""
    deployment = location.deployment
    for customer in (1, 2):
        deployment.pipeline.judge_and_load([seal_run(deployment, key(customer))])
    deployment.pipeline.validation.judge([seal_run(deployment, key(3))])
    for job in ("reconcile", "maintenance"):
        done = location.defs.resolve_job_def(job).execute_in_process(instance=location.instance, raise_on_error=False)
        assert not done.success
        (failure,) = [event for event in done.all_events if event.is_step_failure]
        assert f"google_ads/{DAMAGED}/_delta_log/{0:020}.json is cut or damaged" in str(
            failure.step_failure_data.error
        )
        assert "move" in str(failure.step_failure_data.error)
    assert set(visible_runs(deployment)) == {key(1), key(2), key(3)}
    assert len(list_version_files(deployment.warehouse_location)) == 1
