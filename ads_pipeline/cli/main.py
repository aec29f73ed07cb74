"""The commands of `ads-pipeline`, their options and their help.

What a command does is in a module of its own; how it ends when something is wrong is in `exits`.
"""

import os
import sys
from io import TextIOWrapper
from typing import Annotated, Final

import typer

from ads_pipeline.cli import event_maintenance, events, raw, states
from ads_pipeline.cli.actions import commands
from ads_pipeline.cli.exit_codes import Commands
from ads_pipeline.cli.explain import why
from ads_pipeline.cli.ledger import ledger
from ads_pipeline.cli.options import DAY, AsJson, Customers, Queries, Since, Until
from ads_pipeline.cli.parsing import window
from ads_pipeline.domain.partition import parse_date
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger.reader import LARGEST_PAGE
from ads_pipeline.settings import read_settings

Unjudged = Annotated[bool, typer.Option("--unjudged", help="Only runs that have no verdict yet.")]
FirstDay = Annotated[
    str | None, typer.Option("--since", metavar=DAY, help="The first logical date; 30 days before the last one.")
]
LastDay = Annotated[str | None, typer.Option("--until", metavar=DAY, help="The last logical date; today.")]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="The run, or the first letters of its name, from four on.")
]

app: Final = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
state: Final = typer.Typer(no_args_is_help=True, help="Ask the ledger what is safe to read, and act on it.")
warehouse: Final = typer.Typer(no_args_is_help=True, help="Ask the warehouse for rows and for what is missing.")
sealed: Final = typer.Typer(no_args_is_help=True, help="Look into the raw runs, and hold them to their seals.")
told: Final = typer.Typer(no_args_is_help=True, help="Ask what happened in runs, in order.")
app.add_typer(state, name="state")
app.add_typer(sealed, name="raw")
app.add_typer(warehouse, name="warehouse")
app.add_typer(told, name="events")
app.add_typer(ledger, name="ledger")
app.add_typer(commands.audits, name="audit")


@app.callback()
def ads_pipeline() -> None:
    """Look into the warehouse of Google Ads reports and into the ledger that says what of it is safe to read.

    Where everything lies is said by ADS_PIPELINE_HOME, ADS_PIPELINE_DATABASE_URL and ADS_PIPELINE_QUERIES. Answers
    go to standard output; beside JSON and CSV, remarks go to standard error. Colours need a terminal, and NO_COLOR
    turns them off.

    Exit codes: 0 it is done; 1 there are gaps, damage or differences, or somebody answered no; 2 an option is unknown
    or malformed, or an act was carried out in part; 64 a word or a statement makes no sense; 65 data contradict
    themselves; 69 something is out of reach and may come back; 70 this program is at fault; 78 the settings are
    wrong.
    """


@app.command()
def demo() -> None:
    """Land a small realistic week, run the real assets over it, and show what came of it.

    It needs Java, and takes a minute. Run it in the checkout, or wherever DAGSTER_HOME names a folder with Dagster's
    settings; ADS_PIPELINE_HOME says where everything is put. Some partitions are bad on purpose.
    """
    from ads_pipeline.cli import demo  # noqa: PLC0415

    demo.tell(read_settings(os.environ))


@app.command()
def reconcile(
    *,
    only_plan: Annotated[bool, typer.Option("--plan", help="Only say what differs, and change nothing.")] = False,
    query: Queries = None,
    as_json: AsJson = False,
) -> None:
    """Mend what differs between the ledger, what readers are pointed at, and the tables.

    What a run that died left unfinished is finished: first rows go that may not be read, then what is accepted is
    loaded and pointed at. Safe beside running loads; the hourly job "reconcile" does the same. Spark is started when
    there is something to mend. The exit code is 0 when nothing is left that differs, and 1 when something is.
    """
    from ads_pipeline.cli import reconcile as reconciling  # noqa: PLC0415 - it loads what "warehouse" loads

    work = reconciling.plan if only_plan else reconciling.mend
    if work(read_settings(os.environ), query=query, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def doctor(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what looks at every run or row.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look at everything, change nothing, and say what is wrong and what mends it.

    Settings, disk and clocks; whether every state follows from the ledger's logs; whether sealed runs, the ledger,
    what readers are pointed at, the tables and Dagster agree; and what was left half-way. Each check is a line: ok,
    look where it may mend itself, bad, fail where it could not look, skip where it was left out. Payloads are not
    read; "raw verify" does that. The exit code is 0 when all is well, and 1 when something is found or could not be
    looked at.
    """
    from ads_pipeline.cli import doctor as examining  # noqa: PLC0415 - only this command needs it

    if examining.doctor(os.environ, quick=quick, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def migrate() -> None:
    """Bring the ledger to this release's schema.

    Every row is kept, and the status of partitions is made anew from the logs. Safe to run again. Stop what writes to
    the ledger first: an older release cannot write to it afterwards.
    """
    from ads_pipeline.ledger.upgrading import upgrade  # noqa: PLC0415 - only this command needs it

    settings = read_settings(os.environ)
    done = upgrade(settings.database_url, space=settings.space)
    typer.echo(f"the ledger was at revision {done.before or 'none'} and is at {done.after}")
    typer.echo(f"{done.statuses} rows of partition_status were made anew")


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
        typer.Option(metavar="PARTITION", help="Go on after this partition, as the previous page names it."),
    ] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=LARGEST_PAGE, help="Show at most so many partitions.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """List the recorded partitions with their status, by customer, query and day.

    Below the list stand how many partitions match, of each status up to 10,000, and, when there are more than are
    shown, from where to go on. A partition that nobody has heard of yet is not recorded; "warehouse gaps" finds it.

    "status" says what is safe to read, "data" how current it is: current; reread due, not loaded or old code where it
    is stale; bad rerun where the last attempt failed and an earlier one stands; never where nothing was ever made.
    """
    settings = read_settings(os.environ)
    wanted = states.filter_of(settings, customer=customer, query=query, status=status, days=window(since, until))
    states.inspect(settings, wanted, after=after, limit=limit, as_json=as_json)


@state.command("why")
def state_why(
    partition: Annotated[
        str, typer.Argument(metavar="PARTITION", help="customer/query/YYYY-MM-DD, with or without source/ before it.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Tell all that is known of one partition, and what to do next.

    Whether it is safe to read and from which run; what readers see; every run with the verdicts on it; what operators
    did; the last events; how current it is. A partition that nobody has heard of is told as such, with what raw holds
    of it.
    """
    why.why(read_settings(os.environ), partition, as_json=as_json)


@state.command("publish")
def state_publish() -> None:
    """Write partition_status.parquet anew, for DuckDB, notebooks and dashboards.

    It holds a row for each partition in each asset: when it was last made and from which run, what was last tried,
    and since when and why it is stale. The file is replaced in one step, every hour also by the job "reconcile".
    """
    states.publish(read_settings(os.environ))


commands.add_acts(state)


@sealed.command("list")
def raw_list(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: FirstDay = None,
    until: LastDay = None,
    unjudged: Unjudged = False,
    as_json: AsJson = False,
) -> None:
    """List the sealed runs of a month or of other days, with what the ledger knows of each.

    A run is current when it is what its partition is safe to read from; else accepted, rejected or awaiting verdict;
    and unregistered when the ledger was never told of it. "v" is the schema version. What is damaged, or has a name
    that is no run's, stands below with the reason; payloads are not read.
    """
    settings = read_settings(os.environ)
    wanted = raw.wanted_of(settings, customer=customer, query=query, days=window(since, until), unjudged=unjudged)
    raw.show(settings, wanted, as_json=as_json)


@sealed.command("verify")
def raw_verify(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: FirstDay = None,
    until: LastDay = None,
    unjudged: Unjudged = False,
    as_json: AsJson = False,
) -> None:
    """Read the payloads of sealed runs and hold each byte to its seal.

    What is damaged is named with the reason. The exit code is 0 when nothing is, and 1 when something is, or lies
    under a name that is no run's.
    """
    settings = read_settings(os.environ)
    wanted = raw.wanted_of(settings, customer=customer, query=query, days=window(since, until), unjudged=unjudged)
    if raw.verify(settings, wanted, as_json=as_json):
        raise typer.Exit(1)


@warehouse.command("query")
def warehouse_query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT statement, in DuckDB's SQL.")],
    *,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Show at most so many rows. A table shows 100 unless told otherwise."),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Write comma-separated values under a line of names.")
    ] = False,
) -> None:
    """Run a SELECT over the rows that are safe to read.

    Each query of the query file that was loaded is a view of its own name. Beside it stands a view with "_current"
    at its end, which leaves out partitions whose newer run is accepted and not loaded yet.
    """
    # Spark's client comes with it, and doubles the time that the other commands take to start.
    from ads_pipeline.cli.warehouse import Form  # noqa: PLC0415
    from ads_pipeline.cli.warehouse import query as ask  # noqa: PLC0415

    if as_json and as_csv:
        raise BadCommand("--json and --csv exclude one another: choose one")
    form = Form.JSON if as_json else Form.CSV if as_csv else Form.TABLE
    ask(read_settings(os.environ), sql, form=form, limit=limit)


@warehouse.command("gaps")
def warehouse_gaps(
    *,
    since: Annotated[str, typer.Option(metavar=DAY, help="The first logical date that is expected.")],
    until: Annotated[str, typer.Option(metavar=DAY, help="The last logical date that is expected.")],
    query: Queries = None,
    customer: Customers = None,
    as_json: AsJson = False,
) -> None:
    """List the days that are expected and that readers do not see, and why.

    Expected is each day for each query and each customer: those named, else all that the query file and the ledger
    know. Days before the start_date of the query file are not expected. The exit code is 0 when there are no gaps
    and 1 when there are some.
    """
    from ads_pipeline.cli.warehouse import gaps  # noqa: PLC0415 - as above

    settings = read_settings(os.environ)
    if gaps(settings, query=query, customer=customer, days=window(since, until), as_json=as_json):
        raise typer.Exit(1)


@told.command("runs")
def events_runs(
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="Show at most so many runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs and what became of them.

    Below 120 columns a run goes by the first letters of its name, which the other commands understand. A run is
    marked "behind" while its newest events are not in the snapshot that is shown, "stale" when some are known to be
    missing in it, and "retired" when its events were deleted.
    """
    events.runs(read_settings(os.environ), limit=limit, as_json=as_json)


@told.command("tail")
def events_tail(
    run: RunName,
    *,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Begin behind this place.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=LARGEST_PAGE, help="Show at most so many events; 1000 unless it is to follow."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended, until the run has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the events of a run in order.

    Each is a place, a time in UTC, a step, a type, and in short what is said; --json says all of it. Below them
    stands, when there are more, from where to go on. With --follow the exit code is 0 when the run has ended, however
    it did, and 130 after Ctrl-C.
    """
    events.tail(read_settings(os.environ), run, after=after, limit=limit, follow=follow, as_json=as_json)


@told.command("snapshot")
def events_snapshot(
    run: RunName,
    *,
    all_steps: Annotated[bool, typer.Option("--steps", help="List all steps, also those that went well.")] = False,
    as_json: AsJson = False,
) -> None:
    """Sum a run up as its events tell it now.

    Below the sums stand the steps that failed or are still running, with the last words about each.
    """
    events.snapshot(read_settings(os.environ), run, all_steps=all_steps, as_json=as_json)


@told.command("follow")
def events_follow(
    *, once: Annotated[bool, typer.Option("--once", help="Catch up with what is there now, and end.")] = False
) -> None:
    """Keep the snapshots of all runs up to their events, until Ctrl-C.

    Any number of these may run at once. A line on standard error tells when the snapshots are too far behind, and
    when they no longer are.
    """
    event_maintenance.follow(read_settings(os.environ), once=once)


@told.command("retire")
def events_retire(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The run, or the first letters of its name, from four on.")
    ] = None,
    *,
    ended_before: Annotated[
        str | None, typer.Option(metavar=DAY, help="All runs that ended before this day began, in UTC.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Delete the events of runs that have ended, for ever.

    What is known of a run in sum stays, and that it was there, so that nothing is appended to it again. All snapshots
    are brought up to their events first, because they say which runs have ended.
    """
    day = None if ended_before is None else parse_date(ended_before)
    event_maintenance.retire(read_settings(os.environ), run, ended_before=day, asks=not yes, only_says=dry_run)


def main() -> None:
    """Run the command that the words of the process name, and end the process."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may know fewer letters than a campaign's name
    app(prog_name="ads-pipeline")
