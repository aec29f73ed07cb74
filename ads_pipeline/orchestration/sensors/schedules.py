"""Builds the schedules `daily_load`, `reconcile` and `maintenance`."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import dagster as dg

from ads_pipeline.domain.sequences import split_batches
from ads_pipeline.engine.private_directory import remove_abandoned
from ads_pipeline.errors import WarehouseError
from ads_pipeline.orchestration.partitions import CUSTOMERS, asset_keys, drop_invalid_customers
from ads_pipeline.orchestration.resources import RunResources, SparkResource
from ads_pipeline.orchestration.sensors.rectangles import MAX_PARTITIONS
from ads_pipeline.orchestration.sensors.run_tags import range_tags

EVENTS_KEPT: Final = timedelta(days=400)  # covers a comparison with the same month of last year
ON: Final = dg.DefaultScheduleStatus.RUNNING


def build_schedules(query_names: Sequence[str]) -> list[dg.ScheduleDefinition]:
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

    return [
        daily_load,
        dg.ScheduleDefinition(job=_reconcile(query_names), cron_schedule="30 * * * *", default_status=ON),
        dg.ScheduleDefinition(job=_maintenance(query_names), cron_schedule="0 3 * * *", default_status=ON),
    ]


def _reconcile(query_names: Sequence[str]) -> dg.JobDefinition:
    @dg.op(
        description="Compares the ledger, the pointers and the Delta tables, and repairs the differences. "
        "It looks at the days that have changed since the pass before, and once a day at all days."
    )
    def repair_differences(
        context: dg.OpExecutionContext,
        run_resources: dg.ResourceParam[RunResources],
        pyspark: dg.ResourceParam[SparkResource],
    ) -> None:
        reconciliation = run_resources.reconciliation(lambda: pyspark.spark_session)

        def repair(name: str) -> None:
            for result in reconciliation.repair(run_resources.source_name, name, now=datetime.now(UTC)):
                for repair in result.repairs:
                    context.log.info("%s", repair)
                for run, error in result.loading.not_loaded.items():
                    context.log.error("accepted run %s cannot be loaded: %s", run, error)

        _do_for_each(query_names, repair, context)

    @dg.op(description="Updates the stored staleness of all partitions and writes partition_status.parquet.")
    def publish_status(context: dg.OpExecutionContext, run_resources: dg.ResourceParam[RunResources]) -> None:
        statuses, location = run_resources.ledger.statuses, run_resources.settings.status_file
        published = run_resources.staleness.publish(statuses, location, now=datetime.now(UTC))
        context.log.info("staleness changed in %d of %d rows", published.changed, published.rows)

    @dg.job(description="Finishes what crashed runs left incomplete. Loads may run at the same time.")
    def reconcile() -> None:
        repair_differences()
        publish_status()

    return reconcile


def _do_for_each(query_names: Sequence[str], work: Callable[[str], None], context: dg.OpExecutionContext) -> None:
    """Do the work for every query. A table that fails stops no other one; its error is raised at the end."""
    failures = list[WarehouseError]()
    for name in query_names:
        try:
            work(name)
        except WarehouseError as error:
            context.log.exception("%s failed; the other tables go on", name)
            failures.append(error)
    if failures:
        raise failures[0]


def _maintenance(query_names: Sequence[str]) -> dg.JobDefinition:
    @dg.op(
        description="Compacts small files, deletes files that no reader can need, retires old events, and removes "
        "temporary directories of killed processes."
    )
    def compact_and_vacuum(
        context: dg.OpExecutionContext,
        run_resources: dg.ResourceParam[RunResources],
        pyspark: dg.ResourceParam[SparkResource],
    ) -> None:
        warehouse, source = run_resources.warehouse, run_resources.source_name

        def compact(name: str) -> None:
            version = warehouse.optimize(lambda: pyspark.spark_session, source=source, query_name=name)
            removed = warehouse.vacuum(source=source, query_name=name)
            context.log.info("%s: compacted in table version %s, deleted %d files", name, version, len(removed))

        unsealed = list(run_resources.raw.remove_unsealed())
        context.log.info("removed %d directories of landings that died", len(unsealed))
        retired = run_resources.events.retire_before(datetime.now(UTC) - EVENTS_KEPT)
        context.log.info("retired the events of %d runs", len(retired))
        remove_abandoned(Path(tempfile.gettempdir()))
        _do_for_each(query_names, compact, context)

    @dg.job(
        description="Compacts and vacuums the Delta tables, removes leftovers of dead landings, retires old events."
    )
    def maintenance() -> None:
        compact_and_vacuum()

    return maintenance
