"""What Dagster shows after each event that does not come from a finished run of the assets.

One server runs the whole story; each test waits for one of its results. Real daemon, webserver and Spark.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.operations.cli.state.partition_report import gather_report
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.orchestration.misleading_story import (
    ABSENT,
    CANCELLED,
    DAYS,
    DEMOTED,
    INVALID_CUSTOMER,
    KILLED,
    LOADED,
    QUEUED,
    RAW,
    RERUN,
    RESTORED,
    WAREHOUSE,
    WITHDRAWN,
    Story,
    play_story,
)
from ads_pipeline_tests.pipeline.builders import visible_runs

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Story]:
    with play_story(tmp_path_factory.mktemp("misleading") / "home", spark) as played:
        yield played


@pytest.mark.invariant("W3")
def test_withdrawn_day_turns_red(story: Story) -> None:
    """The check `readable` names the operator's action. The verdict and the materialization stay."""
    story.wait_for_check(WITHDRAWN, "failed")
    assert _description(story, WITHDRAWN) == "Hidden: withdrawn by ada: on request"
    assert story.server.check_status(RAW, WITHDRAWN, "valid") == "succeeded"


def test_demoted_day_turns_red(story: Story) -> None:
    """Both checks do, with the operator and the reason."""
    story.wait_for_check(DEMOTED, "failed")
    story.wait_for_check(DEMOTED, "failed", "valid")
    assert _description(story, DEMOTED) == "Hidden: demoted by ada: on request"


def test_restored_day_turns_green(story: Story) -> None:
    """It was red after the demotion, for which the fixture waited. The demoted newer run is no warning."""
    story.wait_for_check(RESTORED, "succeeded")
    story.wait_for_check(RESTORED, "succeeded", "valid")
    assert (
        _description(story, RESTORED) == "Readable, restated: accepted; the newest run was demoted by ada: on request"
    )
    assert visible_runs(story.deployment)[RESTORED] == "r1"


def test_rejected_rerun_is_a_warning(story: Story) -> None:
    """The check `valid` failed and `readable` warns, because readers still get the run before it."""
    story.wait_for_check(RERUN, "failed")
    result = story.server.check_result(WAREHOUSE, RERUN, "readable")
    assert result is not None
    assert result["severity"] == "WARN"
    assert result["description"].startswith("Readable, rejected rerun: ")
    assert story.server.check_status(RAW, RERUN, "valid") == "failed"
    assert visible_runs(story.deployment)[RERUN] == "r1"


def test_absent_day_is_red_only_in_the_check(story: Story) -> None:
    """The Partitions tab shows it as missing, and the run that found nothing succeeded."""
    story.wait_for_check(ABSENT, "failed")
    assert _description(story, ABSENT) == "Missing: no run arrived"
    for asset in (RAW, WAREHOUSE):
        assert story.server.partition_status(asset, ABSENT) == "missing"
    assert story.server.check_status(RAW, ABSENT, "valid") in {"none", "skipped"}


def test_cancelled_backfill_keeps_verdicts(story: Story) -> None:
    """Of the day whose run was terminated, and of the day whose run never started."""
    for partition in (CANCELLED, QUEUED):
        story.wait_for_check(partition, "succeeded")
        story.wait_for_check(partition, "succeeded", "valid")
        assert story.server.partition_status(WAREHOUSE, partition) == "materialized"
    assert {story.server.run_status(run) for run in story.cancelled_runs} == {"CANCELED"}


def test_killed_run_leaves_no_wrong_colour(story: Story) -> None:
    """Its partition is run again, and the new sealed run is loaded."""
    story.server.wait_for(lambda: visible_runs(story.deployment).get(KILLED) == "r2")
    story.wait_for_check(KILLED, "succeeded")
    story.wait_for_check(KILLED, "succeeded", "valid")
    assert story.server.run_status(story.killed_run) == "FAILURE"
    story.server.wait_for(lambda: story.server.partition_status(WAREHOUSE, KILLED) == "materialized")


def test_invalid_customer_is_no_failed_partition(story: Story) -> None:
    """The run of the range succeeded for its other customer; the invalid one has no data. Its checks say why."""
    story.wait_for_check(RERUN, "failed")
    for asset, check in ((RAW, "valid"), (WAREHOUSE, "readable")):
        assert story.server.partition_status(asset, INVALID_CUSTOMER) == "missing"
        assert story.server.check_status(asset, INVALID_CUSTOMER, check) == "failed"
        result = story.server.check_result(asset, INVALID_CUSTOMER, check)
        assert result
        assert result["severity"] == "WARN"
        assert "this account is 2046619385" in result["description"]


def test_loaded_days_are_in_sync(story: Story) -> None:
    """Dagster marks none of them as unsynced, whatever happened to them, but the one whose rerun was rejected.

    Its raw partition has a newer run that was not loaded, and a warehouse that reported a new materialization for it
    would start assets downstream for nothing.
    """
    test_killed_run_leaves_no_wrong_colour(story)
    for partition in LOADED:
        expected = "STALE" if partition == RERUN else "FRESH"
        assert story.server.stale_status(WAREHOUSE, partition) == expected, partition


def test_partitions_tab_counts_data_and_not_verdicts(story: Story) -> None:
    """No partition is red, because no engine failed that has not been replaced by a later run."""
    test_killed_run_leaves_no_wrong_colour(story)
    counts = story.server.partition_counts(RAW)
    assert counts == {"numMaterialized": 12, "numFailed": 0, "numMaterializing": 0}
    counts = story.server.partition_counts(WAREHOUSE)
    assert counts == {"numMaterialized": 11, "numFailed": 0, "numMaterializing": 0}


@pytest.mark.invariant("W3")
def test_check_agrees_with_state_why(story: Story) -> None:
    """For each day, Dagster shows as readable exactly what `state why` explains as readable."""
    settings = read_settings({"ADS_PIPELINE_HOME": str(story.deployment.home)})
    for partition in DAYS:
        story.server.wait_for(
            lambda partition=partition: (
                _is_readable(story, partition)  # type: ignore[misc]
                == (gather_report(settings, partition).day.gap is None)
            )
        )


def _is_readable(story: Story, partition: PartitionKey) -> bool | None:
    result = story.server.check_result(WAREHOUSE, partition, "readable")
    return None if result is None else str(result["description"]).startswith("Readable")


def _description(story: Story, partition: PartitionKey) -> str:
    result = story.server.check_result(WAREHOUSE, partition, "readable")
    return str(result and result["description"])
