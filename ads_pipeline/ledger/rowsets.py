"""Hands any number of rows to a statement as one parameter.

A rowset is a JSON array of objects. One statement then serves one row and a thousand, on both databases; what it
costs to build, send and plan does not grow with the rows.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.types import TypeEngine

Rows = Iterable[Mapping[str, Any]]
Rowset = Callable[[Mapping[str, TypeEngine[Any]]], sa.FromClause]


_text = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class RowStatement:
    """A statement whose one parameter is a rowset; `build` makes it from the function that makes the rowset.

    Planning a join of four tables takes Postgres longer than running it for one partition, and the driver cannot
    prepare statements by itself; so here each connection prepares a statement for one row when it first runs it. For
    many rows it is planned each time: that costs little beside them, and the plan must suit the tables' present size.
    """

    def __init__(self, name: str, dialect: str, build: Callable[[Rowset], sa.Executable]) -> None:
        self._one: _Prepared | None = None
        if dialect == "postgresql":
            self._one = _Prepared(name, build(_postgres_row))
        self._many = build(_postgres_rowset if dialect == "postgresql" else _sqlite_rowset)

    def run(self, connection: sa.Connection, rows: Rows) -> sa.CursorResult[Any]:
        listed = list(rows)
        if self._one is not None and len(listed) == 1:
            return self._one.run(connection, _text(listed[0]))
        return connection.execute(self._many, {"asked": _text(listed)})


class _Prepared:
    """A statement that each connection prepares once."""

    def __init__(self, name: str, statement: sa.Executable) -> None:
        numbered = PGDialect_psycopg2(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
        text = str(statement.compile(dialect=numbered))  # type: ignore[attr-defined]
        self._prepare = f"PREPARE {name} (text) AS {text}"
        self._execute = f"EXECUTE {name} (%s)"

    def run(self, connection: sa.Connection, rows: str) -> sa.CursorResult[Any]:
        prepared = connection.info.setdefault("prepared", set())
        if self._prepare not in prepared:
            connection.exec_driver_sql(self._prepare)
            prepared.add(self._prepare)
        return connection.exec_driver_sql(self._execute, (rows,))


def _postgres_rowset(columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    return _postgres_records(sa.func.json_to_recordset, columns)


def _postgres_row(columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    """As many as one object, which Postgres knows to be one row."""
    return _postgres_records(sa.func.json_to_record, columns)


def _postgres_records(function: Any, columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    asked = sa.cast(sa.bindparam("asked", type_=sa.Text()), sa.JSON)
    typed = [sa.column(column, kind) for column, kind in columns.items()]
    records: sa.TableValuedAlias = function(asked).table_valued(*typed)
    return records.render_derived(name="asked", with_types=True)


def _sqlite_rowset(columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    each = sa.func.json_each(sa.bindparam("asked", type_=sa.Text())).table_valued("value", name="asked_each")
    picked = [
        sa.type_coerce(sa.func.json_extract(each.c.value, f"$.{column}"), kind).label(column)
        for column, kind in columns.items()
    ]
    return sa.select(*picked).subquery("asked")
