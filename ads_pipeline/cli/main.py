"""Declares the commands of `ads-pipeline`, their options and their help.

The groups `raw`, `events`, `ledger` and `audit` and most commands of `state` are declared in their own modules.
`exit_codes` turns failures into messages and exit codes.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from ads_pipeline.cli import states
from ads_pipeline.cli.actions import commands
from ads_pipeline.cli.audit import audit
from ads_pipeline.cli.events import run_events
from ads_pipeline.cli.exit_codes import CommandGroup
from ads_pipeline.cli.explain import why
from ads_pipeline.cli.ledger import ledger
from ads_pipeline.cli.options import DATE_FORMAT, AsJson, Customers, Queries, Since, Until
from ads_pipeline.cli.parsing import parse_filter, parse_window
from ads_pipeline.cli.raw import raw_runs
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger.state.states import MAX_PAGE_SIZE
from ads_pipeline.settings import read_settings

app: Final = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
state: Final = typer.Typer(
    no_args_is_help=True, help="Show which partitions are safe to read, and change their state."
)
warehouse: Final = typer.Typer(no_args_is_help=True, help="Query the warehouse, and list missing days.")
app.add_typer(state, name="state")
app.add_typer(raw_runs, name="raw")
app.add_typer(warehouse, name="warehouse")
app.add_typer(run_events, name="events")
app.add_typer(ledger, name="ledger")
app.add_typer(audit, name="audit")


@app.callback()
def ads_pipeline() -> None:
    """Operate the Google Ads warehouse and the ledger that records which partitions are safe to read.

    Locations come from ADS_PIPELINE_HOME, ADS_PIPELINE_DATABASE_URL and ADS_PIPELINE_QUERIES. Results go to standard
    output. With --json or --csv, notes go to standard error. Colours need a terminal; NO_COLOR turns them off.

    Exit codes: 0 success; 1 gaps, damage or differences were found, or the operator declined; 2 an option is unknown
    or malformed, or an action was carried out only in part; 64 an argument or statement is invalid; 65 the data are
    inconsistent; 69 a service or disk is unavailable, try again; 70 internal error; 78 the settings are invalid.
    """


@app.command()
def demo() -> None:
    """Write a made-up week of reports, run the real assets over it, and show the result.

    Needs Java and takes about a minute. Run it in the checkout, or set DAGSTER_HOME to a directory with a
    dagster.yaml. All data goes below ADS_PIPELINE_HOME. Some partitions are bad on purpose.
    """
    from ads_pipeline.cli import demo  # noqa: PLC0415

    demo.run_demo(read_settings(os.environ))


@app.command()
def reconcile(
    *,
    only_plan: Annotated[bool, typer.Option("--plan", help="Only list the differences; change nothing.")] = False,
    query: Queries = None,
    as_json: AsJson = False,
) -> None:
    """Repair differences between the ledger, the pointers and the Delta tables.

    It finishes the work of runs that died: it first removes rows that must not be read, then loads accepted runs and
    moves their pointers. It is safe beside running loads. The hourly job "reconcile" does the same. Spark starts only
    when something needs repair. Exit code: 0 when no difference is left, else 1.
    """
    from ads_pipeline.cli import reconcile as command  # noqa: PLC0415 - it loads what "warehouse" loads

    work = command.plan if only_plan else command.repair
    if work(read_settings(os.environ), query=query, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def doctor(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the checks that read every run or row.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the whole deployment without changing it, and print a repair command for each problem.

    It checks settings, disk and clocks; that every state matches the ledger's logs; that sealed runs, ledger,
    pointers, tables and Dagster agree; and that nothing was left unfinished. Each check prints one line: ok, warning
    (may repair itself), error, failed (the check could not run) or skipped. It does not read payloads; "raw verify"
    does. Exit code: 0 when every check is ok, else 1.
    """
    from ads_pipeline.cli import doctor as command  # noqa: PLC0415 - only this command needs it

    if command.doctor(os.environ, quick=quick, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def migrate() -> None:
    """Create the ledger, or upgrade it to the schema of this release.

    All rows are kept. The table partition_status is rebuilt from the logs. It is safe to run again. Stop all writers
    first: an older release cannot write to the ledger afterwards.
    """
    from ads_pipeline.ledger import database  # noqa: PLC0415 - only this command needs these two
    from ads_pipeline.ledger.status.status_table import StatusTable  # noqa: PLC0415

    settings = read_settings(os.environ)
    before, after = database.upgrade(settings.database_url)
    with StatusTable.opened(settings.database_url, tenancy=settings.tenancy) as status_table:
        rows = status_table.rebuild()
    typer.echo(f"the ledger was at revision {before or 'none'} and is at {after}")
    typer.echo(f"rebuilt {rows} rows of partition_status")


@state.command("inspect")
def state_inspect(
    *,
    customer: Customers = None,
    query: Queries = None,
    status: Annotated[
        list[Status] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only partitions that are pending, success or failed. May be given again.",
        ),
    ] = None,
    since: Since = None,
    until: Until = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="PARTITION", help="Continue after this partition; the previous page prints it."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=MAX_PAGE_SIZE, help="Show at most N partitions.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List recorded partitions with their status, by customer, query and day.

    Below the list it prints the number of matching partitions per status (counted up to 10,000) and how to continue.
    A partition without any run is not recorded; "warehouse gaps" lists those.

    "status" shows whether a partition is safe to read. "data" shows how current it is: current; "reread due", "not
    loaded" or "old code" when stale; "bad rerun" when the last attempt failed and earlier data remain; "never" when
    it was never materialized.
    """
    settings = read_settings(os.environ)
    selection = parse_filter(settings, customer=customer, query=query, since=since, until=until, status=status)
    states.inspect(settings, selection, after=after, limit=limit, as_json=as_json)


@state.command("why")
def state_why(
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="customer/query/YYYY-MM-DD, with or without source/ before it.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Explain one partition: its state, runs, verdicts and events, and the next step.

    It prints whether the partition is safe to read and from which run, what readers see, every run with its verdicts,
    operators' actions, the last events and how current the data are. For a partition without a row, it prints "not
    recorded" and lists any sealed runs on disk.
    """
    why.print_report(read_settings(os.environ), partition, as_json=as_json)


state.command("publish")(states.publish)
commands.add_action_commands(state)


@warehouse.command("query")
def warehouse_query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement, in DuckDB's SQL.")],
    *,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Show at most N rows. Default for a table: 100."),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV with a header line.")] = False,
) -> None:
    """Run a SELECT over the rows that are safe to read.

    Each loaded query is a view with the query's name. The view "<query>_current" leaves out partitions that have a
    newer accepted run which is not loaded yet.
    """
    # Importing it loads Spark's client, which would double the start-up time of the other commands.
    from ads_pipeline.cli.warehouse import OutputFormat  # noqa: PLC0415
    from ads_pipeline.cli.warehouse import query as run_query  # noqa: PLC0415

    if as_json and as_csv:
        raise BadCommand("--json and --csv cannot be combined: choose one")
    form = OutputFormat.JSON if as_json else OutputFormat.CSV if as_csv else OutputFormat.TABLE
    run_query(read_settings(os.environ), sql, form=form, limit=limit)


@warehouse.command("gaps")
def warehouse_gaps(
    *,
    since: Annotated[str, typer.Option(metavar=DATE_FORMAT, help="First expected logical date.")],
    until: Annotated[str, typer.Option(metavar=DATE_FORMAT, help="Last expected logical date.")],
    query: Queries = None,
    customer: Customers = None,
    as_json: AsJson = False,
) -> None:
    """List expected days that readers do not see, with the reason.

    Every day is expected for every query and customer given, or else for every query of the query file and every
    customer in the ledger. Days before the query file's start_date are not expected. Exit code: 0 without gaps,
    else 1.
    """
    from ads_pipeline.cli.warehouse import gaps  # noqa: PLC0415 - as above

    settings = read_settings(os.environ)
    if gaps(settings, query=query, customer=customer, days=parse_window(since, until), as_json=as_json):
        raise typer.Exit(1)


def main() -> None:
    """Run the command given on the command line and end the process."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a campaign name may not fit the terminal's encoding
    app(prog_name="ads-pipeline")
