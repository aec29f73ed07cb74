"""Says of each partition what the Dagster UI should show: where it comes from, what changed, what was wrong."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import dagster as dg

from ads_pipeline.errors import AdsPipelineError, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.records import Pointer
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.raw import RawRuns
from ads_pipeline.transitions import Outcome, RegisteredRun
from ads_pipeline.validator.judging import Judgement

MICROS: Final = 1_000_000


def of_runs(
    raw: RawRuns, newest: Mapping[PartitionKey, tuple[RegisteredRun, Outcome | None]], arrived: Iterable[Run]
) -> dict[PartitionKey, dict[str, Any]]:
    """The newest run of each partition that has any: one that has just arrived, or one known before."""
    told = {
        key: _of_run(known.run.run_id, known.record_count, known.schema_version)
        for key, (known, _outcome) in newest.items()
    }
    for run in arrived:
        try:
            seal = raw.seal(run)
            told[run.key] = _of_run(run.run_id, seal.record_count, seal.facts.schema_version)
        except (RunDamaged, RunNotSealed, UnsafePath):
            told[run.key] = _of_run(run.run_id, None, None)
    return told


def _of_run(run_id: str, rows: int | None, schema_version: str | None) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "rows": dg.MetadataValue.int(rows or 0),
        "dagster/partition_row_count": dg.MetadataValue.int(rows or 0),
        "schema_version": schema_version or "unknown: the run is damaged",
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
