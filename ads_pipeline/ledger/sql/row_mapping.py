"""Decodes rows of the ledger to values, encodes values as rows, and builds SQL expressions that statements share."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from ads_pipeline.domain.measures import MEASURED_COLUMNS, Figures, Measures
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Outcome, PartitionState, RegisteredRun, Status, Verdict
from ads_pipeline.ledger.sql.ledger_tables import KEY, Day, Instant, instant_text
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, OpenWithdrawal, Pointer, PublicationStatus
from ads_pipeline.ledger.sql.statements import Values

KEY_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    name: Day() if name == "logical_date" else sa.Text() for name in KEY
}


def database_clock(dialect: str) -> sa.ColumnElement[Any]:
    """The database's clock: one clock stamps every row, whichever machine writes it."""
    if dialect == "postgresql":
        return sa.func.clock_timestamp(type_=Instant()).label("now")
    return sa.func.clock_text(0, type_=Instant()).label("now")


def read_clock(connection: sa.Connection) -> datetime:
    """The time of the database's clock."""
    now: datetime = connection.scalars(_read_clock(connection.dialect.name)).one()
    return now


@cache
def _read_clock(dialect: str) -> sa.Select[Any]:
    return sa.select(database_clock(dialect))


def database_clock_plus(dialect: str, by: timedelta) -> sa.ColumnElement[Any]:
    """The database's clock plus a duration."""
    if dialect == "postgresql":
        return sa.type_coerce(sa.func.clock_timestamp() + sa.literal(by, sa.Interval()), Instant())
    return sa.func.clock_text(by.total_seconds(), type_=Instant())


def insert_into(dialect: str, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """The dialect's own INSERT, which supports ON CONFLICT."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def key_of_table(table: sa.FromClause) -> list[sa.ColumnElement[Any]]:
    return [table.c[name] for name in KEY]


def same_key(left: sa.FromClause, right: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(*(left.c[name] == right.c[name] for name in KEY))


def has_key(table: sa.FromClause, key: PartitionKey) -> list[sa.ColumnElement[bool]]:
    """The conditions that a row belongs to a partition."""
    return [table.c[name] == getattr(key, name) for name in KEY]


def key_literals(key: PartitionKey) -> list[sa.ColumnElement[Any]]:
    return [sa.literal(getattr(key, name), KEY_TYPES[name]) for name in KEY]


def encode_key(key: PartitionKey) -> Values:
    return key.source, key.customer_id, key.query_name, key.logical_date.isoformat()


def encode_key_by_name(key: PartitionKey) -> dict[str, Any]:
    return dict(zip(KEY, encode_key(key), strict=True))


def encode_state(state: PartitionState) -> Values:
    """The row of `partition_state`."""
    if state.updated_at is None:
        raise ValueError(f"{state.key}: an absent state has no row")
    return (
        *encode_key(state.key),
        state.status,
        state.current_run_id,
        state.schema_version,
        state.record_count,
        instant_text(state.updated_at),
        state.error_message,
        state.attempt_count,
    )


def encode_run(run: Run) -> Values:
    return *encode_key(run.key), run.run_id


def encode_verdict_id(verdict: Verdict) -> Values:
    return *encode_run(verdict.run), verdict.validation_id


def encode_demotion(verdict: Verdict, started_at: str) -> Values:
    """The row of `demotions`."""
    reason = verdict.reason and verdict.reason.json
    return (
        *encode_verdict_id(verdict),
        reason,
        verdict.rows_read,
        verdict.payload_bytes,
        verdict.payload_sha256,
        None,
        started_at,
    )


def encode_withdrawal(run: Run, request: ActionRequest, started_at: str) -> Values:
    """The row of `demotions` of a withdrawal, which has the request in place of a verdict."""
    reason = Reason.of_withdrawal(run.run_id, operator=request.operator, text=request.reason)
    return *encode_run(run), "", reason.json, None, None, None, json.dumps(asdict(request)), started_at


def decode_withdrawal(row: sa.Row[Any]) -> OpenWithdrawal:
    return OpenWithdrawal(run=decode_run(row), request=ActionRequest(**json.loads(row.request)))


def encode_registration(registered: RegisteredRun, registered_at: str) -> Values:
    """The row of `runs`."""
    return (
        *encode_run(registered.run),
        registered.ordinal,
        registered.schema_version,
        registered.record_count,
        registered.payload_sha256,
        registered.extracted_at and instant_text(registered.extracted_at),
        registered_at,
    )


def encode_load(run: Run, state: PartitionState, table_version: int) -> Values:
    """The columns that a load record and the pointer to the run share."""
    return *encode_run(run), state.schema_version, state.record_count, table_version


def decode_key(row: sa.Row[Any]) -> PartitionKey:
    return PartitionKey(
        source=row.source, customer_id=row.customer_id, query_name=row.query_name, logical_date=row.logical_date
    )


def decode_run(row: sa.Row[Any]) -> Run:
    return Run(key=decode_key(row), run_id=row.run_id)


def decode_state(row: Any, key: PartitionKey | None = None) -> PartitionState:
    """The state in a row that has its columns, such as a `VerdictRow`."""
    return PartitionState(
        key=key or decode_key(row),
        status=Status(row.status),
        current_run_id=row.current_run_id,
        schema_version=row.schema_version,
        record_count=row.record_count,
        updated_at=row.updated_at,
        error_message=row.error_message,
        attempt_count=row.attempt_count,
    )


def decode_verdict(row: sa.Row[Any], outcome: Outcome) -> Verdict:
    """The verdict of an attempt, or of an open demotion."""
    return Verdict(
        run=decode_run(row),
        outcome=outcome,
        reason=None if row.reason is None else Reason.from_json(row.reason),
        measures=Measures(**{name: getattr(row, name, None) for name in MEASURED_COLUMNS}),
        **pick_fields(Verdict, row, "run", "outcome", "reason", "measures"),
    )


def decode_figures(row: Any, run_id: str, suffix: str = "") -> Figures:
    """The figures of an accepted attempt, from columns whose names end with the suffix."""
    measures = Measures(**{name: getattr(row, f"{name}{suffix}") for name in MEASURED_COLUMNS})
    return Figures(run_id=run_id, rows=getattr(row, f"rows_read{suffix}"), measures=measures)


def decode_pointer(row: sa.Row[Any]) -> Pointer:
    return Pointer(
        run=decode_run(row),
        is_published=row.availability == "published",
        **pick_fields(Pointer, row, "run", "is_published"),
    )


def decode_publication_status(row: sa.Row[Any]) -> PublicationStatus:
    state = decode_state(row)
    return PublicationStatus(
        state=state,
        pointer=_decode_joined_pointer(row, state.key),
        demotion_pending=row.demotion_pending,
        is_publishable=row.is_publishable,
        points_at_current=row.points_at_current,
        has_unjudged_run=row.has_unjudged_run,
    )


def decode_registered_run(row: sa.Row[Any], run: Run | None = None) -> RegisteredRun:
    return RegisteredRun(
        run=run or decode_run(row),
        ordinal=row.ordinal,
        schema_version=row.schema_version,
        record_count=row.record_count,
        payload_sha256=row.payload_sha256,
        extracted_at=row.extracted_at,
    )


def _decode_joined_pointer(row: sa.Row[Any], key: PartitionKey) -> Pointer | None:
    if row.pointer_run_id is None:
        return None
    return Pointer(
        run=Run(key=key, run_id=row.pointer_run_id),
        schema_version=row.pointer_schema_version,
        record_count=row.pointer_record_count,
        table_version=row.pointer_table_version,
        is_published=row.pointer_availability == "published",
        changed_at=row.pointer_changed_at,
    )


def pick_fields(kind: type[Any], row: sa.Row[Any], *excluded: str) -> dict[str, Any]:
    """The columns of a row that `kind` has a field for, without those in `excluded`."""
    values = row._mapping
    return {name: values[name] for name in (field.name for field in fields(kind)) if name not in excluded}
