"""Digests of what a ledger holds, one per table. Equal rows have equal digests on SQLite and Postgres."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import instant_text

ROWS_PER_BATCH: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDigest:
    """The number of rows of a table and the SHA-256 of all of them, in primary key order."""

    rows: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDigest:
    """The digest of each table by name, and of all tables together."""

    tables: Mapping[str, TableDigest]

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())

    @property
    def sha256(self) -> str:
        lines = (f"{name} {table.rows} {table.sha256}\n" for name, table in sorted(self.tables.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class RowHasher:
    """Adds rows to the digest of one table."""

    def __init__(self) -> None:
        self._sha256, self._rows = hashlib.sha256(), 0

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._sha256.update(_encode([_plain(value) for value in row.values()]).encode())
            self._rows += 1

    def digest(self) -> TableDigest:
        return TableDigest(rows=self._rows, sha256=self._sha256.hexdigest())


def digest_ledger(url: str) -> LedgerDigest:
    """The digest of every table at one moment. Two ledgers have the same one exactly when they hold the same rows."""
    with database.open_checked_engine(url, read_only=True) as engine, database.open_snapshot(engine) as connection:
        tables = database.METADATA.sorted_tables
        return LedgerDigest(tables={table.name: digest_table(connection, table) for table in tables})


def digest_table(connection: sa.Connection, table: sa.Table) -> TableDigest:
    hasher = RowHasher()
    for batch in read_batches(connection, table):
        hasher.add(batch)
    return hasher.digest()


def read_batches(connection: sa.Connection, table: sa.Table) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Every row of a table in primary key order, streamed in batches."""
    statement = sa.select(table).order_by(*table.primary_key.columns)
    result = connection.execute(statement, execution_options={"yield_per": ROWS_PER_BATCH})
    yield from result.mappings().partitions()  # type: ignore[misc]  # a RowMapping is a Mapping of column names


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return instant_text(value)
    return value if value is None or isinstance(value, int | str) else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
