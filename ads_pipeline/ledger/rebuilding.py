"""Exports a ledger's logs, says by one digest what it holds, and makes a lost ledger anew from an export.

States are replayed by the rules and statuses folded, so neither is taken from anywhere. Holding the runs to what is
sealed on disk is for `ads_pipeline.rebuilding`, which knows raw.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.transitions import PartitionState
from ads_pipeline.errors import ArchiveUnavailable, LedgerInUse, LogContradicted
from ads_pipeline.ledger import database
from ads_pipeline.ledger.archive import PARTS, STATES, Archive, exported, lines
from ads_pipeline.ledger.consistency.replay import histories, replay
from ads_pipeline.ledger.reader import HERE
from ads_pipeline.ledger.row_mapping import state_fields
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.tables import partition_state
from ads_pipeline.storage.atomic_files import written_whole

AT_ONCE: Final = 5_000
Advance = Callable[[int], None]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """What a ledger holds: the digest of each part with its number of rows, and one of them all."""

    parts: dict[str, tuple[int, str]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _digest in self.parts.values())

    @property
    def whole(self) -> str:
        told = "".join(f"{name} {rows} {digest}\n" for name, (rows, digest) in self.parts.items())
        return hashlib.sha256(told.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Refilled:
    """How many rows were taken from the export, and how many states and statuses were made from them."""

    rows: int
    states: int
    statuses: int


def digest(url: str) -> Digest:
    """The same for two ledgers exactly when they hold the same states, logs, pointers and notes."""
    with database.opened(url, read_only=True) as engine, database.reading(engine) as connection:
        return Digest(parts={part.name: _digested(lines(connection, part)) for part in (STATES, *PARTS)})


def export(url: str, path: Path, *, replace: bool = False) -> int:
    """Write the logs as of one moment, the whole file or none; how many bytes. An export is replaced only if told."""
    with database.opened(url, read_only=True) as engine, database.reading(engine) as connection:
        try:
            with written_whole(path, replace=replace) as file:
                file.writelines(exported(connection, revision=database.newest_revision()))
                return file.tell()
        except OSError as error:
            raise ArchiveUnavailable(str(path), error.strerror or type(error).__name__) from error


def refill(url: str, archive: Archive, *, space: Tenancy = HERE, done: Advance | None = None) -> Refilled:
    """Make the ledger anew where there is none, in one transaction: a crash leaves it empty.

    LedgerInUse where anything is; BadArchive or LogContradicted when the export does not hold together.
    """
    with database.opened(url) as engine:

        def work(connection: sa.Connection) -> Refilled:
            _check_empty(connection)
            rows = _fill(connection, archive, done or (lambda _count: None))
            states = sum(_put_states(connection, some) for some in _portions(_replayed(connection)))
            return Refilled(
                rows=rows, states=states, statuses=StatusTable(engine, space=space).rebuild_within(connection)
            )

        return database.transact(engine, work)


def _check_empty(connection: sa.Connection) -> None:
    """Nobody else writes until the transaction ends; SQLite's holds the whole database anyway."""
    if connection.dialect.name == "postgresql":
        names = ", ".join(dict.fromkeys(part.table.name for part in PARTS))
        connection.exec_driver_sql(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")
    for part in PARTS:
        if connection.execute(sa.select(sa.literal(1)).select_from(part.table).limit(1)).first():
            raise LedgerInUse(part.table.name)


def _fill(connection: sa.Connection, archive: Archive, done: Advance) -> int:
    parts, filled = {part.name: part for part in PARTS}, 0
    rows = archive.rows(revision=database.newest_revision())
    for name, members in groupby(rows, key=lambda each: each[0].name):
        same = dict(parts[name].also or {})
        for some in _portions(row | same for _part, row in members):
            try:
                connection.execute(sa.insert(parts[name].table), some)
            except sa.exc.IntegrityError as error:
                problem = "some of its rows do not fit one another or what they refer to"
                raise LogContradicted(f"{name} in the export", problem) from error
            filled += len(some)
            done(len(some))
    return filled


def _replayed(connection: sa.Connection) -> Iterator[PartitionState]:
    """The states that the logs lead to. A row that was never judged stands already, as the export has it."""
    for history in histories(connection):
        state = replay(history)
        if history.recorded is None:
            yield state
        elif state != history.recorded:
            raise LogContradicted(str(history.key), "it is listed as never judged, and the logs know better")


def _put_states(connection: sa.Connection, states: Iterable[PartitionState]) -> int:
    rows: list[dict[str, Any]] = [
        state_fields(state) | {"updated_at": state.updated_at, "logical_date": state.key.logical_date}
        for state in states
    ]
    connection.execute(sa.insert(partition_state), rows)
    return len(rows)


def _digested(some: Iterable[bytes]) -> tuple[int, str]:
    found, count = hashlib.sha256(), 0
    for line in some:
        found.update(line)
        count += 1
    return count, found.hexdigest()


def _portions(things: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(things)
    while some := list(islice(rest, AT_ONCE)):
        yield some
