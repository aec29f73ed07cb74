"""Copies a whole ledger into an empty database, between SQLite and Postgres in either direction."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import CopyDiffers, TargetNotEmpty
from ads_pipeline.ledger.consistency.digest import LedgerDigest, RowHasher, TableDigest, digest_table, read_batches
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import (
    attempts,
    control_action_partitions,
    control_actions,
    leases,
    load_records,
    partition_state,
    run_head,
    runs,
)

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]

_REFERENCED: Final = (
    runs,
    attempts,
    control_actions,
    control_action_partitions,
    leases,
    partition_state,
    load_records,
    run_head,
)  # foreign keys and triggers of later tables look at these
TABLES: Final = (*_REFERENCED, *(table for table in database.METADATA.sorted_tables if table not in _REFERENCED))


def copy_ledger(source_url: str, target_url: str, *, progress: Progress) -> LedgerDigest:
    """Copy every row of every table, read at one moment, in one transaction on the target.

    A target database without a schema gets one. Raises LedgerOutdated when a revision differs, TargetNotEmpty when
    the target has rows, CopyDiffers when the digests differ. After any failure the target has no rows.
    """
    with (
        database.open_checked_engine(source_url, read_only=True) as source_engine,
        database.open_checked_engine(target_url) as target_engine,
        database.open_snapshot(source_engine) as source,
        database.open_transaction(target_engine) as target,
    ):
        for connection in (source, target):
            _disable_idle_timeout(connection)
        _lock(target)
        _check_empty(target)
        copied = {table.name: _copy_table(source, target, table, progress) for table in TABLES}
        _verify(target, copied, progress)
        return LedgerDigest(tables=copied)


def _disable_idle_timeout(connection: sa.Connection) -> None:
    """Each connection is idle while the other one works on a large table."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")


def _lock(target: sa.Connection) -> None:
    """Keep other writers out until the commit. A transaction of SQLite locks the whole database anyway."""
    if target.dialect.name == "postgresql":
        names = ", ".join(table.name for table in TABLES)
        target.exec_driver_sql(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE")


def _check_empty(target: sa.Connection) -> None:
    for table in TABLES:
        if target.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first():
            raise TargetNotEmpty(table.name)


def _copy_table(source: sa.Connection, target: sa.Connection, table: sa.Table, progress: Progress) -> TableDigest:
    hasher = RowHasher()
    count = source.scalar(sa.select(sa.func.count()).select_from(table)) or 0
    with progress(f"copying {table.name}", count) as advance:
        for batch in read_batches(source, table):
            target.execute(sa.insert(table), [dict(row) for row in batch])
            hasher.add(batch)
            advance(len(batch))
    return hasher.digest()


def _verify(target: sa.Connection, copied: Mapping[str, TableDigest], progress: Progress) -> None:
    with progress("comparing digests", sum(table.rows for table in copied.values())) as advance:
        for table in TABLES:
            found = digest_table(target, table)
            if found != copied[table.name]:
                raise CopyDiffers(table.name, rows=found.rows, expected=copied[table.name].rows)
            advance(found.rows)
