"""Runs SELECT statements over the readable rows, and lists missing days.

Importing it loads DuckDB and Spark's client.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Any, Final

import duckdb
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.output import (
    OutputConsole,
    cell,
    count_of,
    new_table,
    write_csv,
    write_json,
    write_results,
    write_rows,
)
from ads_pipeline.cli.parsing import DateWindow, open_ledger, parse_customers, parse_queries
from ads_pipeline.errors import BadCommand, WarehouseUnavailable
from ads_pipeline.pipeline.gaps import Gap
from ads_pipeline.pipeline.readers import Readers
from ads_pipeline.quoting import printable
from ads_pipeline.settings import Settings

DEFAULT_LIMIT: Final = 100
ROWS_PER_FETCH: Final = 1000


class OutputFormat(StrEnum):
    """The output format of query results."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def query(settings: Settings, sql: str, *, form: OutputFormat, limit: int | None) -> None:
    """Write the rows of a SELECT. Raises BadCommand with one line for invalid SQL."""
    with open_ledger(settings) as ledger:
        readers = Readers(
            states=ledger.states,
            publications=ledger.publications,
            warehouse_root=settings.warehouse_root,
            source=settings.google_apis.source,
        )
        connection = readers.connect(sorted(settings.google_apis.queries))
    with connection, _translated(connection):
        connection.execute(_select(connection, sql))
        names = [str(column[0]) for column in connection.description or ()]
        if form is OutputFormat.TABLE:
            _write_limited(connection, names, DEFAULT_LIMIT if limit is None else limit)
        elif form is OutputFormat.CSV:
            write_csv(names, _rows(connection, limit))
        else:
            _check_unique_names(names)
            write_json(dict(zip(names, map(_json_value, row), strict=True)) for row in _rows(connection, limit))


def gaps(
    settings: Settings,
    *,
    query: Sequence[str] | None,
    customer: Sequence[str] | None,
    days: DateWindow,
    as_json: bool,
) -> bool:
    """Write the expected partitions that readers do not see; return whether there are any."""
    names, given = parse_queries(query, settings), parse_customers(customer)
    since, until = _expected_days(settings, days)
    source = settings.google_apis.source
    with open_ledger(settings) as ledger:
        customer_ids = given or ledger.states.customers(source)
        if not customer_ids:
            raise BadCommand("no --customer is given and the ledger has no customers: give at least one --customer")
        readers = Readers(
            states=ledger.states,
            publications=ledger.publications,
            warehouse_root=settings.warehouse_root,
            source=source,
        )
        found = {name: readers.find_gaps(name, since=since, until=until, customers=customer_ids) for name in names}
    missing = sum(map(len, found.values()))
    expected = count_of(len(names) * len(customer_ids) * ((until - since).days + 1), "expected partition")
    summary = f"{missing:,} of {expected} missing" if missing else f"none of {expected} missing"
    lines = (_fields(gap) for listed in found.values() for gap in listed)
    write_results(lines, _gap_blocks(found), [summary], as_json=as_json)
    return missing > 0


def _select(connection: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    """The single SELECT statement. COPY is refused because it could write into the warehouse directory."""
    statements = connection.extract_statements(sql)
    if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
        raise BadCommand("SQL: only one SELECT, DESCRIBE, SUMMARIZE or SHOW TABLES statement is allowed")
    return statements[0]


def _rows(connection: duckdb.DuckDBPyConnection, limit: int | None) -> Iterator[tuple[Any, ...]]:
    left = limit
    while left is None or left > 0:
        batch = connection.fetchmany(ROWS_PER_FETCH if left is None else min(ROWS_PER_FETCH, left))
        if not batch:
            return
        yield from batch
        left = None if left is None else left - len(batch)


def _write_limited(connection: duckdb.DuckDBPyConnection, names: Sequence[str], limit: int) -> None:
    rows = list(_rows(connection, limit + 1))
    write_rows(names, rows[:limit])
    more = "more than " if len(rows) > limit else ""
    hint = "; --limit N shows more, --json and --csv give every row" if more else ""
    OutputConsole().print(Text(""), cell(f"{more}{count_of(len(rows[:limit]), 'row')}{hint}"), sep="\n")


def _json_value(value: object) -> object:
    return str(value) if isinstance(value, datetime) else value  # as the CSV has it


def _check_unique_names(names: Sequence[str]) -> None:
    """Raise BadCommand for duplicate column names, because JSON would lose a value."""
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise BadCommand(f"SQL: two columns are named {printable(duplicates[0])}; rename one with AS")


@contextmanager
def _translated(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Translate DuckDB's errors, without its excerpt of the statement."""
    try:
        yield
    except duckdb.OperationalError as error:
        raise WarehouseUnavailable("the warehouse", _error_line(error)) from error
    except duckdb.CatalogException as error:
        raise BadCommand(f"SQL: {_error_line(error)} {_views(connection)}") from error
    except duckdb.Error as error:
        raise BadCommand(f"SQL: {_error_line(error)}") from error


def _error_line(error: duckdb.Error) -> str:
    message = str(error).partition("\nLINE ")[0]
    return printable(" ".join(line.strip() for line in message.splitlines() if line.strip()), limit=500)


def _views(connection: duckdb.DuckDBPyConnection) -> str:
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1").fetchall()
    return f"(views: {', '.join(name for (name,) in found)})" if found else "(nothing is loaded yet)"


def _expected_days(settings: Settings, days: DateWindow) -> tuple[date, date]:
    """The window, cut to the days from the query file's start_date on."""
    start = settings.google_apis.start_date
    since, until = days.since or start, days.until or start
    if until < start:
        raise BadCommand(
            f"no day is expected before {start}, the start_date of {settings.queries_file}; --until is {until}"
        )
    return max(since, start), until


def _fields(gap: Gap) -> dict[str, object]:
    reason = {"reason": gap.reason.name.lower(), "because": gap.reason.value, "detail": gap.detail}
    return asdict(gap.key) | reason


def _gap_blocks(found: dict[str, list[Gap]]) -> Iterator[RenderableType]:
    """One table per query, with one line per run of consecutive days with the same customer and reason."""
    for name, listed in found.items():
        if not listed:
            continue
        table = new_table(customer="left", days="left", gaps="right", because="fold")
        for group in _consecutive_gaps(listed):
            first, last = group[0], group[-1]
            span = str(first.key.logical_date) + (f" to {last.key.logical_date}" if len(group) > 1 else "")
            detail = (first.detail or "").removeprefix(f"{first.key}/")
            because = f"{first.reason}: {detail}" if detail else first.reason
            table.add_row(cell(first.key.customer_id), cell(span), cell(f"{len(group):,}"), cell(because))
        yield from (cell(name, style="bold"), table, Text(""))


def _consecutive_gaps(listed: Sequence[Gap]) -> Iterator[list[Gap]]:
    """Group the gaps of one query by customer, reason and consecutive days."""
    ordered = sorted(listed, key=lambda gap: (gap.key.customer_id, gap.key.logical_date))

    def group_key(numbered: tuple[int, Gap]) -> tuple[object, ...]:
        number, gap = numbered
        return gap.key.customer_id, gap.reason, gap.detail, gap.key.logical_date - timedelta(days=number)

    for _key, members in groupby(enumerate(ordered), group_key):
        yield [gap for _number, gap in members]
