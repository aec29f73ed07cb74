"""Judges any number of sealed runs of one contract in one Spark job, and reads the rows of accepted ones.

Each run is read whole by one task, so its verdict is the one it would get alone. What fails outside a run (the
cluster, the disk) is an error for all and a verdict for none.
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
from ads_pipeline.errors import JudgingFailed, RunDamaged, cause_of
from ads_pipeline.raw.seal import Seal
from ads_pipeline.validator.contract_checks import check_rows
from ads_pipeline.validator.payload import (
    MAX_PAYLOAD_BYTES,
    PayloadRows,
    Violation,
    check_seal,
    empty_table,
    read_bytes,
    read_rows,
)

KEY_COLUMNS: Final = ("customer_id", "logical_date", "run_id", "schema_version")
ROWS_IN_A_BATCH: Final = 50_000
SMALL_RUNS: Final = 2_000
SMALL_BYTES: Final = 64 << 20
RUNS_IN_A_TASK: Final = 125
FEWEST_TASKS: Final = 8
_SPARK_TYPES: Final = {"long": "bigint", "double": "double", "string": "string", "date": "date"}
_TICKET = (
    "place int, payload string, payload_bytes bigint, payload_sha256 string, record_count bigint, "
    "customer_id string, logical_date string, run_id string"
)
_OPINION = "place int, lines bigint, rows_read bigint, findings string, unknown_columns string"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedPayload:
    """A sealed run and the absolute path of its payload, as every machine of the cluster sees it."""

    seal: Seal
    payload: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict and what led to it, for people: the failing checks with samples, and columns nobody asked for."""

    verdict: Verdict
    findings: tuple[Violation, ...]
    unknown_columns: tuple[str, ...]


def judge(
    spark: SparkSession, runs: Sequence[SealedPayload], rules: Rules, *, validation_id: str = ""
) -> list[Judgement]:
    """One verdict for each run, in the order given; JudgingFailed when the cluster or the disk failed."""
    if not runs:
        return []
    with _translated(f"{len(runs)} runs could not be judged"):
        opinions = _tickets(spark, runs).mapInArrow(_judging(rules), _OPINION)
        collected = {row["place"]: row for row in opinions.collect()}
    if len(collected) != len(runs):
        raise JudgingFailed(f"{len(runs)} runs were to be judged, {len(collected)} came back")
    return [_judgement(run.seal.run, collected[place], validation_id) for place, run in enumerate(runs)]


def rows_of(spark: SparkSession, runs: Sequence[SealedPayload], rules: Rules) -> DataFrame:
    """The rows of accepted runs, under the partition's own names; computed when used.

    A run that no longer reads as it did when it was accepted fails the computation: RunDamaged is its cause.
    JudgingFailed when there is no cluster to prepare it.
    """
    data = [column for column in rules.columns if column.name not in KEY_COLUMNS]
    columns = ", ".join(f"`{column.name}` {_SPARK_TYPES[column.kind]}" for column in data)
    schema = f"customer_id string, logical_date date, run_id string, schema_version string, {columns}"
    with _translated(f"{len(runs)} runs could not be read"):
        return _tickets(spark, runs).mapInArrow(_reading(rules), schema)


@contextmanager
def _translated(failure: str) -> Iterator[None]:
    """Over Connect, already the making of a frame asks the server."""
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:
        raise JudgingFailed(f"{failure}: {cause_of(error)}") from error


def _tickets(spark: SparkSession, runs: Sequence[SealedPayload]) -> DataFrame:
    """A row for each run, in an order of chance, so that neighbours who share a task are long and short ones."""
    tickets = [
        (
            place,
            run.payload,
            run.seal.payload_bytes,
            run.seal.payload_sha256,
            run.seal.record_count,
            run.seal.run.key.customer_id,
            run.seal.run.key.logical_date.isoformat(),
            run.seal.run.run_id,
        )
        for place, run in enumerate(runs)
    ]
    random.Random(0).shuffle(tickets)  # noqa: S311 - and always the same order
    frame = spark.createDataFrame(tickets, _TICKET)
    return frame if _is_small(runs) else frame.repartition(max(len(runs) // RUNS_IN_A_TASK, FEWEST_TASKS))


def _is_small(runs: Sequence[SealedPayload]) -> bool:
    """Whether the cluster's own way to cut a list will do: a shuffle costs more than it would balance."""
    known = sum(run.seal.payload_bytes or 0 for run in runs)
    return len(runs) <= SMALL_RUNS and known <= SMALL_BYTES


def _judging(rules: Rules) -> Callable[[Batches], Batches]:
    def judge_batches(batches: Batches) -> Batches:
        for batch in batches:
            opinions = [_opinion(ticket, rules) for ticket in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(opinions, schema=_OPINION_SCHEMA)

    return judge_batches


_OPINION_SCHEMA: Final = pa.schema(
    [
        ("place", pa.int32()),
        ("lines", pa.int64()),
        ("rows_read", pa.int64()),
        ("findings", pa.string()),
        ("unknown_columns", pa.string()),
    ]
)


def _opinion(ticket: dict[str, Any], rules: Rules) -> dict[str, Any]:
    rows = _read(ticket, rules)
    findings = rows.findings
    if not findings and rows.lines != ticket["record_count"]:
        problem = f"the payload has {rows.lines} rows, the seal says {ticket['record_count']}"
        findings = (Violation(error_class="count_mismatch", problem=problem, rows=0),)
    if not findings and rows.table is not None:
        day = date.fromisoformat(ticket["logical_date"])
        findings = check_rows(rows.table, rules, customer_id=ticket["customer_id"], logical_date=day)
    return {
        "place": ticket["place"],
        "lines": rows.lines,
        "rows_read": None if rows.table is None else rows.table.num_rows,
        "findings": json.dumps([asdict(finding) for finding in findings]),
        "unknown_columns": json.dumps(rows.unknown_columns),
    }


def _read(ticket: dict[str, Any], rules: Rules) -> PayloadRows:
    """The run's rows. A payload that is not there is damage only if its seal still is: else the disk is not."""
    try:
        payload = read_bytes(ticket["payload"])
    except FileNotFoundError:
        if not Path(ticket["payload"]).with_name("metadata.json").is_file():
            raise
        return _unread("sealed, but there is no payload")
    if payload is None:
        return _unread(f"the payload is larger than {MAX_PAYLOAD_BYTES} bytes")
    damage = check_seal(payload, payload_bytes=ticket["payload_bytes"], payload_sha256=ticket["payload_sha256"])
    if damage:
        return PayloadRows(lines=0, table=None, findings=damage)
    return read_rows(payload, rules) if payload else PayloadRows(lines=0, table=empty_table(rules))


def _unread(problem: str) -> PayloadRows:
    return PayloadRows(lines=0, table=None, findings=(Violation(error_class="damaged", problem=problem, rows=0),))


def _reading(rules: Rules) -> Callable[[Batches], Batches]:
    def read_batches(batches: Batches) -> Batches:
        for batch in batches:
            for ticket in batch.to_pylist():
                yield from _row_batches(ticket, rules)

    return read_batches


def _row_batches(ticket: dict[str, Any], rules: Rules) -> Batches:
    rows = _read(ticket, rules)
    if rows.table is None or rows.lines != ticket["record_count"]:
        raise RunDamaged(ticket["payload"], "it does not read as it did when it was accepted")
    count, table = rows.lines, rows.table
    key = {
        "customer_id": pa.array([ticket["customer_id"]] * count, pa.string()),
        "logical_date": pa.array([date.fromisoformat(ticket["logical_date"])] * count, pa.date32()),
        "run_id": pa.array([ticket["run_id"]] * count, pa.string()),
        "schema_version": pa.array([rules.schema_version] * count, pa.string()),
    }
    data = {column.name: table[column.name] for column in rules.columns if column.name not in key}
    yield from pa.table(key | data).to_batches(max_chunksize=ROWS_IN_A_BATCH)


def _judgement(run: Run, opinion: Any, validation_id: str) -> Judgement:
    findings = tuple(
        Violation(**{**finding, "samples": tuple(finding["samples"])}) for finding in json.loads(opinion["findings"])
    )
    return Judgement(
        verdict=_verdict(run, findings, opinion, validation_id),
        findings=findings,
        unknown_columns=tuple(json.loads(opinion["unknown_columns"])),
    )


def _verdict(run: Run, findings: tuple[Violation, ...], opinion: Any, validation_id: str) -> Verdict:
    if not findings:
        return Verdict(
            run=run,
            outcome=Outcome.ACCEPTED,
            validation_id=validation_id,
            rows_read=opinion["rows_read"],
            rows_failed=0,
        )
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=validation_id,
        rows_read=opinion["lines"],
        rows_failed=max(finding.rows for finding in findings),
        error_class=findings[0].error_class,
        error_message=f"{run}: {'; '.join(map(str, findings))}",
    )
