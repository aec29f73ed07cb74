"""Customers that somebody added in the Dagster UI and whose names break the rules: they are left out and named."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import NAME_RULES
from ads_pipeline.orchestration.partitions import CUSTOMERS
from ads_pipeline.orchestration.runs.run_tags import END, START
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, dagster_keys, open_location
from ads_pipeline_tests.orchestration.sensors.ticks import create_run, requested_ranges, tick
from ads_pipeline_tests.orchestration.test_assets import failure_message
from ads_pipeline_tests.pipeline.builders import key, seal_run, visible_runs

HYPHENATED, UNKNOWN, BARRED = "204-661-9385", "5abc", "a|b"
INVALID = (HYPHENATED, UNKNOWN, BARRED, "")
DAY, NOW = "2026-01-01", datetime(2026, 1, 2, 6, tzinfo=UTC)


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    """Customers 1 and 2 with an invalid name before, between and after them."""
    with open_location(tmp_path / "home", spark) as opened:
        names = [HYPHENATED, "1", BARRED, "", "2", UNKNOWN]
        opened.instance.add_dynamic_partitions(CUSTOMERS, names)
        yield opened


def run_range(location: Location, start: str, end: str) -> dg.ExecuteInProcessResult:
    job = location.defs.resolve_implicit_global_asset_job_def()
    tags = {START: f"{start}|{DAY}", END: f"{end}|{DAY}"}
    return job.execute_in_process(
        instance=location.instance, asset_selection=[RAW, WAREHOUSE], tags=tags, raise_on_error=False
    )


@pytest.mark.invariant("O1")
def test_other_partitions_of_the_run_are_loaded(location: Location, capfd: pytest.CaptureFixture[str]) -> None:
    """The run succeeds, materializes the valid partitions only, and names each invalid customer."""
    runs = [seal_run(location.deployment, key(customer)) for customer in (1, 2)]
    assert run_range(location, HYPHENATED, UNKNOWN).success
    assert location.materialized_and_failed(RAW) == (dagster_keys(key(1), key(2)), set())
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(2)), set())
    assert visible_runs(location.deployment) == {run.key: "r1" for run in runs}
    logged = capfd.readouterr().err
    for name in (HYPHENATED, UNKNOWN, BARRED):
        assert f"a customer was left out. customer_id: '{name}' is refused: {NAME_RULES['customer_id'][1]}" in logged
    assert "this account is 2046619385" in logged
    for asset, check in ((RAW, "valid"), (WAREHOUSE, "readable")):
        assert find_evaluations(location, asset, check) == {
            f"1|{DAY}": (True, None),
            f"2|{DAY}": (True, None),
            f"{HYPHENATED}|{DAY}": (False, "this account is 2046619385"),
            f"{UNKNOWN}|{DAY}": (False, NAME_RULES["customer_id"][1]),
        }


def find_evaluations(location: Location, asset: dg.AssetKey, check: str) -> dict[str, tuple[bool, str | None]]:
    """Map each partition to its last result and, where the customer was left out, to the rule that the text ends."""
    found = dict[str, tuple[bool, str | None]]()
    records = location.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(asset, check), limit=100
    )
    events = (each.event.dagster_event for each in records if each.event and each.event.dagster_event)
    for event in events:
        if event.event_type is not dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            continue
        evaluation = event.asset_check_evaluation_data
        text = evaluation.description or ""
        rule = text.partition("; delete it")[0].rpartition("; ")[2].rpartition("refused: ")[2]
        is_left_out = text.startswith("Left out: customer_id: ")
        found.setdefault(str(evaluation.partition), (evaluation.passed, rule if is_left_out else None))
    return found


def test_run_of_invalid_customers_only_fails(location: Location) -> None:
    """The failure has the name, the rule and the way to delete the customer."""
    result = run_range(location, UNKNOWN, UNKNOWN)
    assert not result.success
    assert f"customer_id: '{UNKNOWN}' is refused" in failure_message(result)
    assert "Delete partitions" in failure_message(result)


def test_daily_load_requests_the_valid_customers(location: Location) -> None:
    """No invalid name is an end of the range, because Dagster cannot resolve some of them."""
    schedule = location.defs.resolve_schedule_def("daily_load")
    with dg.build_schedule_context(instance=location.instance, scheduled_execution_time=NOW) as context:
        requests = schedule.evaluate_tick(context).run_requests or []
    assert {(each.tags[START], each.tags[END]) for each in requests} == {(f"1|{DAY}", f"2|{DAY}")}
    for partition in (key(1), key(2)):
        seal_run(location.deployment, partition)
    assert run_range(location, "1", "2").success


def test_daily_load_skips_without_valid_customers(tmp_path: Path, spark: SparkSession) -> None:
    """The skip message says that there are no customers."""
    with open_location(tmp_path / "home", spark) as location:
        location.instance.add_dynamic_partitions(CUSTOMERS, list(INVALID))
        schedule = location.defs.resolve_schedule_def("daily_load")
        with dg.build_schedule_context(instance=location.instance, scheduled_execution_time=NOW) as context:
            tick_data = schedule.evaluate_tick(context)
        assert not tick_data.run_requests
        assert "no customers" in str(tick_data.skip_message)


def test_sensor_requests_the_others_and_names_the_invalid(
    location: Location, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sealed runs of valid customers are requested, and the tick names each invalid customer."""
    day = datetime.now(UTC).date() - timedelta(days=1)
    for customer in (1, 2):
        seal_run(location.deployment, replace(key(customer), logical_date=day))
    yesterday = day.isoformat()
    assert requested_ranges(tick(location)) == [f"1|{yesterday}..2|{yesterday}"]
    logged = capfd.readouterr().err
    assert f"customer_id: '{UNKNOWN}' is refused" in logged
    assert "this account is 2046619385" in logged


def test_deleted_customer_of_an_unfinished_run_stops_no_sensor(location: Location) -> None:
    """Dagster cannot resolve the range of a run after its first customer was deleted."""
    seal_run(location.deployment, replace(key(1), logical_date=datetime.now(UTC).date() - timedelta(days=1)))
    unfinished = create_run(location, key(1))
    location.instance.add_run_tags(unfinished.run_id, {START: f"{HYPHENATED}|{DAY}", END: f"2|{DAY}"})
    location.instance.delete_dynamic_partition(CUSTOMERS, HYPHENATED)
    assert len(requested_ranges(tick(location))) == 1
