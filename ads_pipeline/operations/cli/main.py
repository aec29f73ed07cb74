"""Puts the commands of `ads-pipeline` together, and declares those that stand in no group.

`options.command` declares a command. `exit_codes` turns failures into messages and exit codes.
"""

import os
import sys
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ads_pipeline.domain.days.conditions import CONDITIONS
from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.log_lines import configure_logging
from ads_pipeline.domain.quoting import count_of, printable
from ads_pipeline.lake.storage.durable_files import atomic_write, leave_access_to_umask
from ads_pipeline.operations.cli.command_line.exit_codes import failures_as_exit_codes
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, Page, Queries, command
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, parse_queries
from ads_pipeline.operations.cli.groups import GROUPS, HelpGroup, load_group
from ads_pipeline.settings.environment import Settings, find_log_format, has_access_by_umask
from ads_pipeline.spark.engine_address import LOCATION, engine_directory


class Program(HelpGroup):
    """The program: failures become exit codes, and groups are loaded when they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return load_group(cmd_name) if cmd_name in GROUPS else super().get_command(ctx, cmd_name)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # prints --help
        with failures_as_exit_codes():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with failures_as_exit_codes():
            return super().invoke(ctx)


WithGoogleAds = Annotated[
    bool,
    typer.Option(
        "--google-ads",
        help="Fetch from a server on loopback with the real client of Google Ads, which is an optional extra.",
    ),
]
app: Final = typer.Typer(
    cls=Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
)


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # noqa: PLC0415 - it loads the package email

        typer.echo(f"ads-pipeline {version('ads-pipeline')}")
        raise typer.Exit


@app.callback()
def ads_pipeline(
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Operate the Google Ads warehouse and the ledger that records which partitions are safe to read.

    Locations come from ADS_PIPELINE_HOME, ADS_PIPELINE_DATABASE_URL and ADS_PIPELINE_QUERIES. Results go to standard
    output. With --json or --csv, notes go to standard error. Colours need a terminal; NO_COLOR turns them off.

    Exit codes: 0 success; 1 gaps, damage or differences were found, or the operator declined; 2 an option is unknown
    or malformed, or an action was carried out only in part; 3 an action found nothing to change; 64 an argument or
    statement is invalid; 65 the data are inconsistent; 69 a service or disk is unavailable, try again; 70 internal
    error; 78 the settings are invalid.
    """
    leave_access_to_umask(leave=has_access_by_umask(os.environ))
    configure_logging(find_log_format(os.environ))


@command(app, "demo")
def demo(*, google_ads: WithGoogleAds = False) -> None:
    """Write a made-up week of reports, run the real assets over it, and show the result.

    Needs Java and takes about a minute. All data goes below ADS_PIPELINE_HOME, by default ~/.ads_pipeline_demo. A
    home, lake or database with other runs is refused. Some partitions are bad on purpose. It ends with the commands
    to go on with; "ads-pipeline dev" shows the same in Dagster's UI.
    """
    if google_ads:
        from ads_pipeline.operations.cli.local.demo_google_ads import run_google_ads_demo  # noqa: PLC0415 - imports the client

        run_google_ads_demo(os.environ)
        return
    from ads_pipeline.operations.cli.local.demo import run_demo  # noqa: PLC0415 - only this command needs it

    run_demo(os.environ)


@command(app, "dev")
def dev(
    settings: Settings,
    *,
    host: Annotated[str, typer.Option(metavar="NAME", help="The address that the UI listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=1, max=65_535, help="The port of the UI.")] = 3000,
) -> None:
    """Serve Dagster's UI and daemon on this deployment, until Ctrl-C.

    It works in any directory. Dagster's records go below ADS_PIPELINE_HOME, or to ADS_PIPELINE_DATABASE_URL. Its
    configuration is written once, to dagster/dagster.yaml below the home, and can be changed there. A DAGSTER_HOME
    that is set is used as it is.
    """
    from ads_pipeline.operations.cli.local.dev import serve  # noqa: PLC0415 - only this command needs it

    serve(settings, os.environ, host=host, port=port)


@command(app, "engine")
def engine(
    settings: Settings,
    *,
    module: Annotated[
        str, typer.Option(metavar="NAME", help="The module of the code location whose runs it executes.")
    ] = LOCATION,
) -> None:
    """Execute the runs of this deployment, and keep one Spark server for them, until Ctrl-C or SIGTERM.

    "dev" does so by itself. It saves each run the time to load Dagster and the definitions, and the start of a JVM
    and of Python workers. Spark starts seconds after the engine, and again when it has died; it listens on the
    loopback address only, for runs of the same user on the same machine. Runs that cannot use it start a Spark of
    their own. Where ADS_PIPELINE_SPARK names no master, there is no Spark server.
    """
    from ads_pipeline.spark.engine.supervisor import run_engine  # noqa: PLC0415 - only this command needs it

    typer.echo(f"the engine of {settings.home} answers runs; its log: {engine_directory(settings.home) / 'log'}")
    run_engine(settings, module)


@command(app, "report")
def report(
    settings: Settings,
    *,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The file to write. Default: report.html in the home.")
    ] = None,
) -> None:
    """Write one HTML page that shows which days are safe to read, and what needs an operator.

    The page shows each query's customers and days as a map, a work list with reasons and next commands, and rows and
    cost over time. It needs no network.
    """
    from ads_pipeline.operations.report.writing import ReportWriter, report_path  # noqa: PLC0415 - only this command needs it

    path = output or report_path(settings)
    with open_ledger(settings) as opened:
        content = ReportWriter.of_deployment(settings, opened).write(path, now=datetime.now(UTC))
    for condition, number in content.counts.items():
        if number:
            typer.echo(f"{count_of(number, 'day'):>14}  {CONDITIONS[condition].label.lower()}")
    typer.echo(f"wrote {path}")


@command(app, "metrics")
def metrics(
    settings: Settings,
    *,
    output: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The file to replace, such as ads_pipeline.prom.")
    ] = None,
) -> None:
    """Print the state of the deployment as OpenMetrics text: days by condition, retries, last loads, events.

    With --output, the file is replaced atomically, for the textfile collector of node_exporter. The umask decides who
    may read it. No metric names a customer.
    """
    from ads_pipeline.operations.metrics import MetricsReader  # noqa: PLC0415 - only this command needs it

    with open_ledger(settings) as ledger:
        text = MetricsReader(settings=settings, ledger=ledger, now=datetime.now(UTC)).text
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with atomic_write(output, by_umask=True) as file:
            file.write(text)
    except OSError as error:
        advice = "name a file in a directory that exists and that you may write to"
        raise BadCommand(f"--output {printable(str(output))}: {error.strerror}; {advice}") from error


@command(app, "doctor")
def doctor(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the checks that read every run or row.")] = False,
    as_json: AsJson = False,
) -> bool:
    """Check the whole deployment without changing it, and print a repair command for each problem.

    It checks settings, disk and clocks; that every state matches the ledger's logs; that sealed runs, ledger,
    pointers, tables and Dagster agree; and that nothing was left unfinished. Each check prints one line: ok, warning
    (may repair itself), error, failed (the check could not run) or skipped. A note is no problem. It does not read
    payloads; "raw verify" does. Exit code: 0 when every check is ok, else 1.
    """
    from ads_pipeline.operations.cli.deployment.doctor_command import print_reports  # noqa: PLC0415 - only this command needs it

    return print_reports(os.environ, quick=quick, as_json=as_json)


@command(app, "migrate")
def migrate(settings: Settings) -> None:
    """Create the ledger, or upgrade it to the schema of this release.

    All rows are kept. The table partition_status is rebuilt from the logs. It is safe to run again. Stop all writers
    first: an older release cannot write to the ledger afterwards.
    """
    from ads_pipeline.ledger.sql import database  # noqa: PLC0415 - only this command needs these two
    from ads_pipeline.ledger.status.status_table import StatusTable  # noqa: PLC0415

    before, after = database.upgrade(settings.database_url)
    with database.open_checked_engine(settings.database_url) as engine:
        rows = StatusTable(engine, tenancy=settings.tenancy).rebuild()
    typer.echo(f"the ledger was at revision {before or 'none'} and is at {after}")
    typer.echo(f"rebuilt {rows} rows of partition_status")


@command(app, "backfill")
def backfill(
    settings: Settings,
    filters: Filters,
    *,
    again: Annotated[bool, typer.Option("--again", help="Include days that are accepted already.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what fetching a range of days costs: operations, what the budget has left, and days to finish.

    Days are fetched in ranges of at most 31, so N days of a customer and query cost about N/31 operations. By default
    it plans every day from the query file's start_date to yesterday, of every query and known account. Parked,
    unfinished and unrecoverable days are left out and counted. It makes no call.
    """
    from ads_pipeline.operations.cli.google_ads.backfill import plan_backfill  # noqa: PLC0415 - only this command needs it

    plan_backfill(settings, filters, again=again, as_json=as_json)


@command(app, "reconcile")
def reconcile(
    settings: Settings,
    *,
    only_plan: Annotated[bool, typer.Option("--plan", help="Only list the differences; change nothing.")] = False,
    query: Queries = None,
    as_json: AsJson = False,
) -> bool:
    """Repair differences between the ledger, the pointers and the Delta tables.

    It finishes the work of runs that died: it first removes rows that must not be read, then loads accepted runs and
    moves their pointers. It is safe beside running loads. Spark starts only when something needs repair.

    It also folds new events into the snapshots of runs, and closes the runs of commands that were killed more than
    two hours ago. At the end it writes partition_status.parquet for DuckDB, notebooks and dashboards. The file has
    the last materialization and the last attempt of each asset partition, and since when and why it is stale. The
    hourly job "reconcile" and the sensors of Dagster do the same. Exit code: 0 when no difference is left, else 1.
    """
    from ads_pipeline.operations.cli.warehouse import reconcile  # noqa: PLC0415 - it loads DuckDB and Spark's client

    work = reconcile.plan if only_plan else reconcile.repair
    return work(settings, parse_queries(query, settings), as_json=as_json)


@command(app, "audit")
def audit(
    settings: Settings,
    page: Page,
    *,
    action: Annotated[
        str | None,
        typer.Option("--action", metavar="ACTION_ID", help="List the partitions that this action changed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the control actions of operators and of the retry policy, newest first.

    Each with its time, operator, command, filters, reason and number of changed partitions.
    """
    from ads_pipeline.operations.cli.state.audit import list_actions  # noqa: PLC0415 - only this command needs it

    list_actions(settings, page, action=action, as_json=as_json)


def main() -> None:
    """Run the command given on the command line and end the process."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a campaign name may not fit the terminal's encoding
    app(prog_name="ads-pipeline")
