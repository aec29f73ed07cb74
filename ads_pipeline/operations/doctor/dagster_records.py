"""Reads runs, customers, failing ticks and heartbeats from Dagster's database without importing Dagster.

A test compares the location of the tables with `instance_storage`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.quoting import printable
from ads_pipeline.ledger.sql import database
from ads_pipeline.settings.environment import sqlite_url

SCHEMA: Final = "dagster_records"
CUSTOMERS: Final = "google_ads_customers"
FINISHED_STATUSES: Final = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
MAX_ERROR: Final = 300  # characters
_RUNS_PER_QUERY: Final = 500
_RUNS_FILE: Final = "dagster/history/runs.db"
_EVENTS_FILE: Final = "dagster/history/runs/index.db"
_TICKS_FILE: Final = "dagster/schedules/schedules.db"
_FINISHED_TICKS: Final = ("SUCCESS", "SKIPPED", "FAILURE")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTicks:
    """A sensor or a schedule whose newest tick failed: how many failed in a row, since when, and the last error."""

    name: str
    kind: str  # sensor or schedule
    failures: int
    since: datetime
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The newest heartbeat of one part of the daemon, such as SENSOR, and the errors that it reports."""

    part: str
    daemon_id: str
    at: datetime
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRuns:
    """The runs in Dagster's queue."""

    count: int
    oldest_at: datetime


def has_records(home: Path, postgres_url: str | None) -> bool:
    """True if Dagster's table of runs exists."""
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


def read_failing_ticks(home: Path, postgres_url: str | None) -> list[FailingTicks]:
    """Return the sensors and schedules that are on and whose newest tick failed, by name."""
    if postgres_url is None and not (home / _TICKS_FILE).is_file():
        return []
    return sorted(
        _transact(home / _TICKS_FILE, postgres_url, _read_failing_ticks), key=lambda each: (each.kind, each.name)
    )


def read_heartbeats(home: Path, postgres_url: str | None) -> list[Heartbeat]:
    """Return the newest heartbeat of each part of Dagster's daemon, the newest first."""
    return _transact(home / _RUNS_FILE, postgres_url, _read_heartbeats)


def read_waiting_runs(home: Path, postgres_url: str | None) -> WaitingRuns | None:
    """Return the runs that the daemon has to start, or None when there is none."""
    return _transact(home / _RUNS_FILE, postgres_url, _read_waiting_runs)


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
    runs = _table(connection, "runs", "run_id", "status")
    statuses: dict[str, str] = {}
    for batch in split_batches(run_ids, _RUNS_PER_QUERY):
        rows = connection.execute(sa.select(runs.c.run_id, runs.c.status).where(runs.c.run_id.in_(batch)))
        statuses |= {row.run_id: row.status for row in rows}
    return statuses


def _read_customers(connection: sa.Connection) -> list[str]:
    partitions = _table(connection, "dynamic_partitions", "id", "partitions_def_name", "partition").c
    customers = sa.select(partitions.partition).where(partitions.partitions_def_name == CUSTOMERS)
    return [str(customer) for customer in connection.scalars(customers.order_by(partitions.id))]


def _table(connection: sa.Connection, name: str, *columns: str) -> sa.TableClause:
    return sa.table(name, *map(sa.column, columns), schema=_schema(connection))


def _read_failing_ticks(connection: sa.Connection) -> list[FailingTicks]:
    instigators = _table(connection, "instigators", "selector_id", "status", "instigator_type").c
    rows = connection.execute(
        sa.select(instigators.selector_id, instigators.instigator_type).where(instigators.status != "STOPPED")
    )
    found = (_read_failures(connection, row.selector_id, row.instigator_type.lower()) for row in rows.all())
    return [each for each in found if each is not None]


def _read_failures(connection: sa.Connection, selector_id: str, kind: str) -> FailingTicks | None:
    """The failures after the last tick that did not fail. Every statement uses the index of the selector."""
    ticks = _table(connection, "job_ticks", "id", "selector_id", "status", "timestamp", "tick_body").c
    own = ticks.selector_id == selector_id
    finished = sa.select(ticks.status, ticks.tick_body).where(own, ticks.status.in_(_FINISHED_TICKS))
    newest = connection.execute(finished.order_by(ticks.timestamp.desc(), ticks.id.desc()).limit(1)).one_or_none()
    if newest is None or newest.status != "FAILURE":
        return None
    last_good = sa.select(sa.func.max(ticks.id)).where(own, ticks.status.in_(("SUCCESS", "SKIPPED")))
    failed = sa.select(ticks.tick_body).where(
        own, ticks.status == "FAILURE", ticks.id > sa.func.coalesce(last_good.scalar_subquery(), 0)
    )
    bodies = connection.scalars(failed.order_by(ticks.id)).all()
    tick = _parse(newest.tick_body)
    first = float(_parse(bodies[0]).get("timestamp") or 0.0)
    return FailingTicks(
        name=str(tick.get("job_name")),  # so Dagster stores it
        kind=kind,
        failures=len(bodies),
        since=datetime.fromtimestamp(first, UTC),
        error=_describe_error(tick.get("error")),
    )


def _read_heartbeats(connection: sa.Connection) -> list[Heartbeat]:
    heartbeats = _table(connection, "daemon_heartbeats", "daemon_type", "daemon_id", "body").c
    rows = connection.execute(sa.select(heartbeats.daemon_type, heartbeats.daemon_id, heartbeats.body)).all()
    found = [
        Heartbeat(
            part=str(row.daemon_type),
            daemon_id=str(row.daemon_id),
            at=datetime.fromtimestamp(float(body.get("timestamp") or 0.0), UTC),
            errors=tuple(map(_describe_error, body.get("errors") or ())),
        )
        for row in rows
        for body in [_parse(row.body)]
    ]
    return sorted(found, key=lambda each: each.at, reverse=True)


def _read_waiting_runs(connection: sa.Connection) -> WaitingRuns | None:
    runs = _table(connection, "runs", "status", "create_timestamp").c
    statement = sa.select(sa.func.count(), sa.func.min(sa.type_coerce(runs.create_timestamp, sa.DateTime()))).where(
        runs.status == "QUEUED"
    )
    count, oldest_at = connection.execute(statement).one()
    return WaitingRuns(count=count, oldest_at=oldest_at.replace(tzinfo=UTC)) if count else None


def _parse(body: str | None) -> Mapping[str, Any]:
    """The fields of a record that Dagster stored as JSON. A record of another form has none."""
    try:
        document = json.loads(body or "")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _describe_error(error: Any) -> str:
    """The class and the message of the innermost cause, without the stack."""
    while isinstance(error, dict) and isinstance(error.get("cause"), dict):
        error = error["cause"]
    if not isinstance(error, dict):
        return "an error without a message"
    return printable(" ".join(str(error.get("message")).split()), limit=MAX_ERROR)
