"""The check `readable`: what Dagster shows of each partition is what readers get."""

from typing import Any

import dagster as dg
import pytest

from ads_pipeline.domain.transitions import Action
from ads_pipeline.pipeline.actions.row_actions import demote
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.orchestration.builders import WAREHOUSE, Location
from ads_pipeline_tests.pipeline.builders import key, seal_invalid_run, seal_run

READABLE = dg.AssetCheckKey(WAREHOUSE, "readable")


def shown(location: Location) -> dict[str, tuple[bool, str]]:
    """Map each evaluated partition to its last evaluation: whether it passed, and its description."""
    return {name: (result.passed, result.description or "") for name, result in evaluations(location).items()}


def evaluations(location: Location) -> dict[str, dg.AssetCheckEvaluation]:
    """The last evaluation of each evaluated partition."""
    found: dict[str, dg.AssetCheckEvaluation] = {}
    for record in reversed(
        location.instance.event_log_storage.get_asset_check_execution_history(READABLE, limit=1000)
    ):
        result: Any = record.evaluation
        if isinstance(result, dg.AssetCheckEvaluation) and result.partition is not None:
            found[result.partition] = result
    return found


def check_only(location: Location, *keys: Any) -> None:
    """Run only the check, over the range from the first to the last partition."""
    job = location.defs.resolve_implicit_global_asset_job_def()
    tags = {
        "dagster/asset_partition_range_start": keys[0].dagster_key,
        "dagster/asset_partition_range_end": keys[-1].dagster_key,
    }
    subset = job.get_subset(asset_selection=set(), asset_check_selection={READABLE})
    assert subset.execute_in_process(instance=location.instance, tags=tags).success


@pytest.mark.invariant("W3")
def test_check_shows_what_readers_get_of_each_partition(location: Location) -> None:
    """Accepted passes; rejected and absent fail with their reason; a rejected rerun is a warning."""
    location.add_customers(1, 2, 3, 4)
    seal_run(location.deployment, key(1))
    seal_invalid_run(location.deployment, key(2))
    seal_run(location.deployment, key(3, day=1))
    seal_run(location.deployment, key(4))
    location.run([key(1), key(4)])
    seal_invalid_run(location.deployment, key(4), "r2")
    location.run([key(1), key(4)])
    found = shown(location)
    assert found[key(1).dagster_key] == (True, "Readable: accepted")
    passed, reason = found[key(2).dagster_key]
    assert not passed
    assert reason.startswith("Rejected: ")
    assert "cost_micros must be at least 0" in reason
    passed, reason = found[key(4).dagster_key]
    assert not passed
    assert reason.startswith("Readable, rejected rerun: ")


def test_run_of_the_check_alone_shows_an_operators_action(location: Location) -> None:
    """Withdrawn and demoted partitions fail; the assets are not touched."""
    location.add_customers(1, 2)
    runs = [seal_run(location.deployment, key(1)), seal_run(location.deployment, key(2))]
    assert location.run([key(1), key(2)]).success
    materialized = location.materialized_and_failed(WAREHOUSE)
    location.deployment.ledger.actions.execute(Action.WITHDRAW, [key(1)], action_request("a1"))
    demote(location.deployment.pipeline, [runs[1]], action_request("a2"))
    assert all(passed for passed, _reason in shown(location).values())
    check_only(location, key(1), key(2))
    assert shown(location)[key(1).dagster_key] == (False, "Hidden: withdrawn by ada: on request")
    assert shown(location)[key(2).dagster_key][0] is False
    assert location.materialized_and_failed(WAREHOUSE) == materialized
    commands = [evaluations(location)[key(n).dagster_key].metadata["next_command"].value for n in (1, 2)]
    restores = [f"ads-pipeline state restore {key(n).short_name} --reason TEXT" for n in (1, 2)]
    assert commands == [restores[0], f"{restores[1]} --run {runs[1].run_id}"]


def test_days_that_are_not_expected_have_no_result(location: Location) -> None:
    """Days before the customer's first sealed day are left out; later ones without a run fail."""
    location.add_customers(1)
    seal_run(location.deployment, key(1, day=5))
    location.run([key(1, day=4), key(1, day=6)])
    found = shown(location)
    assert key(1, day=4).dagster_key not in found
    assert found[key(1, day=5).dagster_key][0]
    assert found[key(1, day=6).dagster_key] == (False, "Missing: no run arrived")
