"""Judges runs inside a Spark task. Each payload is read once; its rows are handed on with the result.

The payloads of many small runs are read and checked together. Runs that fail are judged again one by one, which finds
the reasons. So a run gets the same verdict alone and among others.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import chain, groupby, pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ads_pipeline.domain.errors import RunDamaged, UnsafePath
from ads_pipeline.domain.measures import MEASURED_COLUMNS
from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.lake.raw.reading import stream_payload
from ads_pipeline.validation.contract_checks import check_rows, find_failing_runs
from ads_pipeline.validation.contract_rules import Rules
from ads_pipeline.validation.payload_rows import (
    MAX_PAYLOAD_BYTES,
    PayloadReader,
    PayloadRows,
    count_plain_lines,
    read_plain_lines,
)

BYTES_READ_TOGETHER: Final = 4 << 20
_INT64: Final = range(-(1 << 63), 1 << 63)
_SUMMABLE: Final = (pa.int64(), pa.float64())  # a contract of a user may give a column another type


class TaskRun(NamedTuple):
    """A sealed run, as a task needs it. A tuple, because JSON carries it to the task."""

    position: int
    path: str
    run_id: str
    customer_id: str
    logical_date: str
    record_count: int
    payload_bytes: int | None
    payload_sha256: str | None
    extracted_at: str
    currency_code: str | None

    @property
    def day(self) -> date:
        return date.fromisoformat(self.logical_date)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The findings in a run's payload. `reason` is JSON, or None when the run is accepted."""

    position: int
    rows: int
    bytes: int | None
    sha256: str | None
    reason: str | None = None
    unknown_columns: tuple[str, ...] = ()
    measures: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRuns:
    """Results of some runs, and the rows of those that were accepted: how many of each run, one after the other."""

    results: tuple[RunResult, ...]
    accepted: tuple[tuple[TaskRun, int], ...] = ()
    rows: pa.Table | None = None


class RowSink(Protocol):
    """Receives the rows of accepted runs in a task."""

    def add(self, accepted: Sequence[tuple[TaskRun, int]], rows: pa.Table) -> None:
        """Take the rows of these runs, so many of each, one after the other."""
        ...

    def finish(self) -> Sequence[Mapping[str, Any]]:
        """Report what became of the rows to the driver, as JSON can carry it."""
        ...


class NoSink:
    """Drops the rows."""

    def add(self, accepted: Sequence[tuple[TaskRun, int]], rows: pa.Table) -> None:
        pass

    def finish(self) -> Sequence[Mapping[str, Any]]:
        return ()


class _Payload(NamedTuple):
    """A whole small payload."""

    run: TaskRun
    content: bytes
    sha256: str


def run_task(
    location: str, rules: Rules, show_text: bool, open_sink: Callable[[], RowSink], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Judge the units of these batches. A unit's result, as JSON, has what was found and what the sink gave."""
    for batch in batches:
        for text in batch["runs"].to_pylist():
            sink, results = open_sink(), list[dict[str, Any]]()
            runs = (TaskRun(*each) for each in json.loads(text))
            for judged in judge_in_task(location, runs, rules, show_text=show_text):
                results += map(asdict, judged.results)
                if judged.rows is not None:
                    sink.add(judged.accepted, judged.rows)
            result = json.dumps({"results": results, "written": list(sink.finish())})
            yield pa.RecordBatch.from_arrays([pa.array([result], pa.string())], ["result"])


def judge_in_task(location: str, runs: Iterable[TaskRun], rules: Rules, *, show_text: bool) -> Iterator[JudgedRuns]:
    """Judge runs below a raw root one block after the other. Accepted rows come in the order of the runs."""
    waiting, size = list[_Payload](), 0
    for run in runs:
        blocks = stream_payload(location, run.path, max_bytes=MAX_PAYLOAD_BYTES)
        try:
            first, second = next(blocks, b""), next(blocks, None)
        except (RunDamaged, UnsafePath) as error:
            yield JudgedRuns(results=(_reject_damaged(run, error.problem),))
            continue
        if second is None:
            waiting.append(_Payload(run, first, hashlib.sha256(first).hexdigest()))
            size += len(first)
        if size >= BYTES_READ_TOGETHER or second is not None:
            yield from _judge_small(waiting, rules, show_text)
            waiting, size = [], 0
        if second is not None:
            yield _judge_alone(run, chain((first, second), blocks), rules, show_text)
    yield from _judge_small(waiting, rules, show_text)


def _judge_small(payloads: list[_Payload], rules: Rules, show_text: bool) -> Iterator[JudgedRuns]:
    """Judge neighbours together where their seals match and every line can be read by Arrow; the others alone."""
    for is_plain, group in groupby(payloads, key=_is_plain):
        if is_plain:
            yield from _judge_together(list(group), rules, show_text)
        else:
            for run, content, _sha256 in group:
                yield _judge_alone(run, [content], rules, show_text)


def _is_plain(payload: _Payload) -> bool:
    run, content, sha256 = payload
    return (
        run.payload_bytes in (None, len(content))
        and run.payload_sha256 in (None, sha256)
        and count_plain_lines(content) == run.record_count
    )


def _judge_together(payloads: list[_Payload], rules: Rules, show_text: bool) -> Iterator[JudgedRuns]:
    """Judge runs in one table. When Arrow cannot read it, try each half, until the bad run is alone."""
    if len(payloads) == 1:
        run, content, _sha256 = payloads[0]
        yield _judge_alone(run, [content], rules, show_text)
        return
    lines = b"".join(each.content if each.content.endswith(b"\n") else each.content + b"\n" for each in payloads)
    counts = [each.run.record_count for each in payloads]
    table = read_plain_lines(lines, rules, sum(counts))
    if table is None:
        middle = len(payloads) // 2
        yield from _judge_together(payloads[:middle], rules, show_text)
        yield from _judge_together(payloads[middle:], rules, show_text)
        return
    runs = [each.run for each in payloads]
    counts = [run.record_count for run in runs]
    failing = find_failing_runs(
        table,
        rules,
        row_counts=counts,
        customer_ids=[run.customer_id for run in runs],
        days=[run.day for run in runs],
    )
    yield JudgedRuns(
        results=tuple(
            RunResult(
                position=run.position, rows=run.record_count, bytes=len(content), sha256=sha256, measures=measures
            )
            for number, ((run, content, sha256), measures) in enumerate(
                zip(payloads, _sum_each(table, counts), strict=True)
            )
            if number not in failing
        ),
        accepted=tuple((run, run.record_count) for number, run in enumerate(runs) if number not in failing),
        rows=_without(table, counts, failing),
    )
    for number in sorted(failing):
        run, content, _sha256 = payloads[number]
        yield _judge_alone(run, [content], rules, show_text)


def _without(table: pa.Table, counts: list[int], left_out: set[int]) -> pa.Table:
    if not left_out:
        return table
    kept = np.repeat([number not in left_out for number in range(len(counts))], counts)
    return table.filter(pa.array(kept))


def _judge_alone(run: TaskRun, blocks: Iterable[bytes], rules: Rules, show_text: bool) -> JudgedRuns:
    """Judge one run. The payload's size and digest are known when its last block was read."""
    reader, digest, size = PayloadReader(rules), hashlib.sha256(), 0
    try:
        for block in blocks:
            digest.update(block)
            size += len(block)
            reader.add(block)
    except (RunDamaged, UnsafePath) as error:
        return JudgedRuns(results=(_reject_damaged(run, error.problem),))
    sha256 = digest.hexdigest()
    damage = _find_damage(run, size, sha256)
    rows = PayloadRows() if damage else reader.finish()
    problems = (Problem(error_class="damaged", rule=damage),) if damage else rows.problems
    if not problems and rows.line_count != run.record_count:
        rule = f"the payload has {rows.line_count} rows, the seal says {run.record_count}"
        problems = (Problem(error_class="count_mismatch", rule=rule),)
    if not problems and rows.table is not None:
        problems = check_rows(
            rows.table, rules, customer_id=run.customer_id, logical_date=run.day, show_text=show_text
        )
    result = RunResult(
        position=run.position,
        rows=rows.line_count,
        bytes=size,
        sha256=sha256,
        reason=Reason(run_id=run.run_id, problems=problems).json if problems else None,
        unknown_columns=rows.unknown_columns,
        measures={} if rows.table is None else next(_sum_each(rows.table, [rows.line_count])),
    )
    if problems:
        return JudgedRuns(results=(result,))
    return JudgedRuns(results=(result,), accepted=((run, rows.line_count),), rows=rows.table)


def _find_damage(run: TaskRun, size: int, sha256: str) -> str | None:
    if run.payload_bytes not in (None, size):
        return f"the payload has {size} bytes, the seal says {run.payload_bytes}"
    if run.payload_sha256 not in (None, sha256):
        return "the payload's sha256 is not the seal's"
    return None


def _reject_damaged(run: TaskRun, problem: str) -> RunResult:
    reason = Reason(run_id=run.run_id, problems=(Problem(error_class="damaged", rule=problem),))
    return RunResult(position=run.position, rows=0, bytes=None, sha256=None, reason=reason.json)


def _sum_each(table: pa.Table, counts: list[int]) -> Iterator[dict[str, int | float]]:
    """For each run, the sums of the measured columns that the contract has. Without values, a sum is 0."""
    names = [name for name in MEASURED_COLUMNS if name in table.column_names]
    columns = {name: table[name] for name in names if table.schema.field(name).type in _SUMMABLE}
    if isinstance(columns.get("cost_micros"), pa.ChunkedArray) and pa.types.is_floating(columns["cost_micros"].type):
        del columns["cost_micros"]
    ends = np.cumsum([0, *counts]).tolist()
    sums = [_sum_slices(column, ends) for column in columns.values()]
    for values in zip(*sums, strict=True) if sums else [()] * len(counts):
        yield {name: value for name, value in zip(columns, values, strict=True) if value is not None}


def _sum_slices(column: pa.ChunkedArray, ends: list[int]) -> list[int | float | None]:
    """The sums between neighbouring ends. Of fractions they are exact, because another order is no restatement.

    A sum that its type cannot hold is None: the ledger stores integers of 64 bits.
    """
    if not pa.types.is_floating(column.type):
        return [_sum_integers(column.slice(a, b - a)) for a, b in pairwise(ends)]
    values = column.to_pylist() if column.null_count else column.to_numpy().tolist()
    return [_sum_exactly(values[a:b]) for a, b in pairwise(ends)]


def _sum_integers(values: pa.ChunkedArray) -> int | None:
    """The sum of integers. Arrow's sum overflows without an error, so it is used for small ones alone."""
    bounds = pc.min_max(values)
    if all(abs(bounds[name].as_py() or 0) * len(values) in _INT64 for name in ("min", "max")):
        return pc.sum(values).as_py() or 0
    total = sum(value for value in values.to_pylist() if value is not None)
    return total if total in _INT64 else None


def _sum_exactly(values: list[Any]) -> float | None:
    try:
        return math.fsum(value for value in values if value is not None) if None in values else math.fsum(values)
    except OverflowError:
        return None
