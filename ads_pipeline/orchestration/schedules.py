"""Builds the schedules: when `daily_load` and the jobs start."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.rectangles import MAX_PARTITIONS
from ads_pipeline.google_ads.configuration import ClientConfiguration
from ads_pipeline.orchestration.jobs import build_discovery, build_maintenance, build_reconciliation
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS, drop_invalid_customers
from ads_pipeline.orchestration.runs.run_tags import range_tags

ON: Final = dg.DefaultScheduleStatus.RUNNING
NO_CUSTOMERS: Final = "no customers yet; {} adds a customer when its first run is sealed"


def build_schedules(
    names: Names, query_names: Sequence[str], configuration: ClientConfiguration | None
) -> list[dg.ScheduleDefinition]:
    """Build the schedules. With the configuration of a client, accounts are discovered every day."""

    @dg.schedule(
        name=names.name("daily_load"),
        cron_schedule="0 6 * * *",
        target=dg.AssetSelection.assets(*names.assets(query_names)),
        default_status=ON,
        description="Requests yesterday's partition of every customer, so that missing partitions are visible.",
    )
    def daily_load(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        customers = drop_invalid_customers(
            context.log, context.instance.get_dynamic_partitions(names.name(CUSTOMERS))
        )
        day = (context.scheduled_execution_time - timedelta(days=1)).date().isoformat()
        if not customers:
            yield dg.SkipReason(NO_CUSTOMERS.format(names.name("raw_arrivals")))
        for batch in split_batches(customers, MAX_PARTITIONS):
            start, end = f"{batch[0]}|{day}", f"{batch[-1]}|{day}"
            yield dg.RunRequest(
                run_key=f"{day}, customers from {batch[0]}",
                asset_selection=names.assets(query_names),
                tags=range_tags(names, query_names, start, end, why="the day of every customer"),
            )

    jobs = [
        (build_reconciliation(names, query_names), "30 * * * *"),
        (build_maintenance(names, query_names), "0 3 * * *"),
    ]
    if configuration is not None:
        jobs.append((build_discovery(names, configuration), "0 5 * * *"))
    scheduled = [dg.ScheduleDefinition(job=job, cron_schedule=cron, default_status=ON) for job, cron in jobs]
    return [daily_load, *scheduled]
