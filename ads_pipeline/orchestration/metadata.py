"""Builds the metadata that the Dagster UI shows for runs, loads and verdicts."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote

import dagster as dg

from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.domain.measures import NO_MEASURES, Measures
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome, RegisteredRun
from ads_pipeline.ledger.sql.ledger_values import Pointer
from ads_pipeline.orchestration.event_storage.dagster_private import build_target
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.pipeline.days.staleness import AssetStatus
from ads_pipeline.validation.judgement import Judgement

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
SHOWN_NOTES: Final = ("request_id", "range", "query_resource_consumption", "provisional")
MICROS: Final = 1_000_000


def find_materializations(
    instance: dg.DagsterInstance, asset: dg.AssetKey, keys: Iterable[PartitionKey]
) -> dict[PartitionKey, int]:
    """The storage id of the newest materialization of each partition that has one."""
    names = {key.dagster_key: key for key in keys}
    if not names:
        return {}  # Dagster takes an empty set for all partitions
    found = instance.event_log_storage.get_latest_storage_id_by_partition(
        asset, dg.DagsterEventType.ASSET_MATERIALIZATION, set(names)
    )
    return {names[str(name)]: storage_id for name, storage_id in found.items()}


def find_targets(
    context: dg.AssetCheckExecutionContext, asset: dg.AssetKey, keys: Iterable[PartitionKey]
) -> dict[PartitionKey, Any]:
    """The materialization that the check of each partition is about. Without it, the UI shows no result."""
    return {
        key: build_target(storage_id, context.run.run_id)
        for key, storage_id in find_materializations(context.instance, asset, keys).items()
    }


def describe_run(registered: RegisteredRun, notes: Mapping[str, Any] = EMPTY) -> dict[str, Any]:
    """Describe a registered run. A damaged run has neither rows nor a schema version.

    Figures are texts, because Dagster plots numbers over all partitions, whatever their customers and currencies.
    `notes` are what the extractor of this deployment noted in the seal.
    """
    count = registered.record_count or 0
    return {
        "run_id": registered.run.run_id,
        "rows": f"{count:,}",
        "schema_version": registered.schema_version or "unknown: the run is damaged",
        **{name: _as_text(notes[name]) for name in SHOWN_NOTES if notes.get(name) is not None},
    }


def _as_text(note: Any) -> Any:
    return str(note) if isinstance(note, int) and not isinstance(note, bool) else note


def describe_load(
    run: Run,
    before: Pointer | None,
    *,
    names: Names,
    rows: int,
    schema_version: str,
    table_version: int,
    measures: Mapping[Run, Measures],
    currency: str,
) -> dict[str, Any]:
    """Describe the run that readers see, and the change from the run before it. `measures` are the sums of runs.

    Figures are texts, as in `describe_run`.
    """
    metadata: dict[str, Any] = {
        "run_id": run.run_id,
        "rows": f"{rows:,}",
        "schema_version": schema_version,
        "table_version": str(table_version),
        "raw_run": dg.MetadataValue.url(partition_page(names.raw(run.key.query_name), run.key)),
    }
    after = measures.get(run, NO_MEASURES)
    if after.cost_micros is not None:
        metadata["cost"] = f"{after.cost_micros / MICROS:,.2f} {currency}".strip()
    if before is None or before.run == run:
        return metadata
    earlier = measures.get(before.run, NO_MEASURES)
    metadata["previous_run_id"] = before.run.run_id
    metadata["change_in_rows"] = f"{rows - before.record_count:+,}"
    if after.cost_micros is not None and earlier.cost_micros is not None:
        change = (after.cost_micros - earlier.cost_micros) / MICROS
        metadata["change_in_cost"] = f"{change:+,.2f} {currency}".strip()
    for name in ("conversions", "conversions_value"):
        value, value_before = getattr(after, name), getattr(earlier, name)
        if value is not None and value_before is not None:
            metadata[name] = f"{value:,.2f}"
            metadata[f"change_in_{name}"] = f"{value - value_before:+,.2f}"
    return metadata


def describe_removal(previous_run_id: str, why: str) -> dict[str, Any]:
    """Describe a partition whose rows were removed outside a run of the assets."""
    return {
        "rows": "0",
        "dagster/partition_row_count": dg.MetadataValue.int(0),
        "previous_run_id": previous_run_id,
        "removed_because": why,
    }


def partition_page(asset: dg.AssetKey, key: PartitionKey) -> str:
    """The address of a partition's page, on whichever server shows the link."""
    return f"/assets/{'/'.join(asset.path)}?view=partitions&partition={quote(key.dagster_key)}"


def describe_status(status: AssetStatus) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "display_status": str(status.display),
        "last_attempt": str(status.last_attempt or "none"),
    }
    if status.stale:
        metadata["stale_since"] = dg.MetadataValue.timestamp(status.stale.since)
        metadata["stale_reasons"] = ", ".join(status.stale.reasons)
    return metadata


def describe_verdict(
    run_id: str, outcome: Outcome | None, judgement: Judgement | None, unjudged: AdsPipelineError | None
) -> dict[str, Any]:
    """Describe a verdict, with the violations and sample rows as a table."""
    metadata: dict[str, Any] = {"run_id": run_id, "verdict": str(outcome or "none")}
    if unjudged is not None:
        metadata["reason"] = str(unjudged)
    if judgement is None:
        return metadata
    if judgement.verdict.rows_read is not None:
        metadata["rows_read"] = str(judgement.verdict.rows_read)  # a number would be plotted over all partitions
    if judgement.unknown_columns:
        metadata["unknown_columns"] = ", ".join(judgement.unknown_columns)
    if reason := judgement.verdict.reason:
        metadata["reason"] = str(reason)
        records = [
            dg.TableRecord({"check": each.text, "rows": each.rows, "samples": each.samples_text})
            for each in reason.problems
        ]
        metadata["violations"] = dg.MetadataValue.table(records=records)
    return metadata
