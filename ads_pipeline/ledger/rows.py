"""Turns rows of the ledger into values, values into rows, and many rows into one bound parameter."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ads_pipeline.ledger.tables import KEY, Day, instant_text
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.transitions import PartitionState, RegisteredRun, Status

KEY_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    name: Day() if name == "logical_date" else sa.Text() for name in KEY
}


def json_rows(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as the one parameter that a rowset reads."""
    return json.dumps(list(rows))


def rowset(dialect: str, columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    """Any number of rows as one bound parameter named `asked`: a JSON array of objects.

    One statement text serves one row and a thousand, so it is built, compiled and planned alike for both.
    """
    rows = sa.bindparam("asked", type_=sa.Text())
    if dialect == "postgresql":
        typed = [sa.column(column, kind) for column, kind in columns.items()]
        records = sa.func.json_to_recordset(sa.cast(rows, sa.JSON)).table_valued(*typed)
        return records.render_derived(name="asked", with_types=True)
    each = sa.func.json_each(rows).table_valued("value", name="asked_each")
    picked = [
        sa.type_coerce(sa.func.json_extract(each.c.value, f"$.{column}"), kind).label(column)
        for column, kind in columns.items()
    ]
    return sa.select(*picked).subquery("asked")


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


def state_of(row: sa.Row[Any]) -> PartitionState:
    return PartitionState(
        key=key_in(row),
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


def fields_for(kind: type, row: sa.Row[Any], *but: str) -> dict[str, Any]:
    """The columns of a row that a value of this kind has under the same name."""
    values = row._mapping  # noqa: SLF001 - SQLAlchemy's public mapping of a row, named so that it hides no column
    return {name: values[name] for name in kind.__dataclass_fields__ if name not in but}
