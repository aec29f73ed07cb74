"""Does what is due by the clock: yesterday's partitions, reconciliation, and the upkeep of the tables."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg
from dagster_pyspark import PySparkResource

from ads_pipeline.ledger.status.status_file import publish
from ads_pipeline.orchestration.assets import MOST_IN_A_RUN
from ads_pipeline.orchestration.partitions import CUSTOMERS, assets_of
from ads_pipeline.orchestration.resources import RunResources
from ads_pipeline.orchestration.run_requests import range_tags

EVENTS_KEPT: Final = timedelta(days=400)  # a year and the month that is compared with it
ON: Final = dg.DefaultScheduleStatus.RUNNING


def build_schedules(query_names: Sequence[str]) -> list[dg.ScheduleDefinition]:
    @dg.schedule(
        cron_schedule="0 6 * * *",
        target=dg.AssetSelection.assets(*assets_of(query_names)),
        default_status=ON,
        description="Asks for yesterday of every known customer, so that what did not arrive is seen to be missing.",
    )
    def daily_load(context: dg.ScheduleEvaluationContext) -> Iterator[dg.RunRequest | dg.SkipReason]:
        customers = context.instance.get_dynamic_partitions(CUSTOMERS)
        day = (context.scheduled_execution_time - timedelta(days=1)).date().isoformat()
        if not customers:
            yield dg.SkipReason("no customer is known yet; they are added as their first runs are sealed")
        for name in query_names:
            for start in range(0, len(customers), MOST_IN_A_RUN):
                some = customers[start : start + MOST_IN_A_RUN]
                yield dg.RunRequest(
                    run_key=f"{name}:{day}:{start}",
                    asset_selection=assets_of([name]),
                    tags=range_tags(name, f"{some[0]}|{day}", f"{some[-1]}|{day}"),
                )

    return [
        daily_load,
        dg.ScheduleDefinition(job=_reconcile(query_names), cron_schedule="30 * * * *", default_status=ON),
        dg.ScheduleDefinition(job=_maintenance(query_names), cron_schedule="0 3 * * *", default_status=ON),
    ]


def _reconcile(query_names: Sequence[str]) -> dg.JobDefinition:
    @dg.op(description="Compares ledger, pointers and tables, and mends the difference.")
    def mend(context: dg.OpExecutionContext, rooms: dg.ResourceParam[RunResources], pyspark: PySparkResource) -> None:
        for name in query_names:
            done = rooms.reconciliation(pyspark.spark_session).mend(source=rooms.source_name, query_name=name)
            for repair in done.repairs:
                context.log.info("%s", repair)
            for run, error in done.loading.damaged.items():
                context.log.error("%s is accepted and cannot be loaded: %s", run, error)

    @dg.op(description="Writes down which partitions are stale, and publishes partition_status.parquet.")
    def tell_status(context: dg.OpExecutionContext, rooms: dg.ResourceParam[RunResources]) -> None:
        changed = rooms.currencies.sweep(rooms.book, now=datetime.now(UTC))
        published = publish(rooms.book.every(), rooms.settings.status_file)
        context.log.info("%d rows of %d became stale or current", changed, published)

    @dg.job(description="Mends what a run that died left unfinished. Safe beside running loads.")
    def reconcile() -> None:
        mend()
        tell_status()

    return reconcile


def _maintenance(query_names: Sequence[str]) -> dg.JobDefinition:
    @dg.op(description="Packs small files, and removes those no reader can need.")
    def tidy(context: dg.OpExecutionContext, rooms: dg.ResourceParam[RunResources], pyspark: PySparkResource) -> None:
        for name in query_names:
            version = rooms.warehouse.optimize(pyspark.spark_session, source=rooms.source_name, query_name=name)
            removed = rooms.warehouse.vacuum(source=rooms.source_name, query_name=name)
            context.log.info("%s: packed by version %s, %d files removed", name, version, len(removed))
        retired = rooms.events.retire_before(datetime.now(UTC) - EVENTS_KEPT)
        context.log.info("the events of %d runs were retired", len(retired))

    @dg.job(description="Keeps the tables fast and their folders small.")
    def maintenance() -> None:
        tidy()

    return maintenance
