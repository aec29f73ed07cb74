"""Answers from the warehouse: what a SELECT gives, and which days are missing.

The rows that readers may see, and why others are not there, are `reading`'s; here they are asked and shown. It loads
DuckDB, and Spark's client with it, so nothing that starts at once imports it.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

import duckdb
from rich.text import Text

from ads_pipeline.cli.output import Paper, cell, counted, listing, write_csv, write_json, write_records
from ads_pipeline.cli.parsing import Window, customers, ledger_of, queries
from ads_pipeline.errors import BadCommand, WarehouseUnavailable, printable
from ads_pipeline.pipeline.gaps import Gap
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.settings import Settings

MOST_SHOWN: Final = 100
AT_ONCE: Final = 1000


class Form(StrEnum):
    """How the rows of a query are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def query(settings: Settings, sql: str, *, form: Form, limit: int | None) -> None:
    """Write the rows that a SELECT gives; BadCommand says in a line what is wrong with it."""
    with ledger_of(settings) as ledger:
        readers = Readers(ledger=ledger, warehouse_root=settings.warehouse_root, source=settings.google_apis.source)
        connection = readers.connect(sorted(settings.google_apis.queries))
    with connection, _translated(connection):
        connection.execute(_select(connection, sql))
        names = [str(column[0]) for column in connection.description or ()]
        if form is Form.TABLE:
            _write_shown(connection, names, MOST_SHOWN if limit is None else limit)
        elif form is Form.CSV:
            write_csv(names, _rows(connection, limit))
        else:
            _refuse_twins(names)
            write_json(dict(zip(names, row, strict=True)) for row in _rows(connection, limit))


def gaps(
    settings: Settings,
    *,
    query: Sequence[str] | None,
    customer: Sequence[str] | None,
    days: Window,
    as_json: bool,
) -> bool:
    """Write every expected partition that readers do not see, and say whether there was one."""
    names, named = queries(query, settings), customers(customer)
    since, until = _expected_days(settings, days)
    source = settings.google_apis.source
    with ledger_of(settings) as ledger:
        wanted = named or ledger.customers(source)
        if not wanted:
            raise BadCommand("no --customer is named and the ledger knows none, so nothing is expected: name each")
        readers = Readers(ledger=ledger, warehouse_root=settings.warehouse_root, source=source)
        found = {name: readers.gaps(name, since=since, until=until, customers=wanted) for name in names}
    missing = sum(map(len, found.values()))
    expected = counted(len(names) * len(wanted) * ((until - since).days + 1), "expected partition")
    told = f"{missing:,} of {expected} missing" if missing else f"none of {expected} missing"
    if as_json:
        write_json(_fields(gap) for listed in found.values() for gap in listed)
        print(told, file=sys.stderr)  # noqa: T201 - standard output is the program's
    else:
        _write_gaps(found, told)
    return missing > 0


def _select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """The one statement that was given. COPY could write into the warehouse, where a reader's session may read."""
    statements = connection.extract_statements(sql)
    if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
        raise BadCommand("SQL: write one SELECT, or DESCRIBE, SUMMARIZE or SHOW TABLES; nothing else is run")
    return statements[0]


def _rows(connection: duckdb.DuckDBPyConnection, limit: int | None) -> Iterator[tuple[Any, ...]]:
    left = limit
    while left is None or left > 0:
        some = connection.fetchmany(AT_ONCE if left is None else min(AT_ONCE, left))
        if not some:
            return
        yield from some
        left = None if left is None else left - len(some)


def _write_shown(connection: duckdb.DuckDBPyConnection, names: Sequence[str], limit: int) -> None:
    rows = list(_rows(connection, limit + 1))
    write_records(names, rows[:limit])
    more = "more than " if len(rows) > limit else ""
    tell = "; --limit N shows more, --json and --csv give every row" if more else ""
    Paper().print(Text(""), cell(f"{more}{counted(len(rows[:limit]), 'row')}{tell}"), sep="\n")


def _refuse_twins(names: Sequence[str]) -> None:
    """One of two values under one name would be lost."""
    twins = [name for name in names if names.count(name) > 1]
    if twins:
        raise BadCommand(f"SQL: two columns are named {printable(twins[0])}; give each a name of its own with AS")


@contextmanager
def _translated(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """DuckDB's refusals as ours, without the drawing of the place."""
    try:
        yield
    except duckdb.OperationalError as error:
        raise WarehouseUnavailable("the warehouse", _told(error)) from error
    except duckdb.CatalogException as error:
        raise BadCommand(f"SQL: {_told(error)} {_views(connection)}") from error
    except duckdb.Error as error:
        raise BadCommand(f"SQL: {_told(error)}") from error


def _told(error: duckdb.Error) -> str:
    said = str(error).partition("\nLINE ")[0]
    return printable(" ".join(line.strip() for line in said.splitlines() if line.strip()), limit=500)


def _views(connection: duckdb.DuckDBPyConnection) -> str:
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1").fetchall()
    return f"(there are {', '.join(name for (name,) in found)})" if found else "(nothing was loaded yet)"


def _expected_days(settings: Settings, days: Window) -> tuple[date, date]:
    """The days of the window on which the query file expects anything."""
    start = settings.google_apis.start_date
    since, until = days.since or start, days.until or start
    if until < start:
        raise BadCommand(f"nothing is expected until {until}: {settings.queries_file} begins with {start}")
    return max(since, start), until


def _fields(gap: Gap) -> dict[str, object]:
    key = gap.key
    return {
        "source": key.source,
        "customer_id": key.customer_id,
        "query_name": key.query_name,
        "logical_date": key.logical_date,
        "reason": gap.reason.name.lower(),
        "because": gap.reason.value,
        "detail": gap.detail,
    }


def _write_gaps(found: dict[str, list[Gap]], told: str) -> None:
    """A table a query, with a line for days in a row that one customer lacks for one reason."""
    paper = Paper()
    for name, listed in found.items():
        if not listed:
            continue
        table = listing(customer="left", days="left", gaps="right", because="fold")
        for stretch in _stretches(listed):
            first, last = stretch[0], stretch[-1]
            span = str(first.key.logical_date) + (f" to {last.key.logical_date}" if len(stretch) > 1 else "")
            detail = (first.detail or "").removeprefix(f"{first.key}/")
            because = f"{first.reason}: {detail}" if detail else first.reason
            table.add_row(cell(first.key.customer_id), cell(span), cell(f"{len(stretch):,}"), cell(because))
        paper.print(cell(name, style="bold"), table, Text(""), sep="\n")
    paper.print(cell(told))


def _stretches(listed: Sequence[Gap]) -> Iterator[list[Gap]]:
    """The gaps of one query by customer, with those together that lie day on day and have the same reason."""
    ordered = sorted(listed, key=lambda gap: (gap.key.customer_id, gap.key.logical_date))

    def stretch(numbered: tuple[int, Gap]) -> tuple[object, ...]:
        number, gap = numbered
        return gap.key.customer_id, gap.reason, gap.detail, gap.key.logical_date - timedelta(days=number)

    for _same, members in groupby(enumerate(ordered), stretch):
        yield [gap for _number, gap in members]
