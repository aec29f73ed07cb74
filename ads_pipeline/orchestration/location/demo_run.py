"""Runs the assets of the demo over a range of days, one Dagster run per query, and prints the results.

`python -m ads_pipeline.definitions SINCE UNTIL QUERY…` calls it. Dagster's configuration is in DAGSTER_HOME.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.days.conditions import count_unreadable
from ads_pipeline.domain.partition import parse_date
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.operations.report.writing import report_path
from ads_pipeline.orchestration.asset_checks import check_keys
from ads_pipeline.orchestration.catalog import REPORT
from ads_pipeline.orchestration.naming.names import UNPREFIXED
from ads_pipeline.orchestration.partitions import CUSTOMERS, find_invalid_customers
from ads_pipeline.orchestration.resources import build_sensor_resources, open_ledger_engine
from ads_pipeline.orchestration.runs.ended_runs import close_finished_runs
from ads_pipeline.orchestration.runs.run_tags import range_tags
from ads_pipeline.settings.environment import Settings

QUIET: Final[dict[str, Any]] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def run_demo(defs: dg.Definitions, settings: Settings, arguments: Sequence[str]) -> None:
    """Add the customers with sealed runs, then run every customer and day of each query.

    Ends the process with exit code 1 and the error as its last line when a run fails.
    """
    since, until, *queries = arguments
    with open_ledger_engine(settings) as engine:
        resources = build_sensor_resources(settings, UNPREFIXED, engine)
        unjudged = resources.sealed_runs.find_unjudged(
            source=resources.source_name, since=parse_date(since), until=parse_date(until)
        )
    with dg.DagsterInstance.get() as instance:
        if settings.google_ads is not None:
            discovery = defs.resolve_job_def("discover_accounts")
            discovery.execute_in_process(instance=instance, run_config=QUIET, raise_on_error=False)
        instance.add_dynamic_partitions(CUSTOMERS, sorted({run.key.customer_id for run in unjudged.runs}))
        known = instance.get_dynamic_partitions(CUSTOMERS)
        customers = [name for name in known if name not in find_invalid_customers(known)]
        for name in queries:
            started = time.monotonic()
            tags = range_tags(UNPREFIXED, [name], f"{customers[0]}|{since}", f"{customers[-1]}|{until}", why="demo")
            result = _execute(defs, instance, UNPREFIXED.assets([name]), tags)
            _close_runs(instance, settings)
            _stop_after_failure(result, name)
            sys.stdout.write(f"{name}, {time.monotonic() - started:.0f} s: {_describe_result(result, name)}\n")
            sys.stdout.flush()
        _stop_after_failure(_execute(defs, instance, [UNPREFIXED.key(REPORT)], {}), "report")
    sys.stdout.write(f"report of all days: {report_path(settings)}\n")


def _stop_after_failure(result: dg.ExecuteInProcessResult, subject: str) -> None:
    """End the process when the run failed. The last line on standard error is the first error of the run."""
    if result.success:
        return
    failed = next((event for event in result.all_events if event.is_step_failure), None)
    error = getattr(failed and failed.event_specific_data, "error", None)
    while error is not None and error.cause is not None:
        error = error.cause
    message = error.message if error is not None else "the run ended without a message"
    without_frames = takewhile(lambda line: not line.lstrip().startswith("at "), message.splitlines())
    sys.exit(f"{subject}: {' '.join(' '.join(without_frames).split())}")


def _close_runs(instance: dg.DagsterInstance, settings: Settings) -> None:
    """Close the finished runs in the event log. No daemon runs the sensor `run_completion` here."""
    with open_ledger_engine(settings) as engine:
        events = build_sensor_resources(settings, UNPREFIXED, engine).events
        list(close_finished_runs(instance, events))
        Follower(events).catch_up()


def _execute(
    defs: dg.Definitions, instance: dg.DagsterInstance, assets: Sequence[dg.AssetKey], tags: Mapping[str, str]
) -> dg.ExecuteInProcessResult:
    return defs.resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=list(assets),
        tags=dict(tags),
        run_config=QUIET,
        raise_on_error=False,
    )


def _describe_result(result: dg.ExecuteInProcessResult, query_name: str) -> str:
    """Count the partitions that the check `readable` failed."""
    readable = check_keys(UNPREFIXED, query_name)[1]
    shown = [each for each in result.get_asset_check_evaluations() if each.asset_check_key == readable]
    failed = [each for each in shown if not each.passed]
    counted = count_unreadable(len(failed), len(shown))
    if not failed:
        return counted
    first = min(failed, key=lambda each: str(each.partition))
    customer, day = str(first.partition).split("|")
    return f"{counted}: {customer}, {day[5:]}: {first.description}" + ("" if len(failed) == 1 else ", and others")
