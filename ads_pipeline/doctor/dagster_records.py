"""Reads from Dagster's own records how runs stand there, without Dagster.

Two columns of one table are all that is looked at, and nothing is written. Where Dagster keeps its records is
`orchestration.storage`'s to say; a test holds this to it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.ledger import database

SCHEMA: Final = "dagster_records"
OVER: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
_AT_ONCE: Final = 500
_T = TypeVar("_T")


def kept(home: Path, postgres_url: str | None) -> bool:
    """Whether Dagster keeps records where the settings say."""
    if postgres_url is None:
        return _file(home).is_file()
    return _with(home, postgres_url, _has_runs)


def statuses(home: Path, postgres_url: str | None, run_ids: Sequence[str]) -> dict[str, str]:
    """The status of those of the runs that Dagster knows."""
    return _with(home, postgres_url, lambda connection: _read(connection, run_ids))


def _with(home: Path, postgres_url: str | None, work: Callable[[sa.Connection], _T]) -> _T:
    engine = database.open_engine(postgres_url or f"sqlite:///{_file(home)}", read_only=True)
    try:
        return database.transact(engine, work)
    finally:
        engine.dispose()


def _file(home: Path) -> Path:
    return home / "dagster" / "history" / "runs.db"


def _schema(connection: sa.Connection) -> str | None:
    return SCHEMA if connection.dialect.name == "postgresql" else None


def _has_runs(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table("runs", schema=_schema(connection))


def _read(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, str]:
    runs = sa.table("runs", sa.column("run_id"), sa.column("status"), schema=_schema(connection))
    found: dict[str, str] = {}
    for start in range(0, len(run_ids), _AT_ONCE):
        some = run_ids[start : start + _AT_ONCE]
        rows = connection.execute(sa.select(runs.c.run_id, runs.c.status).where(runs.c.run_id.in_(some)))
        found |= {row.run_id: row.status for row in rows}
    return found
