"""Turns rows of the ledger into values, and values into rows."""

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import PartitionState, RegisteredRun, Status, Verdict
from ads_pipeline.ledger.tables import KEY, Day, Instant, instant_text
from ads_pipeline.ledger.values import Pointer, Publication, PublicationStatus

KEY_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    name: Day() if name == "logical_date" else sa.Text() for name in KEY
}


def clock_of(dialect: str) -> sa.ColumnElement[Any]:
    """The database's clock, so that one clock stamps every row of a shared ledger."""
    if dialect == "postgresql":
        return sa.func.clock_timestamp(type_=Instant()).label("now")
    return sa.func.strftime("%Y-%m-%dT%H:%M:%f000Z", "now", type_=Instant()).label("now")


def clock_ahead(dialect: str, by: timedelta) -> sa.ColumnElement[Any]:
    """What the database's clock will say then."""
    if dialect == "postgresql":
        return sa.type_coerce(sa.func.clock_timestamp() + sa.literal(by, sa.Interval()), Instant())
    ahead = f"{by.total_seconds():+.3f} seconds"
    return sa.func.strftime("%Y-%m-%dT%H:%M:%f000Z", "now", ahead, type_=Instant())


def insert_into(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """The dialect's own INSERT, which knows ON CONFLICT."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def instant_as_text(dialect: str, instant: sa.ColumnElement[Any]) -> sa.ColumnElement[str]:
    """An instant as `instant_text` spells it."""
    if dialect == "sqlite":
        return sa.type_coerce(instant, sa.Text)
    utc = sa.func.timezone(sa.literal_column("'UTC'"), instant)
    return sa.func.to_char(utc, sa.literal_column("""'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"""), type_=sa.Text)


def key_of(table: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    return [table.c[name] for name in KEY]


def same_key(left: sa.FromClause, right: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(left.c[name] == right.c[name] for name in KEY))


def key_fields(key: PartitionKey) -> dict[str, Any]:
    return {
        "source": key.source,
        "customer_id": key.customer_id,
        "query_name": key.query_name,
        "logical_date": key.logical_date.isoformat(),
    }


def state_fields(state: PartitionState) -> dict[str, Any]:
    if state.updated_at is None:
        raise ValueError(f"{state.key}: an absent state has no row")
    return key_fields(state.key) | {
        "status": state.status,
        "current_run_id": state.current_run_id,
        "schema_version": state.schema_version,
        "record_count": state.record_count,
        "updated_at": instant_text(state.updated_at),
        "error_message": state.error_message,
        "attempt_count": state.attempt_count,
    }


def run_name(run: Run) -> dict[str, Any]:
    return key_fields(run.key) | {"run_id": run.run_id}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    return run_name(verdict.run) | {"validation_id": verdict.validation_id}


def demotion_fields(verdict: Verdict) -> dict[str, Any]:
    return verdict_fields(verdict) | {
        "error_class": verdict.error_class,
        "error_message": verdict.error_message,
        "rows_read": verdict.rows_read,
        "rows_failed": verdict.rows_failed,
    }


def run_fields(registered: RegisteredRun, now: datetime) -> dict[str, Any]:
    return key_fields(registered.run.key) | {
        "run_id": registered.run.run_id,
        "ordinal": registered.ordinal,
        "schema_version": registered.schema_version,
        "record_count": registered.record_count,
        "payload_sha256": registered.payload_sha256,
        "registered_at": instant_text(now),
    }


def pointer_fields(publication: Publication, state: PartitionState) -> dict[str, Any]:
    return key_fields(state.key) | {
        "run_id": publication.run.run_id,
        "schema_version": state.schema_version,
        "record_count": state.record_count,
        "table_version": publication.table_version,
        "availability": "published",
    }


def key_in(row: sa.Row[Any]) -> PartitionKey:
    return PartitionKey(
        source=row.source, customer_id=row.customer_id, query_name=row.query_name, logical_date=row.logical_date
    )


def run_in(row: sa.Row[Any]) -> Run:
    return Run(key=key_in(row), run_id=row.run_id)


def state_of(row: sa.Row[Any], key: PartitionKey | None = None) -> PartitionState:
    return PartitionState(
        key=key or key_in(row),
        status=Status(row.status),
        current_run_id=row.current_run_id,
        schema_version=row.schema_version,
        record_count=row.record_count,
        updated_at=row.updated_at,
        error_message=row.error_message,
        attempt_count=row.attempt_count,
    )


def pointer_of(row: sa.Row[Any]) -> Pointer:
    return Pointer(
        run=run_in(row), available=row.availability == "published", **fields_for(Pointer, row, "run", "available")
    )


def standing_of(row: sa.Row[Any]) -> PublicationStatus:
    state = state_of(row)
    return PublicationStatus(
        state=state, pointer=_pointer_beside(row, state.key), demoting=row.demoting, unjudged=row.unjudged
    )


def registered_of(row: sa.Row[Any]) -> RegisteredRun:
    return RegisteredRun(
        run=run_in(row),
        ordinal=row.ordinal,
        schema_version=row.schema_version,
        record_count=row.record_count,
        payload_sha256=row.payload_sha256,
    )


def _pointer_beside(row: sa.Row[Any], key: PartitionKey) -> Pointer | None:
    if row.pointer_run_id is None:
        return None
    return Pointer(
        run=Run(key=key, run_id=row.pointer_run_id),
        schema_version=row.pointer_schema_version,
        record_count=row.pointer_record_count,
        table_version=row.pointer_table_version,
        available=row.pointer_availability == "published",
        changed_at=row.pointer_changed_at,
    )


def fields_for(kind: type[Any], row: sa.Row[Any], *but: str) -> dict[str, Any]:
    """The columns of a row that a value of this kind has under the same name."""
    values = row._mapping
    return {name: values[name] for name in (field.name for field in fields(kind)) if name not in but}
