"""The sensor `readable_changes`: after a tick, Dagster shows what the ledger records."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT
from ads_pipeline.domain.transitions import Action
from ads_pipeline.orchestration.asset_checks import check_keys
from ads_pipeline.orchestration.complete_check import COMPLETE
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.run_tags import (
    CUSTOMERS_TAG,
    DAYS_TAG,
    QUERY_TAG,
    WHY_TAG,
)
from ads_pipeline.orchestration.sensors.readable_changes import BLOCKED_INTERVAL
from ads_pipeline_tests.ledger.builders import FakeClock, action_request, run, sealed_runs
from ads_pipeline_tests.orchestration.builders import Location, open_location
from ads_pipeline_tests.orchestration.sensors.ticks import (
    crash_run,
    create_run,
    due_partitions,
    requested_ranges,
    tick,
)
from ads_pipeline_tests.orchestration.test_readable_check import shown
from ads_pipeline_tests.pipeline.builders import QUERY, key, seal_run

SENSOR = "readable_changes"
VALID, READABLE = check_keys(Names(), QUERY)


def execute_checks(location: Location, result: dg.SensorResult) -> None:
    """Execute the requested runs of checks in this process."""
    job = location.defs.resolve_implicit_global_asset_job_def()
    for request in result.run_requests or []:
        subset = job.get_subset(asset_selection=set(), asset_check_selection=set(request.asset_check_keys or ()))
        assert subset.execute_in_process(
            instance=location.instance, tags=request.tags, run_config=request.run_config
        ).success


def test_action_on_the_command_line_is_shown_after_a_tick(location: Location) -> None:
    """Only the changed partition is checked, once."""
    location.add_customers(1, 2, 3)
    for customer in (1, 2, 3):
        seal_run(location.deployment, key(customer))
    assert location.run([key(1), key(3)]).success
    first = tick(location, SENSOR)
    location.deployment.ledger.actions.execute(Action.WITHDRAW, [key(2)], action_request())
    result = tick(location, SENSOR, cursor=first.cursor)
    assert requested_ranges(result) == [f"{key(2).dagster_key}..{key(2).dagster_key}"]
    assert [request.asset_check_keys for request in result.run_requests or []] == [[VALID, READABLE]]
    (complete,) = result.asset_events
    assert isinstance(complete, dg.AssetCheckEvaluation)
    assert (complete.check_name, complete.passed) == (COMPLETE, False), "the overview turns red in the same tick"
    assert "1 hidden" in str(complete.description)
    execute_checks(location, result)
    assert shown(location)[key(2).dagster_key] == (False, "Hidden: withdrawn by ada: on request")
    assert shown(location)[key(1).dagster_key][0]
    assert requested_ranges(tick(location, SENSOR, cursor=result.cursor)) == []


def test_cancelled_run_has_both_checks_run_again(location: Location) -> None:
    """Over its whole range, because Dagster cleared the checks of every partition in it."""
    location.add_customers(1, 2)
    for customer in (1, 2):
        seal_run(location.deployment, key(customer))
    assert location.run([key(1), key(2)]).success
    first = tick(location, SENSOR)
    cancelled = crash_run(location, key(1), key(2))
    location.instance.report_run_canceled(cancelled)
    tick(location, "run_completion")
    result = tick(location, SENSOR, cursor=first.cursor)
    assert requested_ranges(result) == [f"{key(1).dagster_key}..{key(2).dagster_key}"]
    assert [request.asset_check_keys for request in result.run_requests or []] == [[VALID, READABLE]]
    execute_checks(location, result)
    assert all(passed for passed, _reason in shown(location).values())
    assert set(location.check_results().values()) == {True}


def test_partition_of_a_dead_run_is_not_judged_by_a_check_alone(location: Location) -> None:
    """A run of `valid` alone would judge its new sealed run, and nothing would load it for minutes."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    first = tick(location, SENSOR)
    location.deployment.ledger.registrations.register(sealed_runs(run(key(1), "r2")))
    location.instance.report_run_canceled(create_run(location, key(1)))
    result = tick(location, SENSOR, cursor=first.cursor)
    assert [request.asset_check_keys for request in result.run_requests or []] == [[READABLE]]


def test_run_cancelled_in_the_queue_has_its_checks_run_again(location: Location) -> None:
    """The ledger has no event of it, because its process never started."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    first = tick(location, SENSOR)
    location.instance.report_run_canceled(create_run(location, key(1)))
    result = tick(location, SENSOR, cursor=first.cursor)
    assert [request.asset_check_keys for request in result.run_requests or []] == [[VALID, READABLE]]
    execute_checks(location, result)
    assert shown(location)[key(1).dagster_key][0]
    assert requested_ranges(tick(location, SENSOR, cursor=result.cursor)) == []


def test_request_names_query_customers_days_and_conditions(
    location: Location, capfd: pytest.CaptureFixture[str]
) -> None:
    """In the tags of its run, which the UI lists, and in the log of the tick."""
    location.add_customers(1, 2)
    for customer in (1, 2):
        seal_run(location.deployment, key(customer))
    assert location.run([key(1), key(2)]).success
    cursor = tick(location, SENSOR).cursor
    location.deployment.ledger.actions.execute(Action.WITHDRAW, [key(1), key(2)], action_request())
    (request,) = tick(location, SENSOR, cursor=cursor).run_requests or []
    assert request.tags[QUERY_TAG] == QUERY
    assert (request.tags[CUSTOMERS_TAG], request.tags[DAYS_TAG]) == ("1 to 2", "2026-01-01")
    assert request.tags[WHY_TAG] == "now 2 hidden; the ledger changed outside a run"
    assert f"requests {QUERY}, customers 1 to 2, days 2026-01-01: {request.tags[WHY_TAG]}" in capfd.readouterr().err


def test_day_past_its_deadline_is_requested(location: Location) -> None:
    """No run of the assets happens for a day without raw data."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    due = (datetime.now(UTC) - timedelta(hours=36)).date()  # its deadline passed within the last day
    found = [each.tags for each in tick(location, SENSOR).run_requests or []]
    assert any(f"1|{due.isoformat()}" in tags.values() for tags in found)


@pytest.mark.invariant("L2", "L8")
def test_day_whose_run_waits_too_long_is_requested(tmp_path: Path, spark: SparkSession) -> None:
    """Its check shows that it is blocked. Nothing in the ledger changed when the limit passed."""
    clock = FakeClock()
    clock.now = datetime.now(UTC) + timedelta(minutes=1)
    with open_location(tmp_path / "home", spark, clock=clock) as location:
        location.add_customers(1)
        location.deployment.ledger.registrations.register(sealed_runs(run(key(1), "r1")))
        first = tick(location, SENSOR)
        clock.now += IN_PROGRESS_LIMIT + BLOCKED_INTERVAL
        result = tick(location, SENSOR, cursor=first.cursor)
        assert key(1) in {each for request in result.run_requests or [] for each in due_partitions(request)}


def test_passed_deadline_is_requested_for_every_customer(location: Location) -> None:
    """The days are the same for all customers, and each of them has its own partitions."""
    location.add_customers(1, 2, 3)
    runs = [run(key(customer), "r1") for customer in (1, 2, 3)]
    location.deployment.ledger.registrations.register(sealed_runs(*runs))
    due = (datetime.now(UTC) - timedelta(hours=36)).date()
    requests = tick(location, SENSOR).run_requests or []
    checks = [each for each in requests if READABLE in (each.asset_check_keys or ())]
    checked = {each for request in checks for each in due_partitions(request)}
    assert {replace(key(customer), logical_date=due) for customer in (1, 2, 3)} <= checked


def test_day_that_met_its_deadline_is_not_requested(location: Location) -> None:
    """Nothing changed for it. Only the customer without a run of that day is checked again."""
    due = (datetime.now(UTC) - timedelta(hours=36)).date()
    location.add_customers(1, 2)
    seal_run(location.deployment, key(2))
    seal_run(location.deployment, replace(key(1), logical_date=due))
    assert location.run([key(2)]).success
    assert location.run([replace(key(1), logical_date=due)]).success
    requests = tick(location, SENSOR).run_requests or []
    (request,) = (each for each in requests if each.tags[WHY_TAG].endswith("a deadline passed"))
    found = {each for each in due_partitions(request) if (each.query_name, each.logical_date) == (QUERY, due)}
    assert found == {replace(key(2), logical_date=due)}


def test_changed_cursor_starts_again(location: Location) -> None:
    """A cursor that is no JSON, or has other values, is not an error."""
    for cursor in ("x", "[]", '["2026-01-01", []]', '["2999-01-01T00:00:00+00:00", []]', "1"):
        assert tick(location, SENSOR, cursor=cursor).cursor
