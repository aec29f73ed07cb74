"""Runs the assets over a window of days, one run a query, and says how each run ended.

`python -m ads_pipeline.definitions SINCE UNTIL QUERY…` calls it, in the folder of `dagster.yaml` unless DAGSTER_HOME
names another. It is what the demo does in the place of an operator who clicks in the UI.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from ads_pipeline.domain.partition import parse_date
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.orchestration.partitions import CUSTOMERS, assets_of
from ads_pipeline.orchestration.resources import watching
from ads_pipeline.orchestration.run_completion import end_runs
from ads_pipeline.orchestration.run_requests import range_tags
from ads_pipeline.settings import Settings


def run(defs: dg.Definitions, settings: Settings, words: Sequence[str]) -> None:
    """Add the customers that have arrived, then run every customer and day of each query."""
    since, until, *queries = words
    with watching(settings) as watch:
        found = watch.sealed.arrived(source=watch.source_name, since=parse_date(since), until=parse_date(until))
    with _instance() as instance:
        instance.add_dynamic_partitions(CUSTOMERS, sorted({run.key.customer_id for run in found.runs}))
        customers = instance.get_dynamic_partitions(CUSTOMERS)
        for name in queries:
            started = time.monotonic()
            result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
                instance=instance,
                asset_selection=assets_of([name]),
                tags=range_tags(name, f"{customers[0]}|{since}", f"{customers[-1]}|{until}"),
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
                raise_on_error=False,
            )
            with watching(settings) as watch:  # there is no daemon whose sensor would
                list(end_runs(instance, watch.events))
                Follower(watch.events).catch_up()
            ended = "every partition is in the warehouse" if result.success else _refusal(result)
            sys.stdout.write(f"{name}, {time.monotonic() - started:.0f} s: {ended}\n")
            sys.stdout.flush()


def _refusal(result: dg.ExecuteInProcessResult) -> str:
    """What the step that failed has to say; the last failure is the one that the others led to."""
    failures = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_FAILURE]
    told = failures[-1].step_failure_data.user_failure_data if failures else None
    return str(told.description if told else "the run failed; its log in the UI says why")


def _instance() -> dg.DagsterInstance:
    if os.environ.get("DAGSTER_HOME") or not Path("dagster.yaml").is_file():
        return dg.DagsterInstance.get()
    return dg.DagsterInstance.from_config(str(Path.cwd()))
