"""Spells what only the ledger knows as lines of JSON, and reads such lines back strictly.

An export begins with what it holds and ends with the digest of all its bytes, so whatever is cut off or changed shows
before anything of it is used. States are no part of it: they follow from the logs. Nor are events, snapshots and
leases, which tell of runs that are over when a ledger is lost.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import NAME_RULES, checked_name, parse_date
from ads_pipeline.errors import ArchiveUnavailable, BadArchive, BadJson, BadName, printable, quoted
from ads_pipeline.ledger.control.tables import failed_fetches, parkings, requests, retry_schedule, terminal_marks
from ads_pipeline.ledger.tables import (
    KEY,
    Day,
    Instant,
    acted_partitions,
    attempts,
    code_versions,
    demotions,
    finishes,
    instant_text,
    load_records,
    operator_acts,
    partition_state,
    runs,
    warehouse_pointer,
)
from ads_pipeline.raw.strict_json import parse_object

FORMAT: Final = 1
LONGEST_LINE: Final = 1 << 20
AT_ONCE: Final = 5_000
_LARGEST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Rows of one table in the order of a unique key. `optional` columns may be null."""

    name: str
    table: sa.Table
    order: tuple[str, ...]
    optional: frozenset[str] = frozenset()
    columns: tuple[str, ...] = ()
    where: sa.ColumnElement[bool] | None = None
    also: Mapping[str, object] | None = None  # what a row says that is the same in all of them

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns or tuple(column.name for column in self.table.c)

    @property
    def statement(self) -> sa.Select[Any]:
        selected = sa.select(*(self.table.c[name] for name in self.names))
        wanted = selected if self.where is None else selected.where(self.where)
        return wanted.order_by(*(self.table.c[name] for name in self.order))


def _part(table: sa.Table, *more: str, optional: Iterable[str] = ()) -> Part:
    return Part(name=table.name, table=table, order=(*KEY, *more), optional=frozenset(optional))


# What is referred to stands before what refers to it.
PARTS: Final = (
    Part(name="operator_acts", table=operator_acts, order=("act_id",)),
    Part(
        name="runs",
        table=runs,
        order=(*KEY, "ordinal"),
        optional=frozenset({"schema_version", "record_count", "payload_sha256"}),
    ),
    # Rows that were made explicit and never judged: nothing else tells when that was.
    Part(
        name="unjudged",
        table=partition_state,
        order=KEY,
        columns=(*KEY, "updated_at"),
        where=partition_state.c.attempt_count == 0,
        also={"status": "pending", "attempt_count": 0},
    ),
    _part(
        attempts,
        "attempt_no",
        optional=("error_class", "error_message", "rows_read", "rows_failed", "current_ordinal", "message_ordinal"),
    ),
    _part(acted_partitions, "act_id", optional=("status_before", "attempt_no")),
    _part(load_records, "run_id"),
    Part(
        name="finishes",
        table=finishes,
        order=("asset", *KEY, "finished_at"),
        optional=frozenset({"code_version"}),
    ),
    _part(failed_fetches, "failed_at", optional=("wait_until",)),
    Part(name="code_versions", table=code_versions, order=("tenant_id", "workspace_id", "asset_key")),
    _part(warehouse_pointer),
    _part(demotions, "run_id", optional=("rows_read", "rows_failed")),
    _part(requests),
    _part(retry_schedule, optional=("error_class", "wait_until", "due_at")),
    _part(terminal_marks),
    Part(name="parkings", table=parkings, order=("source", "scope", "name")),
)
STATES: Final = Part(name="partition_state", table=partition_state, order=KEY)


def lines(connection: sa.Connection, part: Part) -> Iterator[bytes]:
    """Each row of a part as one line, the same whichever database it comes from."""
    named = json.dumps(part.name)
    for row in connection.execute(part.statement, execution_options={"yield_per": AT_ONCE}):
        told = _text({name: _plain(value) for name, value in zip(part.names, row, strict=True)})
        yield f'{{"part":{named},{told[1:]}\n'.encode()


def exported(connection: sa.Connection, *, revision: str) -> Iterator[bytes]:
    """Every line of an export, as of one moment."""
    count = sa.func.count()
    counts = {part.name: connection.scalar(_counted(part, count)) or 0 for part in PARTS}
    digest = hashlib.sha256()
    for line in _with_head(connection, {"ledger_export": FORMAT, "revision": revision, "parts": counts}):
        digest.update(line)
        yield line
    yield f"{_text({'end': digest.hexdigest()})}\n".encode()


def _with_head(connection: sa.Connection, head: dict[str, object]) -> Iterator[bytes]:
    yield f"{_text(head)}\n".encode()
    for part in PARTS:
        yield from lines(connection, part)


def _counted(part: Part, count: sa.ColumnElement[int]) -> sa.Select[Any]:
    counted = sa.select(count).select_from(part.table)
    return counted if part.where is None else counted.where(part.where)


class Archive:
    """An export in a file. It may be read again and again, and is held to its own words each time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def counts(self, *, revision: str) -> dict[str, int]:
        """How many rows each part has, by the first line."""
        with self._opened() as file:
            return _head(file.readline(LONGEST_LINE + 1), revision)

    def rows(self, *, revision: str) -> Iterator[tuple[Part, dict[str, Any]]]:
        """Each row with its part, in order; BadArchive at the first line that is not what it must be.

        That nothing is missing is known when the last row was taken, and not before.
        """
        with self._opened() as file:
            reading = _Lines(file)
            counts = _head(reading.line(), revision)
            for part in PARTS:
                last: tuple[Any, ...] = ()
                for _number in range(counts[part.name]):
                    row = reading.row(part)
                    place = tuple(row[name] for name in part.order)
                    if last and place <= last:
                        raise BadArchive(reading.number, f"the row of {part.name} is not behind the one before it")
                    last = place
                    yield part, row
            reading.end()

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except OSError as error:
            raise ArchiveUnavailable(str(self._path), error.strerror or type(error).__name__) from error


class _Lines:
    """The lines of a file, counted and digested as they are taken."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.number = file, hashlib.sha256(), 0

    def line(self) -> bytes:
        line = self._taken()
        self._digest.update(line)
        return line

    def row(self, part: Part) -> dict[str, Any]:
        document = _document(self.line(), self.number)
        if document.pop("part", None) != part.name:
            raise BadArchive(self.number, f"a row of {part.name} must stand here")
        try:
            return _row(part, document)
        except (BadName, ValueError, OverflowError) as error:
            raise BadArchive(self.number, printable(str(error))) from error

    def end(self) -> None:
        wanted = {"end": self._digest.hexdigest()}
        if _document(self._taken(), self.number) != wanted:
            raise BadArchive(self.number, "the digest of the lines before must stand here: some of them were changed")
        if self._file.read(1):
            raise BadArchive(self.number + 1, "the export has ended, and nothing may follow")

    def _taken(self) -> bytes:
        self.number += 1
        try:
            line = self._file.readline(LONGEST_LINE + 1)
        except OSError as error:
            raise ArchiveUnavailable(self._file.name, error.strerror or type(error).__name__) from error
        if not line.endswith(b"\n"):
            raise BadArchive(self.number, "the export is cut off here" if len(line) <= LONGEST_LINE else "too long")
        return line


def _head(line: bytes, revision: str) -> dict[str, int]:
    head = _document(line, 1)
    if head.keys() != {"ledger_export", "revision", "parts"} or head["ledger_export"] != FORMAT:
        raise BadArchive(1, f"no export of a ledger begins so, or not one of format {FORMAT}")
    if head["revision"] != revision:
        told = quoted(head["revision"])
        raise BadArchive(
            1, f"it was made at revision {told}, this release reads {revision}: use the release that made it"
        )
    counts = head["parts"]
    if not isinstance(counts, dict) or list(counts) != [part.name for part in PARTS]:
        raise BadArchive(1, "its parts are not those of a ledger")
    if any(type(count) is not int or count < 0 for count in counts.values()):
        raise BadArchive(1, "a part has a number of rows that is none")
    return counts


def _document(line: bytes, number: int) -> dict[str, Any]:
    try:
        return parse_object(line)
    except BadJson as error:
        raise BadArchive(number, str(error)) from None


def _row(part: Part, document: Mapping[str, Any]) -> dict[str, Any]:
    odd = [name for name in document if name not in part.names]
    lacking = [name for name in part.names if name not in document]
    if odd or lacking:
        raise ValueError(f"{quoted(odd[0])} is no column of {part.name}" if odd else f"{lacking[0]} is missing")
    return {name: _value(part, name, document[name]) for name in part.names}


def _value(part: Part, name: str, value: object) -> object:
    if value is None and name in part.optional:
        return None
    rule, read = next(_KINDS[kind] for kind in type(part.table.c[name].type).__mro__ if kind in _KINDS)
    try:
        found = read(value)
    except ValueError:
        raise ValueError(f"{name}: {quoted(value)} is refused: it must be {rule}") from None
    return checked_name(name, found) if name in NAME_RULES and found != "" else found


def _words(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError
    return value


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError
    return value


def _instant(value: object) -> datetime:
    instant = datetime.fromisoformat(_words(value))
    if instant.tzinfo is not UTC or instant_text(instant) != value:
        raise ValueError
    return instant


_KINDS: Final[Mapping[type, tuple[str, Callable[[object], object]]]] = {
    Instant: ("an instant in UTC to the microsecond", _instant),
    Day: ("a day", parse_date),
    sa.Integer: ("a whole number, 0 or more", _whole),
    sa.Text: ("printable text", _words),
}


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return instant_text(value)
    return value if value is None or isinstance(value, int | str) else str(value)


_text = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
