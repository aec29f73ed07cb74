"""The `warehouse` commands: run SELECT statements over the readable rows, and list loads. Missing days: `gaps`.

DuckDB and Spark's client are imported by the functions that need them, for a fast start of the other commands.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.text import Text

from ads_pipeline.domain.errors import BadCommand, LogDamaged, WarehouseUnavailable
from ads_pipeline.domain.partition import PartitionKey, Run, parse_key
from ads_pipeline.domain.quoting import count_of, printable
from ads_pipeline.operations.cli.command_line.csv_output import NO_CSV, CsvFormat
from ads_pipeline.operations.cli.command_line.exit_codes import one_line
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, Page
from ads_pipeline.operations.cli.command_line.output import (
    PARTITION_COLUMNS,
    Column,
    OutputConsole,
    cell,
    fields_of,
    write_json,
    write_list,
    write_results,
    write_rows,
)
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.settings.environment import Settings

if TYPE_CHECKING:
    import duckdb

DEFAULT_LIMIT: Final = 100
ROWS_PER_FETCH: Final = 1000
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


def query(
    settings: Settings,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement, in DuckDB's SQL.")],
    *,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Show at most N rows. Default for a table: 100.")
    ] = None,
    as_json: AsJson = False,
    csv_format: CsvFormat = NO_CSV,
) -> None:
    """Run a SELECT over the rows that are safe to read.

    Each loaded query is a view with the query's name. The view "<query>_current" leaves out partitions that have a
    newer accepted run which is not loaded yet. "<query>_settled" has only rows that the source no longer changes.
    The views "days", "accounts", "restatements" and "loads" say which days are complete. SHOW TABLES lists all.
    """
    csv_format.check(as_json=as_json)
    from ads_pipeline.pipeline.readers import Readers  # noqa: PLC0415 - the module says why

    with open_ledger(settings) as ledger:
        readers = Readers.of_deployment(ledger, settings)
        connection = readers.connect(sorted(settings.google_apis.queries), on_damage=_warn)
    with connection, _translated(connection):
        connection.execute(_select(connection, sql))
        names = [str(column[0]) for column in connection.description or ()]
        if as_json:
            _check_unique_names(names)
            write_json(dict(zip(names, map(_json_value, row), strict=True)) for row in _rows(connection, limit))
        elif csv_format.csv:
            csv_format.write(names, _rows(connection, limit))
        else:
            _write_limited(connection, names, DEFAULT_LIMIT if limit is None else limit)


def loads(
    settings: Settings, filters: Filters, page: Page, *, as_json: AsJson = False, csv_format: CsvFormat = NO_CSV
) -> None:
    """List when runs were first loaded, with their schema version, row count and table version.

    The column "shown" says whether readers see the run now. A later load of the same run adds no record.
    """
    csv_format.check(as_json=as_json)
    selection = filters.select(settings)
    start = None if page.after is None else _parse_run(page.after)
    with open_ledger(settings) as ledger:
        found = ledger.publications.page_of_loads(selection, after=start, limit=page.limit + 1)
    shown, more = page.cut(found, lambda each: each.run)
    rows = [fields_of(each) for each in shown]
    notes = [filters.count(len(shown), "load"), *more]
    if csv_format.csv:
        csv_format.write(LOAD_FIELDS, ([row[name] for name in LOAD_FIELDS] for row in rows))
        write_results((), (), notes, as_json=True)  # the notes go to standard error
    else:
        write_list(rows, LOAD_COLUMNS, notes, as_json=as_json)


def _warn(error: LogDamaged) -> None:
    print(f"ads-pipeline: {one_line(error)}", file=sys.stderr)  # noqa: T201 - the other tables are read


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
