"""Reads one run's payload into typed columns, line by line and without a guess.

There are two readers. The careful one takes each line apart in Python and can say what is wrong with it. The quick
one is Arrow's, many times faster and lenient in places; it is used only where nothing it is lenient about can be
there, and whatever it stumbles over is left to the careful one. Both give the same rows; a property test says so.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from ads_pipeline.contracts.rules import ColumnRule, Rules
from ads_pipeline.errors import BadJson, printable
from ads_pipeline.raw.strict_json import parse_object

MAX_LINE_BYTES: Final = 16 << 20
MAX_PAYLOAD_BYTES: Final = 1 << 30
SHOWN: Final = 5
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
class Violation:
    """One thing that is wrong with a run: what, in how many rows, and where the first of them are."""

    error_class: str
    problem: str
    rows: int
    samples: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.rows:
            return self.problem
        shown = (
            f" ({'; '.join(self.samples)}{'; …' if self.rows > len(self.samples) else ''})" if self.samples else ""
        )
        return f"{self.problem} in {self.rows} {'row' if self.rows == 1 else 'rows'}{shown}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRows:
    """What was read. With findings there is no table: a part of a run is not that run."""

    lines: int
    table: pa.Table | None
    findings: tuple[Violation, ...] = ()
    unknown_columns: tuple[str, ...] = ()


@dataclass(slots=True)
class _Faults:
    """Lines that were refused, by reason; the first few of each are kept."""

    counted: dict[tuple[str, str], int] = field(default_factory=dict)
    places: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, error_class: str, problem: str, line: int) -> None:
        reason = (error_class, problem)
        self.counted[reason] = self.counted.get(reason, 0) + 1
        places = self.places.setdefault(reason, [])
        if len(places) < SHOWN:
            places.append(f"line {line}")

    def findings(self) -> tuple[Violation, ...]:
        return tuple(
            Violation(error_class=reason[0], problem=reason[1], rows=rows, samples=tuple(self.places[reason]))
            for reason, rows in self.counted.items()
        )


class _Refused(Exception):
    """A value that its column does not take; the message says what it is, not what it says."""


def read_bytes(path: str) -> bytes | None:
    """The payload; None when it is larger than any report may be. OSError when it cannot be read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return None if os.fstat(descriptor).st_size > MAX_PAYLOAD_BYTES else file.read()


def check_seal(payload: bytes, *, payload_bytes: int | None, payload_sha256: str | None) -> tuple[Violation, ...]:
    """What of the bytes contradicts the seal."""
    if payload_bytes is not None and len(payload) != payload_bytes:
        problem = f"the payload has {len(payload)} bytes, the seal says {payload_bytes}"
    elif payload_sha256 is not None and hashlib.sha256(payload).hexdigest() != payload_sha256:
        problem = "the payload's sha256 is not the seal's"
    else:
        return ()
    return (Violation(error_class="damaged", problem=problem, rows=0),)


def read_rows(payload: bytes, rules: Rules) -> PayloadRows:
    """The rows of a payload in the contract's columns, or what is wrong with which lines."""
    return _read_quickly(payload, rules) or read_carefully(payload, rules)


def empty_table(rules: Rules) -> pa.Table:
    return _schema(rules).empty_table()


def _read_quickly(payload: bytes, rules: Rules) -> PayloadRows | None:
    """Arrow's answer, or None wherever it might not be the careful reader's."""
    lines = _plain_lines(payload)
    if lines is None:
        return None
    schema = pa.schema([(c.name, pa.string() if c.kind == "date" else ARROW_TYPES[c.kind]) for c in rules.columns])
    try:
        table = arrow_json.read_json(
            pa.BufferReader(payload),
            read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(payload) + 1),
            parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        if table.num_rows != lines or not _all_finite(table):
            return None
        return PayloadRows(lines=lines, table=table.select(schema.names).cast(_schema(rules)))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError):
        return None


def _plain_lines(payload: bytes) -> int | None:
    """How many lines there are, if each is `{…}` with no other brace, in valid UTF-8: one flat object a line.

    A brace inside a text sends the payload to the careful reader as well; that is rare, and right.
    """
    body = payload.removesuffix(b"\n")
    if not (body.startswith(b"{") and body.endswith(b"}")):
        return None
    lines = body.count(b"\n") + 1
    if _has_long_line(body):
        return None
    if body.count(b"{") != lines or body.count(b"}") != lines or body.count(b"}\n{") != lines - 1:
        return None
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return lines


def _has_long_line(body: bytes) -> bool:
    """Looks at one place in each stretch of the longest line's length, not at every line."""
    start = 0
    while len(body) - start > MAX_LINE_BYTES:
        last = body.rfind(b"\n", start, start + MAX_LINE_BYTES + 1)
        if last < 0:
            return True
        start = last + 1
    return False


def _all_finite(table: pa.Table) -> bool:
    doubles = (column for column in table.columns if pa.types.is_floating(column.type))
    return all(pc.all(pc.is_finite(column)).as_py() is not False for column in doubles)


def read_carefully(payload: bytes, rules: Rules) -> PayloadRows:
    """The careful reader, on its own for the tests that compare the two."""
    faults, unknown = _Faults(), dict[str, None]()
    values: dict[str, list[Any]] = {column.name: [] for column in rules.columns}
    readers = [(column.name, _READERS[column.kind], column) for column in rules.columns]
    known, lines = values.keys(), 0
    for lines, line in enumerate(_lines(payload), 1):
        row = _object(line, lines, faults)
        if row is None:
            continue
        for name, read, column in readers:
            try:
                values[name].append(read(row.get(name), column))
            except _Refused as refused:
                faults.add("wrong_type", f"{name} {refused}", lines)
        if not row.keys() <= known:
            unknown.update(dict.fromkeys(printable(name, limit=80) for name in row.keys() - known))
    names = tuple(sorted(unknown)[:50])
    if faults.counted:
        return PayloadRows(lines=lines, table=None, findings=faults.findings(), unknown_columns=names)
    table = pa.table([pa.array(values[f.name], f.type) for f in _schema(rules)], schema=_schema(rules))
    return PayloadRows(lines=lines, table=table, unknown_columns=names)


def _lines(payload: bytes) -> Iterator[bytes]:
    """The lines, split at line feeds only. A last line may lack its end; an empty payload has none."""
    start, end = 0, len(payload)
    while start < end:
        stop = payload.find(b"\n", start)
        stop = end if stop < 0 else stop
        yield payload[start:stop]
        start = stop + 1


def _object(line: bytes, number: int, faults: _Faults) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_BYTES:
        faults.add("unreadable_line", f"a line longer than {MAX_LINE_BYTES} bytes", number)
        return None
    try:
        return parse_object(line)
    except BadJson as error:
        faults.add("unreadable_line", _without_places(str(error)), number)
        return None


def _without_places(reason: str) -> str:
    """The reason without the position in its line, so that like faults are counted together."""
    return re.sub(r" at (byte|character) [0-9]+", "", reason)


def _long(value: Any, column: ColumnRule) -> int | None:
    if type(value) is str and column.coerce and _INT64_TEXT.fullmatch(value):
        value = int(value)
    if value is None or (type(value) is int and value in _INT64):
        return value
    raise _Refused("is beyond 64 bits" if type(value) is int else f"is {_kind(value)} where a whole number must be")


def _double(value: Any, _column: ColumnRule) -> float | None:
    if value is None or type(value) is float:
        return value
    if type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise _Refused("is too large for a float") from None
    raise _Refused(f"is {_kind(value)} where a number must be")


def _string(value: Any, _column: ColumnRule) -> str | None:
    if value is None:
        return None
    if type(value) is not str:
        raise _Refused(f"is {_kind(value)} where a text must be")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise _Refused("holds half a surrogate pair, which is no character")
    return value


def _date(value: Any, _column: ColumnRule) -> date | None:
    if value is None:
        return None
    if type(value) is str and _DAY.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise _Refused(f"is {_kind(value)} where a day written YYYY-MM-DD must be")


def _kind(value: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a fraction", str: "a text", list: "a list"}
    return names.get(type(value), "an object")


_READERS: Final[Mapping[str, Callable[[Any, ColumnRule], Any]]] = {
    "long": _long,
    "double": _double,
    "string": _string,
    "date": _date,
}


def _schema(rules: Rules) -> pa.Schema:
    return pa.schema([(column.name, ARROW_TYPES[column.kind]) for column in rules.columns])
