"""Files that were staged while runs were judged: what is published of them, and what is deleted."""

import pytest

from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, seal_invalid_run, seal_run, visible_runs


def list_files(deployment: LocalDeployment) -> set[str]:
    root = deployment.home / "warehouse" / "google_ads" / "campaign_daily"
    return {path.name for path in root.glob("logical_date=*/*.parquet")}


@pytest.mark.invariant("W7")
def test_run_that_is_judged_twice_is_published_once(deployment: LocalDeployment) -> None:
    """One process may judge a run again before it loads it."""
    run, pipeline = seal_run(deployment, key(1)), deployment.pipeline
    pipeline.validation.judge([run])
    pipeline.validation.judge([run], validation_id="v2")
    assert pipeline.loader.load([run.key]).published == (run,)
    assert visible_runs(deployment) == {run.key: "r1"}


def test_rows_are_read_once(deployment: LocalDeployment) -> None:
    """What was staged while it was judged is published, although the payload holds other bytes by then."""
    run, pipeline = seal_run(deployment, key(1)), deployment.pipeline
    pipeline.validation.judge([run])
    payload = deployment.home / "raw" / run.path / "payload.jsonl"
    payload.chmod(0o644)
    payload.write_bytes(b" " * payload.stat().st_size)
    assert pipeline.loader.load([run.key]).published == (run,)
    assert visible_runs(deployment) == {run.key: "r1"}


def test_unpublished_files_are_deleted(deployment: LocalDeployment) -> None:
    """A rejected run stages nothing. An accepted run that a newer one replaces leaves no file."""
    older, newer = seal_run(deployment, key(1), "r1"), seal_run(deployment, key(1), "r2")
    rejected = seal_invalid_run(deployment, key(2))
    deployment.pipeline.judge_and_load([older, newer, rejected])
    table = WarehouseTable(
        location=str(deployment.home / "warehouse"), source="google_ads", query_name="campaign_daily"
    )
    (file,) = list_files(deployment)
    assert visible_runs(deployment) == {newer.key: "r2"}
    assert any(each.name.endswith(file) for each in table.store.list(table.folder))


def test_dry_run_stages_nothing(deployment: LocalDeployment) -> None:
    """Judging without recording a verdict writes no file."""
    run = seal_run(deployment, key(1))
    deployment.pipeline.validation.evaluate([run], validation_id="v1")
    assert list_files(deployment) == set()
