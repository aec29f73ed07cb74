"""Reads the status of runs from Dagster's database without importing Dagster.

It reads two columns of one table. A test compares their location with `orchestration.instance_storage`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.ledger import database

SCHEMA: Final = "dagster_records"
FINISHED_STATUSES: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
_RUNS_PER_QUERY: Final = 500
_T = TypeVar("_T")


def has_records(home: Path, postgres_url: str | None) -> bool:
    """Whether Dagster's table of runs exists."""
    if postgres_url is None:
        return _sqlite_file(home).is_file()
    return _transact(home, postgres_url, _has_table)


def read_statuses(home: Path, postgres_url: str | None, run_ids: Sequence[str]) -> dict[str, str]:
    """Return the status of each run that Dagster knows."""
    return _transact(home, postgres_url, lambda connection: _read(connection, run_ids))


def _transact(home: Path, postgres_url: str | None, work: Callable[[sa.Connection], _T]) -> _T:
    engine = database.open_engine(postgres_url or f"sqlite:///{_sqlite_file(home)}", read_only=True)
    try:
        return database.transact(engine, work)
    finally:
        engine.dispose()


def _sqlite_file(home: Path) -> Path:
    return home / "dagster" / "history" / "runs.db"


def _schema(connection: sa.Connection) -> str | None:
    return SCHEMA if connection.dialect.name == "postgresql" else None


def _has_table(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table("runs", schema=_schema(connection))


def _read(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, str]:
    runs = sa.table("runs", sa.column("run_id"), sa.column("status"), schema=_schema(connection))
    statuses: dict[str, str] = {}
    for start in range(0, len(run_ids), _RUNS_PER_QUERY):
        batch = run_ids[start : start + _RUNS_PER_QUERY]
        rows = connection.execute(sa.select(runs.c.run_id, runs.c.status).where(runs.c.run_id.in_(batch)))
        statuses |= {row.run_id: row.status for row in rows}
    return statuses
