"""Reads payloads into typed columns, and reports each line that it cannot read.

There are two readers. Arrow's is many times faster, but it accepts some invalid lines. It is used only for lines
that cannot be such. The other parses line by line in Python, reads everything else and reports problems. A property
test checks that both readers return the same rows.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from ads_pipeline.domain.errors import BadJson
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.reason import MAX_PROBLEMS, MAX_SAMPLES, Problem, Sample
from ads_pipeline.lake.raw.strict_json import parse_object
from ads_pipeline.validation.contract_rules import ColumnRule, Rules

MAX_LINE_BYTES: Final = 16 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 30
MAX_UNKNOWN_COLUMNS: Final = 50
ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
}
_INT64 = range(-(1 << 63), 1 << 63)
_INT64_TEXT = re.compile(r"-?(0|[1-9][0-9]{0,18})", re.ASCII)
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRows:
    """The rows of a payload. `table` is None when there are problems, because part of a run must not be used."""

    line_count: int = 0
    table: pa.Table | None = None
    problems: tuple[Problem, ...] = ()
    unknown_columns: tuple[str, ...] = ()


@dataclass(slots=True)
class _BadLines:
    """Counts bad lines per error class, rule and field, and keeps the first few line numbers of each."""

    counts: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    samples: dict[tuple[str, str, str | None], list[Sample]] = field(default_factory=dict)

    def add(self, error_class: str, rule: str, line: int, *, field_name: str | None = None) -> None:
        kind = (error_class, rule, field_name)
        if kind not in self.counts and len(self.counts) == MAX_PROBLEMS:
            return
        self.counts[kind] = self.counts.get(kind, 0) + 1
        samples = self.samples.setdefault(kind, [])
        if len(samples) < MAX_SAMPLES:
            samples.append(Sample(line=line))

    def problems(self) -> tuple[Problem, ...]:
        return tuple(
            Problem(
                error_class=error_class,
                rule=rule,
                fields=() if name is None else (name,),
                rows=rows,
                samples=tuple(self.samples[error_class, rule, name]),
            )
            for (error_class, rule, name), rows in self.counts.items()
        )


class _BadValue(Exception):
    """A value of the wrong type. The message describes the type and never quotes the value."""


class PayloadReader:
    """Reads one payload block by block, so that a long one never has to be in memory as text."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._tables: list[pa.Table] = []
        self._bad_lines, self._unknown = _BadLines(), set[str]()
        self._line_count = 0
        self._rest = b""

    def add(self, block: bytes) -> None:
        """Read the next bytes. A line may continue in the next block."""
        end = block.rfind(b"\n") + 1
        if not end:
            self._rest += block
            return
        lines, self._rest = self._rest + block[:end], block[end:]
        self._read(lines)

    def finish(self) -> PayloadRows:
        """The rows of the whole payload in the contract's columns, or the problems and their lines."""
        if self._rest:
            self._read(self._rest)
        names = tuple(sorted(self._unknown)[:MAX_UNKNOWN_COLUMNS])
        problems = self._bad_lines.problems()
        table = None if problems else pa.concat_tables([_schema(self._rules).empty_table(), *self._tables])
        return PayloadRows(line_count=self._line_count, table=table, problems=problems, unknown_columns=names)

    def _read(self, lines: bytes) -> None:
        table = read_plain_lines(lines, self._rules, count_plain_lines(lines))
        count = 0 if table is None else table.num_rows
        if table is None:
            table, count = _read_line_by_line(lines, self._rules, self._line_count, self._bad_lines, self._unknown)
        self._line_count += count
        if self._bad_lines.counts:
            self._tables.clear()
        else:
            self._tables.append(table)


def read_rows(payload: bytes, rules: Rules) -> PayloadRows:
    """The rows of a payload in the contract's columns, or the problems and their lines."""
    reader = PayloadReader(rules)
    reader.add(payload)
    return reader.finish()


def read_plain_lines(lines: bytes, rules: Rules, line_count: int | None) -> pa.Table | None:
    """The rows as Arrow reads them, or None when the line-by-line reader might give another result.

    `line_count` is what `count_plain_lines` gives for these lines.
    """
    if line_count is None:
        return None
    schema = pa.schema([(c.name, pa.string() if c.kind == "date" else ARROW_TYPES[c.kind]) for c in rules.columns])
    try:
        table = arrow_json.read_json(
            pa.BufferReader(lines),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        if table.num_rows != line_count or not _all_finite(table):
            return None
        return table.select(schema.names).cast(_schema(rules))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        return None


def count_plain_lines(payload: bytes) -> int | None:
    """The number of lines, or None unless each line is `{…}` in valid UTF-8 with no other brace.

    A brace inside a string also gives None. The line-by-line reader then reads that payload correctly.
    """
    end = len(payload) - payload.endswith(b"\n")
    text = np.frombuffer(payload, np.uint8, count=end)
    breaks = np.flatnonzero(text == ord("\n"))
    firsts, lasts = np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [end])) - 1
    lines = len(firsts)
    if (lasts < firsts).any() or (lasts - firsts).max() >= MAX_LINE_BYTES:
        return None
    if (text[firsts] != ord("{")).any() or (text[lasts] != ord("}")).any():
        return None
    if payload.count(b"{") != lines or payload.count(b"}") != lines:
        return None
    return lines if payload.isascii() or _is_utf8(payload) else None


def _is_utf8(payload: bytes) -> bool:
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _all_finite(table: pa.Table) -> bool:
    doubles = (column for column in table.columns if pa.types.is_floating(column.type))
    return all(pc.all(pc.is_finite(column)).as_py() is not False for column in doubles)


def _read_line_by_line(
    lines: bytes, rules: Rules, first: int, bad_lines: _BadLines, unknown: set[str]
) -> tuple[pa.Table | None, int]:
    """The rows as Python parses them, and the number of lines. `first` is the number of lines before these.

    Problems and unknown columns are added to the last two.
    """
    values: dict[str, list[Any]] = {column.name: [] for column in rules.columns}
    readers = [(column.name, _READERS[column.kind], column) for column in rules.columns]
    known, number = values.keys(), first
    for number, line in enumerate(_split_lines(lines), first + 1):
        row = _parse_line(line, number, bad_lines)
        if row is None:
            continue
        for name, read, column in readers:
            try:
                values[name].append(read(row.get(name), column))
            except _BadValue as error:
                bad_lines.add("wrong_type", str(error), number, field_name=name)
        if not row.keys() <= known:
            unknown.update(printable(name, limit=80) for name in row.keys() - known)
    if bad_lines.counts:
        return None, number - first
    schema = _schema(rules)
    return pa.table([pa.array(values[f.name], f.type) for f in schema], schema=schema), number - first


def read_line_by_line(payload: bytes, rules: Rules) -> PayloadRows:
    """The rows as Python parses them, or all problems with their lines. Public for the test of both readers."""
    bad_lines, unknown = _BadLines(), set[str]()
    table, line_count = _read_line_by_line(payload, rules, 0, bad_lines, unknown)
    return PayloadRows(
        line_count=line_count,
        table=table,
        problems=bad_lines.problems(),
        unknown_columns=tuple(sorted(unknown)[:MAX_UNKNOWN_COLUMNS]),
    )


def _split_lines(payload: bytes) -> Iterator[bytes]:
    """The lines, split at line feeds only. The last line feed is optional; an empty payload has no lines."""
    start, end = 0, len(payload)
    while start < end:
        stop = payload.find(b"\n", start)
        stop = end if stop < 0 else stop
        yield payload[start:stop]
        start = stop + 1


def _parse_line(line: bytes, number: int, bad_lines: _BadLines) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_BYTES:
        bad_lines.add("unreadable_line", f"line longer than {MAX_LINE_BYTES} bytes", number)
        return None
    try:
        return parse_object(line)
    except BadJson as error:
        bad_lines.add("unreadable_line", error.problem, number, field_name=error.field)
        return None


def _read_long(value: Any, column: ColumnRule) -> int | None:
    if type(value) is str and column.coerce and _INT64_TEXT.fullmatch(value):
        value = int(value)
    if value is None or (type(value) is int and value in _INT64):
        return value
    problem = "exceeds 64 bits" if type(value) is int else f"must be an integer, but is {_json_type(value)}"
    raise _BadValue(problem)


def _read_double(value: Any, _column: ColumnRule) -> float | None:
    if value is None or type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _BadValue("is too large for a float") from None
    raise _BadValue(f"must be a number, but is {_json_type(value)}")


def _read_string(value: Any, _column: ColumnRule) -> str | None:
    if value is None:
        return None
    if type(value) is not str:
        raise _BadValue(f"must be a string, but is {_json_type(value)}")
    return value


def _read_date(value: Any, _column: ColumnRule) -> date | None:
    if value is None:
        return None
    if type(value) is str and _DAY.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _BadValue(f"must be a date as YYYY-MM-DD, but is {_json_type(value)}")


def _json_type(value: Any) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a fraction", str: "a string", list: "an array"}
    return names.get(type(value), "an object")


_READERS: Final[Mapping[str, Callable[[Any, ColumnRule], Any]]] = {
    "long": _read_long,
    "double": _read_double,
    "string": _read_string,
    "date": _read_date,
}


def _schema(rules: Rules) -> pa.Schema:
    return pa.schema([(column.name, ARROW_TYPES[column.kind]) for column in rules.columns])
