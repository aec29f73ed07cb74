"""Builds the assets that Dagster's catalogue shows beside the queries: the source upstream, the outputs downstream.

It also describes the columns and the location of each query's tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition, urgency
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.operations.report.basis import find_basis
from ads_pipeline.operations.report.content import LETTERS, Note, ReportContent
from ads_pipeline.operations.report.document import summarize
from ads_pipeline.operations.report.writing import ReportWriter, report_path
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import STEP_RESOURCES
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import Query
from ads_pipeline.validation.contract_registry import Contracts

RAW_GROUP, WAREHOUSE_GROUP, SOURCE_GROUP, OUTPUT_GROUP = "raw", "warehouse", "source", "outputs"
MAX_WORK: Final = 100  # rows of the table; the report has all
WORK_SCHEMA: Final = dg.TableSchema(columns=[dg.TableColumn(name) for name in ("customer", "query", "day", "reason")])
REPORT: Final = "report"
BASIS_TAG: Final = "ads_pipeline/report_basis"  # of a materialization: what the report shows
STATUS: Final = "partition_status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What the catalogue shows of each asset beside its description."""

    owners: Sequence[str] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


TEAM: Final = Labels(owners=["team:ads-data"])  # of the code location of the package


def describe_tables(name: str, query: Query, contracts: Contracts) -> dict[str, Any]:
    """The columns of a query's rows, as its contract declares them."""
    rules = contracts.rules(name, query.schema_version)
    columns = [
        dg.TableColumn(column.name, column.kind, constraints=dg.TableColumnConstraints(nullable=column.nullable))
        for column in rules.columns
    ]
    return {"dagster/column_schema": dg.TableSchema(columns=columns)}


def describe_location(name: str, settings: Settings) -> dict[str, Any]:
    """The path of a query's Delta table."""
    table = WarehouseTable(location=settings.warehouse_location, source=settings.google_apis.source, query_name=name)
    return {"dagster/uri": table.uri}


def describe_report(settings: Settings) -> dict[str, Any]:
    """The path of the report. It is no link, because browsers open no file by a link from a web page."""
    return {"report": dg.MetadataValue.path(report_path(settings))}


def build_external_assets(
    names: Names, labels: Labels, query_names: Sequence[str], settings: Settings
) -> list[dg.AssetSpec]:
    """The source that is fetched from, and the status file that the job `reconcile` writes."""
    return [
        dg.AssetSpec(
            names.key(settings.google_apis.source),
            group_name=names.name(SOURCE_GROUP),
            description=(
                "The reporting API of the source. Extractors fetch one report for each customer, query and day. "
                "Dagster does not run it."
            ),
            metadata=describe_report(settings),
            kinds={"googleads"},
            owners=labels.owners,
            tags=labels.tags,
        ),
        dg.AssetSpec(
            names.key(STATUS),
            deps=[names.warehouse(name) for name in query_names],
            group_name=names.name(OUTPUT_GROUP),
            description=(
                "`partition_status.parquet`: the last materialization, the last attempt and the staleness of each "
                "partition, for dashboards and other programs. "
                f"The job `{names.name('reconcile')}` writes it every hour."
            ),
            metadata=describe_report(settings) | {"dagster/uri": settings.status_file},
            kinds={"parquet"},
            owners=labels.owners,
            tags=labels.tags,
        ),
    ]


def build_report(
    names: Names, labels: Labels, query_names: Sequence[str], settings: Settings, *, now: Clock
) -> dg.AssetsDefinition:
    @dg.asset(
        key=names.key(REPORT),
        deps=[names.warehouse(name) for name in query_names],
        group_name=names.name(OUTPUT_GROUP),
        description=(
            "One HTML page that shows which days are safe to read and what needs an operator. The metadata of the "
            "last materialization has its path and the days that need you. "
            f"The sensor `{names.name('report_changes')}` renews it when something has changed; so does "
            f"`{settings.command('ads-pipeline report')}`."
        ),
        metadata=describe_report(settings),
        kinds={"html"},
        owners=labels.owners,
        tags=labels.tags,
        required_resource_keys=names.require(STEP_RESOURCES),
    )
    def report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        step_resources = names.find(context, STEP_RESOURCES)
        path = report_path(step_resources.settings)
        writer = ReportWriter.of_deployment(step_resources.settings, step_resources.ledger)
        at = now()
        # Found before the days are read: what changes meanwhile is a reason to write the report again.
        basis = find_basis(step_resources.ledger, step_resources.settings, now=at)
        content = writer.write(path, now=at)
        context.log.info("%s", summarize(content))
        days = {CONDITIONS[condition].label: number for condition, number in content.counts.items()}
        return dg.MaterializeResult(
            metadata={
                "days_that_need_you": dg.MetadataValue.table(_list_work(content), schema=WORK_SCHEMA),
                "summary": summarize(content),
                "next_command": settings.command(f"ads-pipeline state why {content.source}/CUSTOMER/QUERY/DAY"),
                "days": dg.MetadataValue.json(days),
                "report": dg.MetadataValue.path(path),
            },
            tags={names.tag(BASIS_TAG): basis},
        )

    return report


def _list_work(content: ReportContent) -> list[dg.TableRecord]:
    """The days that need an operator, the most urgent and then the newest first."""
    conditions = {letter: condition for condition, letter in LETTERS.items()}
    found = []
    for query in content.queries:
        for place, note in query.notes.items():
            customer, position = map(int, place.split(","))
            condition = conditions[query.cells[customer][position]]
            if not CONDITIONS[condition].needs_operator:
                continue
            day = content.first_day + timedelta(days=position)
            key = PartitionKey(
                source=content.source,
                customer_id=content.customers[customer][0],
                query_name=query.name,
                logical_date=day,
            )
            found.append((urgency(condition, day), key, condition, note))
    return [_describe_work(key, condition, note, content) for _, key, condition, note in sorted(found)[:MAX_WORK]]


def _describe_work(key: PartitionKey, condition: Condition, note: Note, content: ReportContent) -> dg.TableRecord:
    return dg.TableRecord(
        {
            "customer": key.customer_id,
            "query": key.query_name,
            "day": key.logical_date.isoformat(),
            "reason": f"{CONDITIONS[condition].label}: {content.texts[note.reason]}",
        }
    )
