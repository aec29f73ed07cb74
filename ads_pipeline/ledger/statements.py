"""Named SQL statements over any number of rows, which travel as one JSON parameter.

The text of a statement is the same for one row and for thousands, so the cost of building, sending and planning it
does not grow with the rows. It is the same for both databases, except for these placeholders:

* `{given}`: the rows, as an item of FROM with the alias `given`
* `{now}`, `{greatest}`: the database's clock, and the greatest of several values
* `{for_update}`, `{for_share}`, `{skip_locked}`: row locks; on SQLite a write transaction locks the whole database
* `{key}`: the four columns of a partition key; `{runs.key}`: those columns of the table or alias `runs`
* `{status_key}`, `{given.status_key}`: the same for the four columns of a status key
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ads_pipeline.ledger import database
from ads_pipeline.ledger.tables import KEY, STATUS_KEY, Day, Instant, metadata
from ads_pipeline.ledger.values import DayWindow

Columns = Mapping[str, str]  # the type of each column: text, integer, bigint, boolean, instant or day
Rows = Iterable[Mapping[str, Any]]
KEY_COLUMNS: Final[Columns] = {name: "day" if name == "logical_date" else "text" for name in KEY}
RUN_COLUMNS: Final[Columns] = {**KEY_COLUMNS, "run_id": "text"}
FLAGS: Final = (
    *("demotion_pending", "is_publishable", "points_at_current", "has_unjudged_run", "is_judged", "is_current"),
    *("is_published", "is_restated", "differs", "is_live", "is_new"),
)  # conditions that statements select
_KINDS: Final[Mapping[Any, str]] = {
    sa.Text: "text",
    sa.Integer: "integer",
    sa.BigInteger: "bigint",
    sa.Double: "double",
    Instant: "instant",
    Day: "day",
}
_POSTGRES_TYPES: Final = {"instant": "timestamptz", "day": "date", "double": "double precision"}
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {
        "now": "clock_timestamp()",
        "greatest": "greatest",
        "for_update": "FOR UPDATE",
        "for_share": "FOR SHARE",
        "skip_locked": "FOR UPDATE SKIP LOCKED",
    },
    "sqlite": {
        "now": "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')",
        "greatest": "max",
        "for_update": "",
        "for_share": "",
        "skip_locked": "",
    },
}
_WORD: Final = re.compile(r"\w+")
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def columns_of(table: sa.Table, *names: str) -> Columns:
    """The types of a table's columns, by default of all."""
    kinds = {
        sa.Text: "text",
        sa.Integer: "integer",
        sa.BigInteger: "bigint",
        sa.Double: "double",
        Instant: "instant",
        Day: "day",
    }
    return {name: kinds[type(table.c[name].type)] for name in names or table.c.keys()}


def names(columns: Iterable[str], prefix: str = "") -> str:
    """The column names as a list in SQL."""
    return ", ".join(f"{prefix}{name}" for name in columns)


class Statement:
    """A named statement over rows. It is built when a dialect first executes it, once per process.

    For one row, Postgres takes longer to plan a join of four tables than to run it, so each connection prepares the
    one-row statement once (psycopg2 has no prepared statements). For many rows the statement is planned every time:
    that is cheap by comparison, and the plan must fit the present size of the tables.
    """

    _texts: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, given: Columns, text: str) -> None:
        self._name, self._given, self._text = name, given, text.strip()
        if self._texts.setdefault(name, self._text) != self._text:
            raise ValueError(f"two statements are named {name}, and a connection prepares only one of them")

    def execute(self, connection: sa.Connection, rows: Rows) -> sa.CursorResult[Any]:
        row_list = list(rows)
        if connection.dialect.name == "sqlite":
            options = {"preserve_rowcount": True}
            return connection.execute(self._for_sqlite, {"given": _encode(row_list)}, execution_options=options)
        if len(row_list) != 1:
            return connection.exec_driver_sql(self._for_rows, {"given": _encode(row_list)})
        prepared = connection.info.setdefault("prepared", set())
        if self._name not in prepared:
            connection.exec_driver_sql(f"PREPARE {self._name} (text) AS {self._for_one_row}")
            prepared.add(self._name)
        return connection.exec_driver_sql(f"EXECUTE {self._name} (%s)", (_encode(row_list[0]),))

    def fetch(self, engine: sa.Engine, rows: Rows) -> Sequence[sa.Row[Any]]:
        """Execute the statement in a transaction of its own, and return its rows."""
        row_list = list(rows)
        return database.transact(engine, lambda connection: self.execute(connection, row_list).all())

    @cached_property
    def _for_sqlite(self) -> sa.TextualSelect:
        values = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in self._given)
        text = self._format("sqlite", f"(SELECT {values} FROM json_each(:given)) AS given")
        return sa.text(text).columns(**_decoded_columns(text))

    @cached_property
    def _for_rows(self) -> str:
        return self._format("postgresql", f"json_to_recordset(%(given)s::json) AS given({self._types})")

    @cached_property
    def _for_one_row(self) -> str:
        """With json_to_record, the planner knows that there is one row."""
        return self._format("postgresql", f"json_to_record($1::json) AS given({self._types})")

    @property
    def _types(self) -> str:
        return ", ".join(f"{name} {_POSTGRES_TYPES.get(kind, kind)}" for name, kind in self._given.items())

    def _format(self, dialect: str, given: str) -> str:
        return self._text.format_map(_Words(_WORDS[dialect], given))


def query(text: str, **types: TypeEngine[Any]) -> sa.TextualSelect:
    """A query with named parameters, such as `:source`, and the placeholders for keys.

    `types` are those of its parameters. The result has the types of the ledger's columns.
    """
    parameters = (sa.bindparam(name, type_=kind) for name, kind in types.items())
    formatted = _format_keys(text)
    return sa.text(formatted).bindparams(*parameters).columns(**_decoded_columns(formatted))


def query_days(text: str, window: DayWindow, *, customer_column: str = "customer_id") -> sa.TextualSelect:
    """A query of the days of a window. In the text, {customers} is the place of the condition on the customers."""
    condition = "TRUE" if window.customers is None else f"{customer_column} IN :customers"
    values = {"source": window.source, "query_name": window.query_name, "since": window.since, "until": window.until}
    statement = query(text.replace("{customers}", condition), since=Day(), until=Day()).bindparams(**values)
    if window.customers is not None:
        statement = statement.bindparams(sa.bindparam("customers", sorted(window.customers), expanding=True))
    return statement


def expression(text: str, kind: TypeEngine[Any] | None = None) -> sa.ColumnElement[Any]:
    """A value in SQL with the placeholders for keys, for a query that is built."""
    return sa.literal_column(_format_keys(text), kind)


def _format_keys(text: str) -> str:
    return text.strip().format_map(_Words({}, ""))


class _Words(dict[str, Any]):
    """The values of the placeholders. An unknown name is a table or an alias."""

    def __init__(self, words: Mapping[str, str], given: str) -> None:
        super().__init__(words, key=names(KEY), status_key=names(STATUS_KEY), given=_Alias("given", given))

    def __missing__(self, name: str) -> "_Alias":
        return _Alias(name, name)


class _Alias:
    def __init__(self, name: str, item: str) -> None:
        self.key, self.status_key = names(KEY, prefix=f"{name}."), names(STATUS_KEY, prefix=f"{name}.")
        self._item = item

    def __str__(self) -> str:
        return self._item


def _decoded_columns(text: str) -> dict[str, Any]:
    """The types of the columns that SQLite stores as text or numbers and Python does not.

    Only those that the statement names or may name with a star, because each execution compares them with its result.
    """
    decoded = _all_decoded_columns()
    return decoded if "*" in text else {name: decoded[name] for name in set(_WORD.findall(text)) & decoded.keys()}


def _all_decoded_columns() -> dict[str, Any]:
    columns = {column.name: column.type for table in metadata.tables.values() for column in table.c}
    decoded = {name: kind for name, kind in columns.items() if isinstance(kind, (Instant, Day))}
    return decoded | {"now": Instant(), "pointer_changed_at": Instant()} | dict.fromkeys(FLAGS, sa.Boolean())


def insert(table: sa.Table, *columns: str, skip_present: bool = False) -> Statement:
    """Insert the given rows in the order of their keys, by default all columns. Rows that exist raise or are kept."""
    given, key = columns_of(table, *columns), table.primary_key.columns.keys()
    text = _insert_given(table, given)
    if skip_present:  # ON CONFLICT covers rows of concurrent writers; on SQLite a trigger refuses existing keys
        same_key = f"({names(key, prefix=f'{table.name}.')}) = ({names(key, prefix='given.')})"
        absent = f"NOT EXISTS (SELECT 1 FROM {table.name} WHERE {same_key})"
        text = f"{text.replace('WHERE true', f'WHERE {absent}')} ON CONFLICT DO NOTHING"
    return Statement(f"insert_{table.name}", given, text)


def upsert(table: sa.Table, *, newer: str = "true") -> Statement:
    """Insert the given rows, or replace existing ones for which the condition `newer` is true."""
    given, key = columns_of(table), names(table.primary_key.columns.keys())
    changes = ", ".join(f"{name} = excluded.{name}" for name in given if name not in table.primary_key.columns)
    conflict = f"ON CONFLICT ({key}) DO UPDATE SET {changes} WHERE {newer}"
    return Statement(f"upsert_{table.name}", given, f"{_insert_given(table, given)} {conflict}")


def select_given(table: sa.Table) -> Statement:
    """The rows of a table for the given partitions."""
    text = f"SELECT {table.name}.* FROM {{given}} JOIN {table.name} USING ({{key}})"
    return Statement(f"{table.name}_by_key", KEY_COLUMNS, text)


def _insert_given(table: sa.Table, given: Columns) -> str:
    """Without WHERE, SQLite would parse the ON of ON CONFLICT as the condition of a join."""
    order = names(name for name in given if table.c[name].primary_key)
    select = f"SELECT {names(given)} FROM {{given}} WHERE true ORDER BY {order}"
    return f"INSERT INTO {table.name} ({names(given)}) {select}"
