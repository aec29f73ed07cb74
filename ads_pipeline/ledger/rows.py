"""Turns rows of the ledger into values, and values into rows."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ads_pipeline.ledger.tables import KEY, Day, instant_text
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.transitions import PartitionState, RegisteredRun, Status

KEY_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    name: Day() if name == "logical_date" else sa.Text() for name in KEY
}


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


def registered_of(row: sa.Row[Any]) -> RegisteredRun:
    return RegisteredRun(
        run=run_in(row),
        ordinal=row.ordinal,
        schema_version=row.schema_version,
        record_count=row.record_count,
        payload_sha256=row.payload_sha256,
    )


def fields_for(kind: type[Any], row: sa.Row[Any], *but: str) -> dict[str, Any]:
    """The columns of a row that a value of this kind has under the same name."""
    values = row._mapping
    return {name: values[name] for name in (field.name for field in fields(kind)) if name not in but}
