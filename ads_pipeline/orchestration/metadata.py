"""Says of each partition what the Dagster UI should show: where it comes from, what changed, what was wrong."""

from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.transitions import Outcome, RegisteredRun
from ads_pipeline.errors import AdsPipelineError
from ads_pipeline.ledger.values import Pointer
from ads_pipeline.pipeline.staleness import AssetStatus
from ads_pipeline.validator.judging import Judgement

MICROS: Final = 1_000_000


def of_run(known: RegisteredRun) -> dict[str, Any]:
    """What the ledger holds of a run; a damaged one has neither rows nor a schema version."""
    rows = dg.MetadataValue.int(known.record_count or 0)
    return {
        "run_id": known.run.run_id,
        "rows": rows,
        "dagster/partition_row_count": rows,
        "schema_version": known.schema_version or "unknown: the run is damaged",
    }


def of_load(now: Pointer, before: Pointer | None, *, cost: int | None, cost_before: int | None) -> dict[str, Any]:
    """What readers are shown, beside what they were shown before. Costs come in millionths of the currency."""
    told: dict[str, Any] = {
        "run_id": now.run.run_id,
        "rows": dg.MetadataValue.int(now.record_count),
        "dagster/partition_row_count": dg.MetadataValue.int(now.record_count),
        "schema_version": now.schema_version,
        "table_version": dg.MetadataValue.int(now.table_version),
    }
    if cost is not None:
        told["cost"] = dg.MetadataValue.float(cost / MICROS)
    if before is not None and before.run != now.run:
        told["previous_run_id"] = before.run.run_id
        told["change_in_rows"] = dg.MetadataValue.int(now.record_count - before.record_count)
        if cost is not None or cost_before is not None:
            told["change_in_cost"] = dg.MetadataValue.float(((cost or 0) - (cost_before or 0)) / MICROS)
    return told


def of_look(look: AssetStatus) -> dict[str, Any]:
    """How current the partition is, and why it is not."""
    told: dict[str, Any] = {"display_status": str(look.display), "last_attempt": str(look.last_attempt or "none")}
    if look.stale:
        told["stale_since"] = dg.MetadataValue.timestamp(look.stale.since)
        told["stale_reasons"] = ", ".join(look.stale.reasons)
    return told


def of_verdict(
    run_id: str, outcome: Outcome | None, judgement: Judgement | None, unjudged: AdsPipelineError | None
) -> dict[str, Any]:
    """What the validator found, with a few samples as a table."""
    told: dict[str, Any] = {"run_id": run_id, "verdict": str(outcome or "none")}
    if unjudged is not None:
        told["why"] = str(unjudged)
    if judgement is None:
        return told
    if judgement.verdict.error_message:
        told["why"] = judgement.verdict.error_message
    if judgement.verdict.rows_read is not None:
        told["rows_read"] = dg.MetadataValue.int(judgement.verdict.rows_read)
    if judgement.unknown_columns:
        told["unknown_columns"] = ", ".join(judgement.unknown_columns)
    if judgement.findings:
        told["findings"] = dg.MetadataValue.table(
            records=[
                dg.TableRecord(
                    {"check": each.problem, "rows": each.rows, "samples": "; ".join(map(str, each.samples))}
                )
                for each in judgement.findings
            ]
        )
    return told
