"""Builds the jobs `reconcile`, `maintenance` and `discover_accounts`."""

import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import dagster as dg

from ads_pipeline.domain.errors import WarehouseError
from ads_pipeline.domain.warehouse_names import PARTITION_COLUMNS
from ads_pipeline.google_ads.configuration import ClientConfiguration
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS
from ads_pipeline.orchestration.resources import RUN_RESOURCES, SPARK
from ads_pipeline.pipeline.days.staleness import publish_statuses
from ads_pipeline.spark.private_directory import remove_abandoned

OWN_RETENTION: Final = timedelta(days=1)  # each commit to `days` writes whole months again
EVENTS_KEPT: Final = timedelta(days=400)  # covers a comparison with the same month of last year


def build_reconciliation(names: Names, query_names: Sequence[str]) -> dg.JobDefinition:
    @dg.op(
        name=names.name("repair_differences"),
        description="Compares the ledger, the pointers and the Delta tables, and repairs the differences. "
        "It looks at the days that have changed since the pass before, and once a day at all days.",
        required_resource_keys=names.require(RUN_RESOURCES, SPARK),
    )
    def repair_differences(context: dg.OpExecutionContext) -> None:
        run_resources, pyspark = names.find(context, RUN_RESOURCES), names.find(context, SPARK)
        reconciliation = run_resources.reconciliation(lambda: pyspark.spark_session)

        def repair(name: str) -> None:
            for result in reconciliation.repair(run_resources.source_name, name, now=datetime.now(UTC)):
                for repair in result.repairs:
                    context.log.info("%s", repair)
                for run, error in result.loading.not_loaded.items():
                    context.log.error("accepted run %s cannot be loaded: %s", run, error)

        _do_for_each(query_names, repair, context)

    @dg.op(
        name=names.name("publish_status"),
        description="Updates the stored staleness of all partitions and writes partition_status.parquet.",
        required_resource_keys=names.require(RUN_RESOURCES),
    )
    def publish_status(context: dg.OpExecutionContext) -> None:
        run_resources = names.find(context, RUN_RESOURCES)
        ledger, settings, now = run_resources.ledger, run_resources.settings, datetime.now(UTC)
        published = publish_statuses(ledger, settings.google_apis, settings.status_file, now=now)
        context.log.info("staleness changed in %d of %d rows", published.changed, published.rows)
        for name, rows in run_resources.tables.publish_due().items():
            context.log.info("%d rows of the table %s changed", rows, name)

    @dg.job(
        name=names.name("reconcile"),
        description="Finishes what crashed runs left incomplete. Loads may run at the same time.",
    )
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


def build_maintenance(names: Names, query_names: Sequence[str]) -> dg.JobDefinition:
    @dg.op(
        name=names.name("compact_and_vacuum"),
        description="Compacts small files, deletes files that no reader can need, retires old events, and removes "
        "temporary directories of killed processes.",
        required_resource_keys=names.require(RUN_RESOURCES, SPARK),
    )
    def compact_and_vacuum(context: dg.OpExecutionContext) -> None:
        run_resources, pyspark = names.find(context, RUN_RESOURCES), names.find(context, SPARK)
        warehouse, source = run_resources.warehouse, run_resources.source_name

        def vacuum_own(name: str) -> None:
            warehouse.vacuum(source=source, query_name=name, retention=OWN_RETENTION)

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
        _do_for_each(list(PARTITION_COLUMNS), vacuum_own, context)

    @dg.job(
        name=names.name("maintenance"),
        description="Compacts and vacuums the Delta tables, removes leftovers of dead landings, retires old events.",
    )
    def maintenance() -> None:
        compact_and_vacuum()

    return maintenance


def build_discovery(names: Names, configuration: ClientConfiguration) -> dg.JobDefinition:
    """The job that discovers accounts, which become customers in Dagster."""

    @dg.op(
        name=names.name("find_accounts"),
        description="Lists the accounts below the configured managers, and parks those that cannot be fetched.",
        required_resource_keys=names.require(RUN_RESOURCES),
    )
    def find_accounts(context: dg.OpExecutionContext) -> None:
        from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction  # noqa: PLC0415 - takes seconds

        run_resources, customers = names.find(context, RUN_RESOURCES), names.name(CUSTOMERS)
        apis, ledger = run_resources.settings.google_apis, run_resources.ledger
        report = Extraction(apis=apis, configuration=configuration, ledger=ledger).discover()
        present = set(context.instance.get_dynamic_partitions(customers))
        added = [customer for customer in report.customers if customer not in present]
        context.instance.add_dynamic_partitions(customers, added)
        changes = report.changes
        context.log.info(
            "found %d customers: %d new in Dagster, %d parked, %d released, %d gone; read %d conversion windows",
            len(report.customers),
            len(added),
            len(changes.parked),
            len(changes.released),
            len(changes.gone),
            report.lookbacks_read,
        )
        for account, fault in report.failed.items():
            context.log.warning("account %s could not be read: %s: %s", account, fault.error_class, fault.message)
        for account, fault in report.refused.items():
            context.log.warning("account %s is parked: %s: %s", account, fault.error_class, fault.message)
        if report.failure is not None:
            raise dg.Failure(f"no account was read: {report.failure}", allow_retries=False)

    @dg.job(
        name=names.name("discover_accounts"),
        description="Discovers the accounts below the configured managers of Google Ads.",
    )
    def discover_accounts() -> None:
        find_accounts()

    return discover_accounts
