"""Builds the schedules: when `daily_load` and the jobs start."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.rectangles import MAX_PARTITIONS
from ads_pipeline.google_ads.configuration import ClientConfiguration
from ads_pipeline.orchestration.jobs import build_discovery, build_maintenance, build_reconciliation
from ads_pipeline.orchestration.partitions import CUSTOMERS, asset_keys, drop_invalid_customers
from ads_pipeline.orchestration.runs.run_tags import range_tags

ON: Final = dg.DefaultScheduleStatus.RUNNING


def build_schedules(
    query_names: Sequence[str], configuration: ClientConfiguration | None
) -> list[dg.ScheduleDefinition]:
    """Build the schedules. With the configuration of a client, accounts are discovered every day."""

    @dg.schedule(
        cron_schedule="0 6 * * *",
        target=dg.AssetSelection.assets(*asset_keys(query_names)),
        default_status=ON,
        description="Requests yesterday's partition of every customer, so that missing partitions are visible.",
    )
    def daily_load(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        customers = drop_invalid_customers(context.log, context.instance.get_dynamic_partitions(CUSTOMERS))
        day = (context.scheduled_execution_time - timedelta(days=1)).date().isoformat()
        if not customers:
            yield dg.SkipReason("no customers yet; raw_arrivals adds a customer when its first run is sealed")
        for batch in split_batches(customers, MAX_PARTITIONS):
            start, end = f"{batch[0]}|{day}", f"{batch[-1]}|{day}"
            yield dg.RunRequest(
                run_key=f"{day}, customers from {batch[0]}",
                asset_selection=asset_keys(query_names),
                tags=range_tags(query_names, start, end, why="the day of every customer"),
            )

    jobs = [(build_reconciliation(query_names), "30 * * * *"), (build_maintenance(query_names), "0 3 * * *")]
    if configuration is not None:
        jobs.append((build_discovery(configuration), "0 5 * * *"))
    scheduled = [dg.ScheduleDefinition(job=job, cron_schedule=cron, default_status=ON) for job, cron in jobs]
    return [daily_load, *scheduled]
