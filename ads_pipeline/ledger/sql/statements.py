"""Named SQL statements over any number of rows.

The text is SQL as Postgres executes it. One table in it is not in the schema: `given` has the rows that the caller
passes. The text is the same for one row and for thousands, so the cost of building, sending and planning it does not
grow with the rows.

SQLite executes the same text, except for row locks, which it does not need, and for two functions: a write
transaction locks the whole database, and its clock and its greatest() have other names.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ads_pipeline.domain.errors import LedgerRefused
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import KEY, Day, Instant, metadata
from ads_pipeline.ledger.sql.ledger_values import DayWindow

Columns = Mapping[str, str]  # the type of each column: text, integer, bigint, boolean, instant or day
Values = tuple[Any, ...]
# A row holds its values in the order of the columns, or by their names; names that are left out are null.
Rows = Iterable[Values] | Iterable[Mapping[str, Any]]
KEY_COLUMNS: Final[Columns] = {name: "day" if name == "logical_date" else "text" for name in KEY}
RUN_COLUMNS: Final[Columns] = {**KEY_COLUMNS, "run_id": "text"}
_KINDS: Final[Mapping[Any, str]] = {
    sa.Text: "text",
    sa.Integer: "integer",
    sa.BigInteger: "bigint",
    sa.Double: "double",
    Instant: "instant",
    Day: "day",
}
POSTGRES_TYPES: Final = {"instant": "timestamptz", "day": "date", "double": "double precision"}
# What SQLite writes in another way.
_SQLITE_WORDS: Final = (
    (re.compile(r"\bFOR (?:UPDATE|SHARE)(?: SKIP LOCKED)?"), ""),
    (re.compile(r"\bclock_timestamp\(\)"), "clock_text(0)"),
    (re.compile(r"\bgreatest\("), "max("),
)
_TABLE: Final = re.compile(r"\b(FROM|JOIN)\s+given\b(?!\.)")
_HIDDEN: Final = re.compile(r"\bgiven AS (?:MATERIALIZED )?\(")
_FROM_ROWS: Final = re.compile(r"\b(?:FROM|CROSS JOIN) given\b(?!\.)")
_IN_ORDER: Final = re.compile(r"\bORDER BY given\.\w+(?:, given\.\w+)*")
_VALUE: Final = re.compile(r"\bgiven\.(\w+)")
_LISTED: Final = "AS listed"
_WORD: Final = re.compile(r"\w+")
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode
_encode_ascii = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode  # takes half the time


def columns_of(table: sa.Table, *names: str) -> Columns:
    """The types of a table's columns, by default of all."""
    return {name: _KINDS[type(table.c[name].type)] for name in names or table.c.keys()}


def names(columns: Iterable[str], prefix: str = "") -> str:
    """The column names as a list in SQL."""
    return ", ".join(f"{prefix}{name}" for name in columns)


class Statement:
    """A named statement over rows. It is built when a dialect first executes it, once per process.

    `flags` are the conditions that it selects. SQLite returns them as numbers.

    For one row, Postgres takes longer to plan a join of four tables than to run it, so each connection prepares the
    one-row statement once (psycopg2 has no prepared statements). For many rows the statement is planned every time:
    that is cheap by comparison, and the plan must fit the present size of the tables.
    """

    _texts: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, given: Columns, text: str, *, flags: Iterable[str] = ()) -> None:
        self.name, self.given, self.text = name, given, text.strip()
        self._flags = tuple(flags)
        if self._texts.setdefault(name, self.text) != self.text:
            raise ValueError(f"two statements are named {name}, and a connection prepares only one of them")

    def execute(self, connection: sa.Connection, rows: Rows) -> sa.CursorResult[Any]:
        return execute_in_order(connection, [Call(self, _list_values(rows, self.given))])

    def fetch(self, engine: database.Reading, rows: Rows) -> Sequence[sa.Row[Any]]:
        """Execute the statement in a transaction of its own, and return its rows."""
        values = _list_values(rows, self.given)
        return database.transact(engine, lambda connection: self.execute(connection, values).all()) if values else []

    def execute_on_sqlite(self, connection: sa.Connection, rows: Sequence[Values]) -> sa.CursorResult[Any]:
        options = {"preserve_rowcount": True}
        return connection.execute(self._for_sqlite, {"given": _encode(rows)}, execution_options=options)

    def text_on_postgres(self, connection: sa.Connection, rows: Sequence[Values]) -> tuple[str, list[str]]:
        """The text that executes the statement, and the values in it: the columns of the rows as lists in JSON.

        Postgres reads such lists in half the time of one object per row.
        """
        if len(rows) != 1:
            lists = zip(*rows, strict=True) if rows else ((),) * len(self.given)
            return self._for_rows, list(map(_encode_ascii, lists)) * self._for_rows.count(_LISTED)
        prepared = connection.info.setdefault("prepared", set())
        if self.name not in prepared:
            connection.exec_driver_sql(f"PREPARE {self.name} (text) AS {self._for_one_row}")
            prepared.add(self.name)
        return f"EXECUTE {self.name} (%s)", [_encode(dict(zip(self.given, rows[0], strict=True)))]

    @cached_property
    def _for_sqlite(self) -> sa.TextualSelect:
        values = ", ".join(f"json_extract(value, '$[{index}]') AS {name}" for index, name in enumerate(self.given))
        given = f"(SELECT {values} FROM json_each(:given)) AS given"
        text = _name_given(_translate(self.text), given)
        return sa.text(text).columns(**_decoded_columns(text, self._flags))

    @cached_property
    def _for_rows(self) -> str:
        values = ", ".join(f"CAST({name} AS {_postgres_type(kind)}) AS {name}" for name, kind in self.given.items())
        lists = ", ".join(["json_array_elements_text(%s)"] * len(self.given))
        listed = f"(SELECT {values} FROM ROWS FROM ({lists}) {_LISTED} ({names(self.given)})) AS given"
        return _name_given(self.text, listed)

    @cached_property
    def _for_one_row(self) -> str:
        """With json_to_record, the planner knows that there is one row."""
        columns = ", ".join(f"{name} {_postgres_type(kind)}" for name, kind in self.given.items())
        return _name_given(self.text, f"json_to_record($1::json) AS given({columns})")


class RowWrite(Statement):
    """A named statement that writes each given row by itself. Its text begins with INSERT or UPDATE.

    SQLite executes it once per row with parameters, which takes half the time of reading the rows from JSON.
    """

    def write(self, connection: sa.Connection, rows: Rows) -> int:
        """Write the rows, and return the number of rows that were written."""
        values = _list_values(rows, self.given)
        return self.execute(connection, values).rowcount if values else 0

    def execute_on_sqlite(self, connection: sa.Connection, rows: Sequence[Values]) -> sa.CursorResult[Any]:
        text, pick = self._row_for_sqlite
        options = {"preserve_rowcount": True}
        try:
            return connection.exec_driver_sql(text, [pick(row) for row in rows], execution_options=options)
        except OverflowError as error:
            raise LedgerRefused("the ledger's database refused a statement: a number does not fit 64 bits") from error

    @cached_property
    def _row_for_sqlite(self) -> tuple[str, Callable[[Values], Values]]:
        """The text with a parameter for each use of a column, and what picks the values of these parameters."""
        indexes = {name: index for index, name in enumerate(self.given)}
        text = _FROM_ROWS.sub("", _IN_ORDER.sub("", _translate(self.text)))
        used = [indexes[name] for name in _VALUE.findall(text)]
        return _VALUE.sub("?", text), itemgetter(*used)


class Call(NamedTuple):
    """A statement, and the rows that it is executed with."""

    statement: Statement
    rows: Sequence[Values]


def execute_in_order(connection: sa.Connection, calls: Sequence[Call]) -> sa.CursorResult[Any]:
    """Execute the statements one after the other, and return the result of the last.

    Postgres gets them in one message: each message takes as long as a statement that writes one row.
    """
    if connection.dialect.name == "sqlite":
        return [call.statement.execute_on_sqlite(connection, call.rows) for call in calls][-1]
    texts, values = zip(*(call.statement.text_on_postgres(connection, call.rows) for call in calls), strict=True)
    return connection.exec_driver_sql(";\n".join(texts), tuple(chain.from_iterable(values)))


def query(text: str, *, flags: Iterable[str] = (), **types: TypeEngine[Any]) -> sa.TextualSelect:
    """A query with named parameters, such as `:source`, of these types.

    The result has the types of the ledger's columns. `flags` are the conditions that it selects.
    """
    parameters = (sa.bindparam(name, type_=kind) for name, kind in types.items())
    return sa.text(text.strip()).bindparams(*parameters).columns(**_decoded_columns(text, flags))


def query_days(
    text: str, window: DayWindow, *, customer_column: str = "customer_id", flags: Iterable[str] = ()
) -> sa.TextualSelect:
    """A query of the days of a window. Without customers in the window, `customer_id IN :customers` is true."""
    values = {"source": window.source, "query_name": window.query_name, "since": window.since, "until": window.until}
    if window.customers is None:
        text = text.replace(f"{customer_column} IN :customers", "TRUE")
    statement = query(text, flags=flags, since=Day(), until=Day()).bindparams(**values)
    if window.customers is not None:
        statement = statement.bindparams(sa.bindparam("customers", sorted(window.customers), expanding=True))
    return statement


def _translate(text: str) -> str:
    """The text as SQLite executes it."""
    for pattern, word in _SQLITE_WORDS:
        text = pattern.sub(word, text)
    return text


def _name_given(text: str, rows: str) -> str:
    """Put the rows where the text reads them. A CTE of the same name hides them after its definition, as in SQL."""
    return _TABLE.sub(lambda found: f"{found[1]} {rows}", text, count=1 if _HIDDEN.search(text) else 0)


def _list_values(rows: Rows, columns: Columns) -> list[Values]:
    listed = list[Any](rows)
    if listed and isinstance(listed[0], Mapping):
        return [tuple(map(row.get, columns)) for row in listed]
    return listed


def _postgres_type(kind: str) -> str:
    return POSTGRES_TYPES.get(kind, kind)


def _decoded_columns(text: str, flags: Iterable[str]) -> dict[str, Any]:
    """The types of the columns that SQLite stores as text or numbers and Python does not.

    Only those that the statement names or may name with a star, because each execution compares them with its result.
    """
    decoded = _all_decoded_columns()
    named = decoded if "*" in text else {name: decoded[name] for name in set(_WORD.findall(text)) & decoded.keys()}
    return named | dict.fromkeys(flags, sa.Boolean())


def _all_decoded_columns() -> dict[str, Any]:
    columns = {column.name: column.type for table in metadata.tables.values() for column in table.c}
    decoded = {name: kind for name, kind in columns.items() if isinstance(kind, (Instant, Day))}
    return decoded | {"now": Instant(), "pointer_changed_at": Instant()}


def insert(table: sa.Table, *columns: str, skip_present: bool = False) -> RowWrite:
    """Insert the given rows in the order of their keys, by default all columns. Rows that exist raise or are kept."""
    given, key = columns_of(table, *columns), table.primary_key.columns.keys()
    condition, conflict = "TRUE", ""
    if skip_present:  # ON CONFLICT covers rows of concurrent writers; on SQLite a trigger refuses existing keys
        same_key = f"({names(key, prefix=f'{table.name}.')}) = ({names(key, prefix='given.')})"
        condition = f"NOT EXISTS (SELECT 1 FROM {table.name} WHERE {same_key})"
        conflict = "ON CONFLICT DO NOTHING"
    return _insert_given(f"insert_{table.name}", table, given, condition, conflict)


def upsert(table: sa.Table, *columns: str, newer: str = "true") -> RowWrite:
    """Insert the given columns, by default all, or replace those of existing rows for which `newer` is true."""
    given, key = columns_of(table, *columns), names(table.primary_key.columns.keys())
    changes = ", ".join(f"{name} = excluded.{name}" for name in given if name not in table.primary_key.columns)
    conflict = f"ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE {newer}"
    return _insert_given("_".join(("upsert", table.name, *columns[-1:])), table, given, "TRUE", conflict)


def select_given(table: sa.Table) -> Statement:
    """The rows of a table for the given partitions."""
    text = f"SELECT {table.name}.* FROM given JOIN {table.name} USING ({names(KEY)})"
    return Statement(f"{table.name}_by_key", KEY_COLUMNS, text)


def _insert_given(name: str, table: sa.Table, given: Columns, condition: str, conflict: str) -> RowWrite:
    """Without WHERE, SQLite would parse the ON of ON CONFLICT as the condition of a join."""
    order = names((column for column in given if table.c[column].primary_key), prefix="given.")
    select = f"SELECT {names(given, prefix='given.')} FROM given WHERE {condition} ORDER BY {order}"
    return RowWrite(name, given, f"INSERT INTO {table.name} ({names(given)}) {select} {conflict}")
