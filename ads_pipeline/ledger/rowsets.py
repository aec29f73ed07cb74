"""Passes any number of rows to a statement as one parameter.

A rowset is a JSON array of objects. The same statement text serves one row and thousands, on both databases, so the
cost of building, sending and planning it does not grow with the rows.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2
from sqlalchemy.types import TypeEngine

from ads_pipeline.ledger import database

ROWSET: Final = "rowset"  # the name of the parameter and of the FROM clause
Rows = Iterable[Mapping[str, Any]]
Rowset = Callable[[Mapping[str, TypeEngine[Any]]], sa.FromClause]


_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


class RowStatement:
    """A statement whose one parameter is a rowset. `build` gets a function that returns the rowset as a FROM clause.

    For one row, Postgres takes longer to plan a join of four tables than to run it, so each connection prepares the
    one-row statement once (psycopg2 has no prepared statements). For many rows the statement is planned every time:
    that is cheap by comparison, and the plan must fit the present size of the tables.
    """

    def __init__(self, name: str, dialect: str, build: Callable[[Rowset], sa.Executable]) -> None:
        self._one: _Prepared | None = None
        if dialect == "postgresql":
            self._one = _Prepared(name, build(_postgres_row))
        self._many = build(_postgres_rowset if dialect == "postgresql" else _sqlite_rowset)

    def execute(self, connection: sa.Connection, rows: Rows) -> sa.CursorResult[Any]:
        row_list = list(rows)
        if self._one is not None and len(row_list) == 1:
            return self._one.execute(connection, _encode(row_list[0]))
        return connection.execute(self._many, {ROWSET: _encode(row_list)})

    def fetch(self, engine: sa.Engine, rows: Rows) -> Sequence[sa.Row[Any]]:
        """Execute the statement in a transaction of its own, and return its rows."""
        row_list = list(rows)
        return database.transact(engine, lambda connection: self.execute(connection, row_list).all())


class _Prepared:
    """A statement that each connection prepares once."""

    def __init__(self, name: str, statement: sa.Executable) -> None:
        numbered = PGDialect_psycopg2(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
        text = str(statement.compile(dialect=numbered))  # type: ignore[attr-defined]
        self._prepare = f"PREPARE {name} (text) AS {text}"
        self._execute = f"EXECUTE {name} (%s)"

    def execute(self, connection: sa.Connection, rows: str) -> sa.CursorResult[Any]:
        prepared = connection.info.setdefault("prepared", set())
        if self._prepare not in prepared:
            connection.exec_driver_sql(self._prepare)
            prepared.add(self._prepare)
        return connection.exec_driver_sql(self._execute, (rows,))


def _postgres_rowset(columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    return _postgres_records(sa.func.json_to_recordset, columns)


def _postgres_row(columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    """One row. With json_to_record, the planner knows that there is only one."""
    return _postgres_records(sa.func.json_to_record, columns)


def _postgres_records(function: Any, columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    parameter = sa.cast(sa.bindparam(ROWSET, type_=sa.Text()), sa.JSON)
    typed = [sa.column(column, kind) for column, kind in columns.items()]
    records: sa.TableValuedAlias = function(parameter).table_valued(*typed)
    return records.render_derived(name=ROWSET, with_types=True)


def _sqlite_rowset(columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
    each = sa.func.json_each(sa.bindparam(ROWSET, type_=sa.Text())).table_valued("value", name="rowset_each")
    columns_of_row = [
        sa.type_coerce(sa.func.json_extract(each.c.value, f"$.{column}"), kind).label(column)
        for column, kind in columns.items()
    ]
    return sa.select(*columns_of_row).subquery(ROWSET)
