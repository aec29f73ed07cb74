"""Judges any number of sealed runs of one contract in one Spark job, and reads the rows of accepted runs.

One task reads each run whole, so a run gets the same verdict alone and among others. A failure of the cluster or the
disk raises JudgingFailed and gives no verdicts.
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ads_pipeline.contracts.rules import Rules
from ads_pipeline.domain.measures import MEASURED_COLUMNS, Measures
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.domain.transitions import Outcome, Verdict
from ads_pipeline.errors import JudgingFailed, RunDamaged, UnsafePath
from ads_pipeline.quoting import root_cause
from ads_pipeline.raw.reading import read_payload
from ads_pipeline.raw.seal import PAYLOAD, Seal
from ads_pipeline.validator.contract_checks import check_rows
from ads_pipeline.validator.payload import (
    MAX_PAYLOAD_BYTES,
    PayloadRows,
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
    "position int, root string, path string, payload_bytes bigint, payload_sha256 string, record_count bigint, "
    "customer_id string, logical_date string, run_id string"
)
_SUMMABLE: Final = (pa.int64(), pa.float64())  # a contract of a user may give a column another type
_RESULT_SCHEMA: Final = "position int, result string"  # the result as JSON

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPayload:
    """A sealed run and the absolute path of the raw root, as every machine of the cluster sees it."""

    seal: Seal
    root: str

    @property
    def payload_path(self) -> str:
        return f"{self.root}/{self.seal.run.path}/{PAYLOAD}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and the columns of the payload that the contract does not declare."""

    verdict: Verdict
    unknown_columns: tuple[str, ...]


def judge_runs(
    spark: SparkSession,
    runs: Sequence[SealedPayload],
    rules: Rules,
    *,
    validation_id: str = "",
    show_text: bool = False,
) -> list[Judgement]:
    """One judgement per run, in the given order. Raises JudgingFailed when the cluster or the disk fails.

    With `show_text`, the samples of a reason show free text, which may be personal data.
    """
    if not runs:
        return []
    with _translate_errors(f"{len(runs)} runs could not be judged"):
        results = _create_run_frame(spark, runs).mapInArrow(_judge_batches(rules, show_text), _RESULT_SCHEMA)
        collected = {row["position"]: json.loads(row["result"]) for row in results.collect()}
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
            run.root,
            run.seal.run.path,
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


def _judge_batches(rules: Rules, show_text: bool) -> Callable[[Batches], Batches]:
    def judge(batches: Batches) -> Batches:
        for batch in batches:
            results = [json.dumps(_judge_run(run, rules, show_text)) for run in batch.to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [batch["position"], pa.array(results, pa.string())], ["position", "result"]
            )

    return judge


def _judge_run(run: dict[str, Any], rules: Rules, show_text: bool) -> dict[str, Any]:
    payload, damage = _read_payload(run)
    digest = None if payload is None else hashlib.sha256(payload).hexdigest()
    if not damage and run["payload_sha256"] not in (None, digest):
        damage = "the payload's sha256 is not the seal's"
    rows = PayloadRows() if payload is None or damage else read_rows(payload, rules)
    problems = (Problem(error_class="damaged", rule=damage),) if damage else rows.problems
    if not problems and rows.line_count != run["record_count"]:
        rule = f"the payload has {rows.line_count} rows, the seal says {run['record_count']}"
        problems = (Problem(error_class="count_mismatch", rule=rule),)
    if not problems and rows.table is not None:
        logical_date = date.fromisoformat(run["logical_date"])
        problems = check_rows(
            rows.table, rules, customer_id=run["customer_id"], logical_date=logical_date, show_text=show_text
        )
    return {
        "rows": rows.line_count if rows.table is None else rows.table.num_rows,
        "bytes": None if payload is None else len(payload),
        "sha256": digest,
        "reason": Reason(run_id=run["run_id"], problems=problems).json if problems else None,
        "unknown_columns": rows.unknown_columns,
        "measures": {} if rows.table is None else _sum_columns(rows.table),
    }


def _sum_columns(table: pa.Table) -> dict[str, int | float]:
    """The sums of the measured columns that the contract has. Without values, a sum is 0."""
    names = (name for name in MEASURED_COLUMNS if name in table.column_names)
    sums = {name: _sum(table[name]) for name in names if table.schema.field(name).type in _SUMMABLE}
    known = {name: value for name, value in sums.items() if value is not None}
    return {name: value for name, value in known.items() if name != "cost_micros" or isinstance(value, int)}


def _sum(column: pa.ChunkedArray) -> int | float | None:
    """The sum. Of fractions it is exact, because the same rows in another order are no restatement. None: too big."""
    if not pa.types.is_floating(column.type):
        return pc.sum(column).as_py() or 0
    try:
        return math.fsum(column.drop_null().to_pylist())
    except OverflowError:
        return None


def _read_payload(run: dict[str, Any]) -> tuple[bytes | None, str | None]:
    """The payload or None, and the damage or None."""
    try:
        payload = read_payload(Path(run["root"]), run["path"], max_bytes=MAX_PAYLOAD_BYTES)
    except (RunDamaged, UnsafePath) as error:
        return None, error.problem
    if run["payload_bytes"] not in (None, len(payload)):
        return payload, f"the payload has {len(payload)} bytes, the seal says {run['payload_bytes']}"
    return payload, None


def _read_batches(rules: Rules) -> Callable[[Batches], Batches]:
    def read(batches: Batches) -> Batches:
        for batch in batches:
            for run in batch.to_pylist():
                yield from _create_row_batches(run, rules)

    return read


def _create_row_batches(run: dict[str, Any], rules: Rules) -> Batches:
    payload, _damage = _read_payload(run)
    same = payload is not None and hashlib.sha256(payload).hexdigest() == run["payload_sha256"]
    rows = read_rows(payload, rules) if payload is not None and same else PayloadRows()
    if rows.table is None:
        raise RunDamaged(run["path"], "the payload no longer reads as it did when the run was accepted")
    count, table = rows.line_count, rows.table
    key = {
        "customer_id": pa.array([run["customer_id"]] * count, pa.string()),
        "logical_date": pa.array([date.fromisoformat(run["logical_date"])] * count, pa.date32()),
        "run_id": pa.array([run["run_id"]] * count, pa.string()),
        "schema_version": pa.array([rules.schema_version] * count, pa.string()),
    }
    data = {column.name: table[column.name] for column in rules.columns if column.name not in key}
    yield from pa.table(key | data).to_batches(max_chunksize=ROWS_PER_BATCH)


def _create_judgement(run: Run, result: Mapping[str, Any], validation_id: str) -> Judgement:
    reason = None if result["reason"] is None else Reason.from_json(result["reason"])
    verdict = Verdict(
        run=run,
        outcome=Outcome.ACCEPTED if reason is None else Outcome.REJECTED,
        validation_id=validation_id,
        reason=reason,
        rows_read=result["rows"],
        payload_bytes=result["bytes"],
        payload_sha256=result["sha256"],
        measures=Measures(**result["measures"]),
    )
    return Judgement(verdict=verdict, unknown_columns=tuple(result["unknown_columns"]))
