"""Reads the status of runs and the customers from Dagster's database without importing Dagster.

A test compares the location of the two tables with `orchestration.instance_storage`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.sequences import split_batches
from ads_pipeline.ledger import database
from ads_pipeline.settings import sqlite_url

SCHEMA: Final = "dagster_records"
CUSTOMERS: Final = "google_ads_customers"
FINISHED_STATUSES: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
_RUNS_PER_QUERY: Final = 500
_RUNS_FILE: Final = "dagster/history/runs.db"
_EVENTS_FILE: Final = "dagster/history/runs/index.db"
_T = TypeVar("_T")


def has_records(home: Path, postgres_url: str | None) -> bool:
    """Whether Dagster's table of runs exists."""
    if postgres_url is None:
        return (home / _RUNS_FILE).is_file()
    return _transact(home / _RUNS_FILE, postgres_url, _has_table)


def read_statuses(home: Path, postgres_url: str | None, run_ids: Sequence[str]) -> dict[str, str]:
    """Return the status of each run that Dagster knows."""
    return _transact(home / _RUNS_FILE, postgres_url, lambda connection: _read(connection, run_ids))


def read_customers(home: Path, postgres_url: str | None) -> list[str]:
    """Return the customers that Dagster knows, in the order in which they were added."""
    if postgres_url is None and not (home / _EVENTS_FILE).is_file():
        return []
    return _transact(home / _EVENTS_FILE, postgres_url, _read_customers)


def _transact(file: Path, postgres_url: str | None, work: Callable[[sa.Connection], _T]) -> _T:
    engine = database.open_engine(postgres_url or sqlite_url(file), read_only=True)
    try:
        return database.transact(engine, work)
    finally:
        engine.dispose()


def _schema(connection: sa.Connection) -> str | None:
    return SCHEMA if connection.dialect.name == "postgresql" else None


def _has_table(connection: sa.Connection) -> bool:
    return sa.inspect(connection).has_table("runs", schema=_schema(connection))


def _read(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, str]:
    runs = sa.table("runs", sa.column("run_id"), sa.column("status"), schema=_schema(connection))
    statuses: dict[str, str] = {}
    for batch in split_batches(run_ids, _RUNS_PER_QUERY):
        rows = connection.execute(sa.select(runs.c.run_id, runs.c.status).where(runs.c.run_id.in_(batch)))
        statuses |= {row.run_id: row.status for row in rows}
    return statuses


def _read_customers(connection: sa.Connection) -> list[str]:
    names = ("id", "partitions_def_name", "partition")
    partitions = sa.table("dynamic_partitions", *map(sa.column, names), schema=_schema(connection)).c
    customers = sa.select(partitions.partition).where(partitions.partitions_def_name == CUSTOMERS)
    return [str(customer) for customer in connection.scalars(customers.order_by(partitions.id))]
