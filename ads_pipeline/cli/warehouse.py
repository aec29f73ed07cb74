"""The `warehouse` commands: run SELECT statements over the readable rows, and list loads and missing days.

DuckDB and Spark's client are imported by the functions that need them, for a fast start of the other commands.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.options import DATE_FORMAT, AsJson, Filters, Page, command
from ads_pipeline.cli.output import (
    PARTITION_COLUMNS,
    Column,
    OutputConsole,
    cell,
    count_of,
    fields_of,
    table_of,
    write_csv,
    write_json,
    write_list,
    write_results,
    write_rows,
)
from ads_pipeline.cli.parsing import make_readers, open_ledger, parse_customers, parse_queries
from ads_pipeline.domain.partition import PartitionKey, Run, parse_key
from ads_pipeline.errors import BadCommand, WarehouseUnavailable
from ads_pipeline.pipeline.gaps import Gap
from ads_pipeline.quoting import printable
from ads_pipeline.settings import Settings

if TYPE_CHECKING:
    import duckdb

DEFAULT_LIMIT: Final = 100
ROWS_PER_FETCH: Final = 1000
GAP_COLUMNS: Final = (
    Column("customer", "customer_id"),
    Column("days", "days"),
    Column("gaps", "gaps"),
    Column("because", "because", wrap=True),
)
LOAD_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("loaded", "loaded_at"),
    Column("rows", "record_count"),
    Column("shown", lambda row: "yes" if row["is_shown"] else "no"),
    Column("schema", "schema_version", from_width=100),
    Column("version", "table_version", from_width=120),
    Column("run", "run_id", from_width=100),
)
LOAD_FIELDS: Final = (
    *(each.name for each in fields(PartitionKey)),
    *("run_id", "schema_version", "record_count", "table_version", "loaded_at", "is_shown"),
)
AsCsv = Annotated[bool, typer.Option("--csv", help="Write CSV with a header line.")]
FirstDay = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="First expected logical date.")]
LastDay = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Last expected logical date.")]
warehouse: Final = typer.Typer(no_args_is_help=True, help="Query the warehouse, and list loads and missing days.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDays(Filters):
    """The options that say which partitions are expected. The days are required."""

    since: FirstDay = None
    until: LastDay = None


@command(warehouse, "query")
def query(
    settings: Settings,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement, in DuckDB's SQL.")],
    *,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show at most N rows. Default for a table: 100.")
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Run a SELECT over the rows that are safe to read.

    Each loaded query is a view with the query's name. The view "<query>_current" leaves out partitions that have a
    newer accepted run which is not loaded yet.
    """
    _check_one_format(as_json, as_csv)
    with open_ledger(settings) as ledger:
        connection = make_readers(settings, ledger).connect(sorted(settings.google_apis.queries))
    with connection, _translated(connection):
        connection.execute(_select(connection, sql))
        names = [str(column[0]) for column in connection.description or ()]
        if as_json:
            _check_unique_names(names)
            write_json(dict(zip(names, map(_json_value, row), strict=True)) for row in _rows(connection, limit))
        elif as_csv:
            write_csv(names, _rows(connection, limit))
        else:
            _write_limited(connection, names, DEFAULT_LIMIT if limit is None else limit)


@command(warehouse, "loads")
def loads(
    settings: Settings, filters: Filters, page: Page, *, as_json: AsJson = False, as_csv: AsCsv = False
) -> None:
    """List when runs were first loaded, with their schema version, row count and table version.

    The column "shown" says whether readers see the run now. A later load of the same run adds no record.
    """
    _check_one_format(as_json, as_csv)
    selection = filters.select(settings)
    start = None if page.after is None else _parse_run(page.after)
    with open_ledger(settings) as ledger:
        found = ledger.publications.page_of_loads(selection, after=start, limit=page.limit + 1)
    shown, more = page.cut(found, lambda each: each.run)
    rows = [fields_of(each) for each in shown]
    notes = [filters.count(len(shown), "load"), *more]
    if as_csv:
        write_csv(LOAD_FIELDS, ([row[name] for name in LOAD_FIELDS] for row in rows))
        write_results((), (), notes, as_json=True)  # the notes go to standard error
    else:
        write_list(rows, LOAD_COLUMNS, notes, as_json=as_json)


@command(warehouse, "gaps")
def gaps(settings: Settings, filters: ExpectedDays, *, as_json: AsJson = False) -> bool:
    """List expected days that readers do not see, with the reason.

    Every day is expected for every query and customer given, or else for every query of the query file and every
    customer in the ledger. Days before the query file's start_date are not expected. Exit code: 0 without gaps,
    else 1.
    """
    names, given = parse_queries(filters.query, settings), parse_customers(filters.customer)
    since, until = _expected_days(settings, filters)
    with open_ledger(settings) as ledger:
        customer_ids = given or ledger.states.customers(settings.google_apis.source)
        if not customer_ids:
            raise BadCommand("no --customer is given and the ledger has no customers: give at least one --customer")
        readers = make_readers(settings, ledger)
        found = {name: readers.find_gaps(name, since=since, until=until, customers=customer_ids) for name in names}
    missing = sum(map(len, found.values()))
    expected = count_of(len(names) * len(customer_ids) * ((until - since).days + 1), "expected partition")
    summary = f"{missing:,} of {expected} missing" if missing else f"none of {expected} missing"
    rows = [
        fields_of(gap.key, reason=gap.reason.name.lower(), because=gap.reason.value, detail=gap.detail)
        for listed in found.values()
        for gap in listed
    ]
    write_results(rows, _gap_blocks(found), [summary], as_json=as_json)
    return missing > 0


def _select(connection: "duckdb.DuckDBPyConnection", sql: str) -> "duckdb.Statement":
    """The single SELECT statement. COPY is refused because it could write into the warehouse directory."""
    import duckdb  # noqa: PLC0415 - the module says why

    statements = connection.extract_statements(sql)
    if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
        raise BadCommand("SQL: only one SELECT, DESCRIBE, SUMMARIZE or SHOW TABLES statement is allowed")
    return statements[0]


def _rows(connection: "duckdb.DuckDBPyConnection", limit: int | None) -> Iterator[tuple[Any, ...]]:
    left = limit
    while left is None or left > 0:
        batch = connection.fetchmany(ROWS_PER_FETCH if left is None else min(ROWS_PER_FETCH, left))
        if not batch:
            return
        yield from batch
        left = None if left is None else left - len(batch)


def _write_limited(connection: "duckdb.DuckDBPyConnection", names: Sequence[str], limit: int) -> None:
    rows = list(_rows(connection, limit + 1))
    write_rows(names, rows[:limit])
    more = "more than " if len(rows) > limit else ""
    hint = "; --limit N shows more, --json and --csv give every row" if more else ""
    OutputConsole().print(Text(""), cell(f"{more}{count_of(len(rows[:limit]), 'row')}{hint}"), sep="\n")


def _json_value(value: object) -> object:
    return str(value) if isinstance(value, datetime) else value  # as the CSV has it


def _check_one_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise BadCommand("--json and --csv cannot be combined: choose one")


def _parse_run(text: str) -> Run:
    """The inverse of `str(run)`."""
    key, _, run_id = text.rpartition("/")
    return Run(key=parse_key(key), run_id=run_id)


def _check_unique_names(names: Sequence[str]) -> None:
    """Raise BadCommand for duplicate column names, because JSON would lose a value."""
    duplicates = [name for name in names if names.count(name) > 1]
    if duplicates:
        raise BadCommand(f"SQL: two columns are named {printable(duplicates[0])}; rename one with AS")


@contextmanager
def _translated(connection: "duckdb.DuckDBPyConnection") -> Iterator[None]:
    """Translate DuckDB's errors, without its excerpt of the statement."""
    import duckdb  # noqa: PLC0415 - the module says why

    try:
        yield
    except duckdb.CatalogException as error:
        raise BadCommand(f"SQL: {_error_line(error)} {_views(connection)}") from error
    except duckdb.Error as error:
        # An error of the code that reads the tables comes as the base class: DuckDB did not raise it.
        if isinstance(error, duckdb.OperationalError) or type(error) is duckdb.Error:
            raise WarehouseUnavailable("the warehouse", _error_line(error)) from error
        raise BadCommand(f"SQL: {_error_line(error)}") from error


def _error_line(error: Exception) -> str:
    message = str(error).partition("\nLINE ")[0].partition("\n\nAt:\n")[0]
    return printable(" ".join(line.strip() for line in message.splitlines() if line.strip()), limit=500)


def _views(connection: "duckdb.DuckDBPyConnection") -> str:
    found = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal ORDER BY 1").fetchall()
    return f"(views: {', '.join(name for (name,) in found)})" if found else "(nothing is loaded yet)"


def _expected_days(settings: Settings, filters: ExpectedDays) -> tuple[date, date]:
    """The window, cut to the days from the query file's start_date on."""
    start, today, days = settings.google_apis.start_date, datetime.now(UTC).date(), filters.days
    if days.since is None or days.until is None:
        raise typer.BadParameter("give --since and --until, or --logical-date")
    if days.until < start:
        raise BadCommand(
            f"no day is expected before {start}, the start_date of {settings.queries_file}; --until is {days.until}"
        )
    if days.until > today:
        raise BadCommand(f"--until {days.until} is in the future: there is no data for that day yet")
    return max(days.since, start), days.until


def _gap_blocks(found: Mapping[str, Sequence[Gap]]) -> Iterator[RenderableType]:
    """One table per query, with one line per run of consecutive days with the same customer and reason."""
    for name, listed in found.items():
        yield from table_of(map(_gap_row, _consecutive_gaps(listed)), GAP_COLUMNS, title=name)


def _gap_row(group: Sequence[Gap]) -> dict[str, object]:
    first, last = group[0], group[-1]
    days = str(first.key.logical_date) + (f" to {last.key.logical_date}" if len(group) > 1 else "")
    return {
        "customer_id": first.key.customer_id,
        "days": days,
        "gaps": len(group),
        "because": first.explanation,
    }


def _consecutive_gaps(listed: Sequence[Gap]) -> Iterator[list[Gap]]:
    """Group the gaps of one query by customer, reason and consecutive days."""
    ordered = sorted(listed, key=lambda gap: (gap.key.customer_id, gap.key.logical_date))

    def group_key(numbered: tuple[int, Gap]) -> tuple[object, ...]:
        number, gap = numbered
        return gap.key.customer_id, gap.reason, gap.detail, gap.key.logical_date - timedelta(days=number)

    for _key, members in groupby(enumerate(ordered), group_key):
        yield [gap for _number, gap in members]
