"""Judges any number of sealed runs of one contract in one Spark job, and reads the rows of accepted runs.

One task reads each run whole, so a run gets the same verdict alone and among others. A failure of the cluster or the
disk raises JudgingFailed and gives no verdicts.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.contracts.rules import Rules
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.errors import JudgingFailed, RunDamaged
from ads_pipeline.quoting import root_cause
from ads_pipeline.raw.seal import Seal
from ads_pipeline.validator.contract_checks import check_rows
from ads_pipeline.validator.payload import (
    MAX_PAYLOAD_BYTES,
    PayloadRows,
    Violation,
    check_seal,
    empty_table,
    read_payload_bytes,
    read_rows,
)

KEY_COLUMNS: Final = ("customer_id", "logical_date", "run_id", "schema_version")
ROWS_PER_BATCH: Final = 50_000
MAX_RUNS_WITHOUT_SHUFFLE: Final = 2_000
MAX_BYTES_WITHOUT_SHUFFLE: Final = 64 << 20
RUNS_PER_TASK: Final = 125
MIN_TASKS: Final = 8
_SPARK_TYPES: Final = {"long": "bigint", "double": "double", "string": "string", "date": "date"}
_RUN_SCHEMA: Final = (
    "position int, payload string, payload_bytes bigint, payload_sha256 string, record_count bigint, "
    "customer_id string, logical_date string, run_id string"
)
_RESULT_SCHEMA: Final = "position int, line_count bigint, rows_read bigint, violations string, unknown_columns string"
_RESULT_ARROW_SCHEMA: Final = pa.schema(
    [
        ("position", pa.int32()),
        ("line_count", pa.int64()),
        ("rows_read", pa.int64()),
        ("violations", pa.string()),
        ("unknown_columns", pa.string()),
    ]
)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPayload:
    """A sealed run and the absolute path of its payload, as every machine of the cluster sees it."""

    seal: Seal
    payload_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with its violations, and the columns of the payload that the contract does not declare."""

    verdict: Verdict
    violations: tuple[Violation, ...]
    unknown_columns: tuple[str, ...]


def judge_runs(
    spark: SparkSession, runs: Sequence[SealedPayload], rules: Rules, *, validation_id: str = ""
) -> list[Judgement]:
    """One judgement per run, in the given order. Raises JudgingFailed when the cluster or the disk fails."""
    if not runs:
        return []
    with _translate_errors(f"{len(runs)} runs could not be judged"):
        results = _create_run_frame(spark, runs).mapInArrow(_judge_batches(rules), _RESULT_SCHEMA)
        collected = {row["position"]: row for row in results.collect()}
    if len(collected) != len(runs):
        raise JudgingFailed(f"Spark returned results for {len(collected)} of {len(runs)} runs")
    return [_create_judgement(run.seal.run, collected[n], validation_id) for n, run in enumerate(runs)]


def read_accepted_rows(spark: SparkSession, runs: Sequence[SealedPayload], rules: Rules) -> DataFrame:
    """The rows of accepted runs, with the key columns added. Spark computes them when the frame is used.

    The computation fails with RunDamaged as its cause when a run no longer reads as it did when it was accepted.
    Raises JudgingFailed when Spark cannot create the frame.
    """
    data = [column for column in rules.columns if column.name not in KEY_COLUMNS]
    columns = ", ".join(f"`{column.name}` {_SPARK_TYPES[column.kind]}" for column in data)
    schema = f"customer_id string, logical_date date, run_id string, schema_version string, {columns}"
    with _translate_errors(f"{len(runs)} runs could not be read"):
        return _create_run_frame(spark, runs).mapInArrow(_read_batches(rules), schema)


@contextmanager
def _translate_errors(failure: str) -> Iterator[None]:
    """Raise JudgingFailed for Spark and disk errors. With Spark Connect, even creating a frame calls the server."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise JudgingFailed(f"{failure}: {root_cause(error)}") from error


def _create_run_frame(spark: SparkSession, runs: Sequence[SealedPayload]) -> DataFrame:
    """One row per run, shuffled so that each task gets long and short runs."""
    rows = [
        (
            position,
            run.payload_path,
            run.seal.payload_bytes,
            run.seal.payload_sha256,
            run.seal.record_count,
            run.seal.run.key.customer_id,
            run.seal.run.key.logical_date.isoformat(),
            run.seal.run.run_id,
        )
        for position, run in enumerate(runs)
    ]
    random.Random(0).shuffle(rows)  # noqa: S311 - the same order every time
    frame = spark.createDataFrame(rows, _RUN_SCHEMA)
    return frame if _is_small(runs) else frame.repartition(max(len(runs) // RUNS_PER_TASK, MIN_TASKS))


def _is_small(runs: Sequence[SealedPayload]) -> bool:
    """Whether Spark's default split is enough. For few runs, a shuffle costs more than better balance saves."""
    known_bytes = sum(run.seal.payload_bytes or 0 for run in runs)
    return len(runs) <= MAX_RUNS_WITHOUT_SHUFFLE and known_bytes <= MAX_BYTES_WITHOUT_SHUFFLE


def _judge_batches(rules: Rules) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        for batch in batches:
            results = [_judge_run(run, rules) for run in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(results, schema=_RESULT_ARROW_SCHEMA)

    return judge


def _judge_run(run: dict[str, Any], rules: Rules) -> dict[str, Any]:
    rows = _read_run(run, rules)
    violations = rows.violations
    if not violations and rows.line_count != run["record_count"]:
        problem = f"the payload has {rows.line_count} rows, the seal says {run['record_count']}"
        violations = (Violation(error_class="count_mismatch", problem=problem, rows=0),)
    if not violations and rows.table is not None:
        logical_date = date.fromisoformat(run["logical_date"])
        violations = check_rows(rows.table, rules, customer_id=run["customer_id"], logical_date=logical_date)
    return {
        "position": run["position"],
        "line_count": rows.line_count,
        "rows_read": None if rows.table is None else rows.table.num_rows,
        "violations": json.dumps([asdict(violation) for violation in violations]),
        "unknown_columns": json.dumps(rows.unknown_columns),
    }


def _read_run(run: dict[str, Any], rules: Rules) -> PayloadRows:
    """The run's rows. A missing payload is damage only if the seal is still there; otherwise the disk has failed."""
    try:
        payload = read_payload_bytes(run["payload"])
    except FileNotFoundError:
        if not Path(run["payload"]).with_name("metadata.json").is_file():
            raise
        return _damaged("sealed, but there is no payload")
    if payload is None:
        return _damaged(f"the payload is larger than {MAX_PAYLOAD_BYTES} bytes")
    damage = check_seal(payload, payload_bytes=run["payload_bytes"], payload_sha256=run["payload_sha256"])
    if damage:
        return PayloadRows(line_count=0, table=None, violations=damage)
    return read_rows(payload, rules) if payload else PayloadRows(line_count=0, table=empty_table(rules))


def _damaged(problem: str) -> PayloadRows:
    violation = Violation(error_class="damaged", problem=problem, rows=0)
    return PayloadRows(line_count=0, table=None, violations=(violation,))


def _read_batches(rules: Rules) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for run in batch.to_pylist():
                yield from _create_row_batches(run, rules)

    return read


def _create_row_batches(run: dict[str, Any], rules: Rules) -> Batches:
    rows = _read_run(run, rules)
    if rows.table is None or rows.line_count != run["record_count"]:
        raise RunDamaged(run["payload"], "the payload no longer reads as it did when the run was accepted")
    count, table = rows.line_count, rows.table
    key = {
        "customer_id": pa.array([run["customer_id"]] * count, pa.string()),
        "logical_date": pa.array([date.fromisoformat(run["logical_date"])] * count, pa.date32()),
        "run_id": pa.array([run["run_id"]] * count, pa.string()),
        "schema_version": pa.array([rules.schema_version] * count, pa.string()),
    }
    data = {column.name: table[column.name] for column in rules.columns if column.name not in key}
    yield from pa.table(key | data).to_batches(max_chunksize=ROWS_PER_BATCH)


def _create_judgement(run: Run, result: Any, validation_id: str) -> Judgement:
    violations = tuple(
        Violation(**{**fields, "samples": tuple(fields["samples"])}) for fields in json.loads(result["violations"])
    )
    return Judgement(
        verdict=_create_verdict(run, violations, result, validation_id),
        violations=violations,
        unknown_columns=tuple(json.loads(result["unknown_columns"])),
    )


def _create_verdict(run: Run, violations: tuple[Violation, ...], result: Any, validation_id: str) -> Verdict:
    if not violations:
        return Verdict(
            run=run,
            outcome=Outcome.ACCEPTED,
            validation_id=validation_id,
            rows_read=result["rows_read"],
            rows_failed=0,
        )
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=validation_id,
        rows_read=result["line_count"],
        rows_failed=max(violation.rows for violation in violations),
        error_class=violations[0].error_class,
        error_message=f"{run}: {'; '.join(map(str, violations))}",
    )
