"""What one run of the assets does to each of its partitions, and how Dagster shows it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import Run
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, dagster_keys, open_location
from ads_pipeline_tests.pipeline.builders import FACTS, key, rows_for, seal_invalid_run, seal_run, visible_runs


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark) as opened:
        yield opened


def test_one_bad_partition_alone_is_red(location: Location) -> None:
    """Its neighbours in the same run are judged, loaded and shown so; the run says what was refused."""
    location.add_customers(1, 2, 3)
    good, bad, other = key(1), key(2), key(3)
    (
        seal_run(location.deployment, good),
        seal_invalid_run(location.deployment, bad),
        seal_run(location.deployment, other),
    )
    result = location.run([good, other])
    assert not result.success
    assert location.materialized_and_failed(RAW) == (dagster_keys(good, bad, other), set())
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(good, other), dagster_keys(bad))
    assert location.check_results() == {good.dagster_key: True, bad.dagster_key: False, other.dagster_key: True}
    assert visible_runs(location.deployment) == {good: "r1", other: "r1"}


def test_repairing_and_running_again_turns_it_green(location: Location) -> None:
    """A new run of the bad partition, and everything of it is good; its neighbours are not touched."""
    location.add_customers(1, 2)
    seal_run(location.deployment, key(1)), seal_invalid_run(location.deployment, key(2))
    location.run([key(1), key(2)])
    seal_run(location.deployment, key(2), "r2")
    assert location.run([key(2)]).success
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(2)), set())
    assert location.check_results() == {key(1).dagster_key: True, key(2).dagster_key: True}
    assert visible_runs(location.deployment) == {key(1): "r1", key(2): "r2"}


def test_what_was_never_sealed_is_not_materialized_and_holds_up_nobody(location: Location) -> None:
    """The partition stays unmaterialized and unchecked, the run fails with the reason, its neighbours arrive."""
    location.add_customers(1, 2, 3)
    seal_run(location.deployment, key(1)), seal_run(location.deployment, key(3))
    result = location.run([key(1), key(3)])
    assert not result.success
    assert location.materialized_and_failed(RAW) == (dagster_keys(key(1), key(3)), dagster_keys(key(2)))
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(3)), dagster_keys(key(2)))
    assert set(location.check_results()) == dagster_keys(key(1), key(3))
    assert visible_runs(location.deployment) == {key(1): "r1", key(3): "r1"}
    assert "no run was registered" in refusal(result)


@pytest.mark.invariant("W12")
def test_a_run_of_the_warehouse_alone_publishes_no_failure(location: Location) -> None:
    """Asked by hand for failed, pending and unknown partitions, the warehouse asset publishes none of them."""
    location.add_customers(1, 2, 3, 4)
    bad, good = seal_invalid_run(location.deployment, key(1)), seal_run(location.deployment, key(2))
    location.deployment.pipeline.validation.judge([bad, good])
    location.deployment.ledger.insert_pending([key(3)])
    result = location.run([key(1), key(4)], [WAREHOUSE])
    assert not result.success
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(2)), dagster_keys(key(1), key(3), key(4)))
    assert visible_runs(location.deployment) == {key(2): "r1"}
    assert "rejected" in refusal(result)


def test_running_again_without_news_changes_nothing(location: Location) -> None:
    """A run over partitions that are judged and loaded is green, counts no attempt and makes no commit."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    before = location.deployment.ledger.state(key(1)), location.deployment.ledger.pointers([key(1)])
    assert location.run([key(1)]).success
    assert (location.deployment.ledger.state(key(1)), location.deployment.ledger.pointers([key(1)])) == before
    assert location.check_results() == {key(1).dagster_key: True}


@pytest.mark.invariant("O1")
def test_every_sealed_run_of_a_partition_gets_its_verdict(location: Location) -> None:
    """Three runs were sealed before anybody looked: each is judged once, and the newest accepted one is served."""
    location.add_customers(1)
    for run_id in ("r1", "r2"):
        seal_run(location.deployment, key(1), run_id)
    seal_invalid_run(location.deployment, key(1), "r3")
    location.run([key(1)])
    attempts = location.deployment.ledger.attempts(key(1))
    assert sorted(attempt.run.run_id for attempt in attempts) == ["r1", "r2", "r3"]
    assert visible_runs(location.deployment) == {key(1): "r2"}
    assert location.check_results() == {key(1).dagster_key: False}


def test_the_ui_tells_what_changed(location: Location) -> None:
    """A restatement shows both runs and the change in rows; a rejection its checks with samples."""
    location.add_customers(1)
    seal_run(location.deployment, key(1), "r1", count=2)
    location.run([key(1)])
    seal_run(location.deployment, key(1), "r2", count=5, cost_micros=2_000_000)
    location.run([key(1)])
    told: Any = newest_metadata(location, WAREHOUSE)
    assert (told["run_id"], told["previous_run_id"], told["rows"], told["change_in_rows"]) == ("r2", "r1", 5, 3)
    assert (told["cost"], told["change_in_cost"]) == (10.0, 10.0 - 24.0)
    seal_invalid_run(location.deployment, key(1), "r3")
    result = location.run([key(1)], [RAW])
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.metadata["run_id"].value == "r3"
    violations: Any = evaluation.metadata["violations"]
    (violation,) = violations.records
    assert "cost_micros" in str(violation.data["check"])
    assert result.success, "a rejected run alone is shown by its check"


def test_a_query_without_a_contract_is_told_and_judged_by_nobody(location: Location) -> None:
    """The check fails with what to do, no attempt is counted, and the partition stays unread."""
    location.add_customers(1)
    run = Run(key=key(1), run_id="r1")
    location.deployment.raw.land(run, rows_for(key(1), 1), replace(FACTS, schema_version="99"))
    result = location.run([key(1)])
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert "declared are" in str(evaluation.metadata["reason"].value)
    assert location.deployment.ledger.state(key(1)).attempt_count == 0


def newest_metadata(location: Location, asset: dg.AssetKey) -> dict[str, Any]:
    event = location.instance.get_latest_materialization_event(asset)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: value.value for name, value in event.asset_materialization.metadata.items()}


def refusal(result: dg.ExecuteInProcessResult) -> str:
    """What the failed step of the run said."""
    (failure,) = (event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE)
    error: Any = failure.step_failure_data.error
    while error is not None and error.cause is not None:
        error = error.cause
    told = failure.step_failure_data.user_failure_data
    return f"{error.message if error else ''} {told.description if told else ''}"
