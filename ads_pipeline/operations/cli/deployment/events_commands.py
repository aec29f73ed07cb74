"""The `events` commands: show runs, their events and snapshots, keep snapshots up to date, and retire events.

`tables` formats the results. Neither module imports Dagster, Spark or DuckDB.
"""

import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.errors import BadCommand, EventsNotFound, LedgerRefused, RunOpen
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.run_snapshots import DEFAULT_PAGE_SIZE, LagLevel, StepStatus, fold_events, lag_level
from ads_pipeline.ledger.events.completed_runs import COMMAND_KILLED, RunCompletionLog
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader, RunHead
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.sql.ledger_values import MAX_PAGE_SIZE
from ads_pipeline.operations.cli.command_line.event_tables import (
    event_to_json,
    events_table,
    run_to_json,
    runs_table,
    steps_table,
    summary_table,
)
from ads_pipeline.operations.cli.command_line.logged_commands import RecordedCommand, build_request
from ads_pipeline.operations.cli.command_line.options import (
    DATE_FORMAT,
    AsJson,
    DryRun,
    Operator,
    Reason,
    Yes,
    command,
)
from ads_pipeline.operations.cli.command_line.output import OutputConsole, format_instant, write_json, write_results
from ads_pipeline.operations.cli.command_line.parsing import find_run, open_ledger, open_ledger_for_writing, parse_day
from ads_pipeline.settings.environment import Settings

MIN_WIDTH_FOR_FULL_IDS: Final = 120  # columns; narrower terminals get shortened run ids
MAX_STEPS: Final = 50
STEPS_PER_QUERY: Final = 500
POLL_INTERVAL: Final = timedelta(milliseconds=500)
UNFINISHED: Final = (StepStatus.FAILED, StepStatus.RUNNING)
ALARM_MESSAGES: Final = {
    LagLevel.HIGH: "the snapshots are {behind} behind the events",
    LagLevel.RESYNC: "the snapshots are {behind} behind the events and are resynchronized",
    LagLevel.NORMAL: "the alarm is over: the snapshots are {behind} behind the events",
}
RUN_HELP: Final = "The run id, or at least its first four characters."
RunName = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]
OptionalRunName = Annotated[str | None, typer.Argument(metavar="RUN", help=RUN_HELP)]
run_events: Final = typer.Typer()


@command(run_events, "runs")
def list_runs(
    settings: Settings,
    *,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=1_000, help="Show at most N runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs with their status.

    Below 120 columns, run ids are cut to a unique prefix, which the other commands accept. A run is marked "behind"
    while its newest events are not in the snapshot, "stale" while events are missing in the snapshot, and "retired"
    after its events were deleted.
    """
    with open_ledger(settings) as ledger:
        reader = ledger.events
        runs, lag = reader.list_newest_runs(limit + 1), reader.get_lag()
    shown, notes = runs[:limit], [] if runs else ["no run has events yet"]
    if len(runs) > limit:
        notes.append("there are older runs; --limit shows more")
    if lag_level(lag) is not LagLevel.NORMAL:
        notes.append(
            f'the snapshots are {lag.total_seconds():,.1f} s behind; "ads-pipeline events follow" folds new events'
        )
    rows = [run_to_json(head, snapshot) for head, snapshot in shown]
    table = runs_table(rows, full_ids=OutputConsole().width >= MIN_WIDTH_FOR_FULL_IDS)
    write_results(rows, [*table, *[""] * bool(notes)], notes, as_json=as_json)


@command(run_events, "tail")
def tail(
    settings: Settings,
    run: RunName,
    *,
    after: Annotated[int, typer.Option(metavar="SEQ", min=0, help="Start after this sequence number.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=MAX_PAGE_SIZE,
            help="Show at most N events. Default: 1000, no limit with --follow.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new events until the run has ended.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the events of a run in order.

    Each line has the sequence number, the time in UTC, the step, the event type and a short form of the data; --json
    prints every field. If there are more events, the last line shows how to continue. With --follow, the exit code is
    0 once the run has ended in any way, and 130 after Ctrl-C.
    """
    with open_ledger(settings) as ledger:
        reader = ledger.events
        head = find_run(reader, run)
        _check_not_retired(head)
        if after > head.last_seq:
            raise BadCommand(f"--after {after} is beyond the last event of run {head.run_id}, number {head.last_seq}")
        if follow:
            _print_pages(_follow_events(reader, head.run_id, after, limit), as_json=as_json)
            return
        page = reader.fetch(head.run_id, after_seq=after, limit=limit or DEFAULT_PAGE_SIZE)
    _print_pages([page], as_json=as_json)
    last = page[-1].run_seq if page else after
    notes = [] if page else [f"no events after number {after}, which is the last"]
    if page and last < head.last_seq:
        notes = [f"{head.last_seq - last:,} more follow; continue with", f"  --after {last}"]
    write_results((), [""] * bool(notes), notes, as_json=as_json)


@command(run_events, "snapshot")
def show_snapshot(
    settings: Settings,
    run: RunName,
    *,
    all_steps: Annotated[bool, typer.Option("--steps", help="List all steps, including successful ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the current snapshot of a run.

    Below the summary it lists the steps that failed or are still running, each with its last event.
    """
    with open_ledger(settings) as ledger:
        reader = ledger.events
        head = find_run(reader, run)
        current, steps = reader.get_current_run(head.run_id, tuple(StepStatus) if all_steps else UNFINISHED)
        failed_first = sorted(steps.items(), key=lambda item: item[1] is not StepStatus.FAILED)
        shown = steps if all_steps or as_json else dict(failed_first[:MAX_STEPS])
        listed = list(_read_last_events(reader, head.run_id, shown))
    fields = [
        {"step_id": step, "status": status, "last_event": last and event_to_json(last)}
        for step, status, last in listed
    ]
    blocks: list[RenderableType] = [summary_table(head, current)]
    if steps:
        which = "" if all_steps else ", failed or still running"
        blocks += ["", f"{count_of(len(steps), 'step')}{which}, each with its last event:", steps_table(listed)]
    notes = ["", f"{len(steps) - len(shown):,} more steps; --steps lists all"] if len(shown) < len(steps) else []
    write_results([run_to_json(head, current) | {"listed_steps": fields}], blocks, notes, as_json=as_json)


@command(run_events, "follow")
def follow_all(
    settings: Settings,
    *,
    once: Annotated[bool, typer.Option("--once", help="Process the present events and stop.")] = False,
) -> None:
    """Keep the snapshots of all runs up to date until Ctrl-C.

    Several of these may run at once. It prints a line to standard error when snapshots fall too far behind, and
    another when they have caught up. It first closes the runs of commands that were killed more than two hours ago.
    """
    with open_ledger_for_writing(settings) as ledger:
        follower = Follower(ledger.events)
        folded = _close_killed_commands(follower, RunCompletionLog(ledger.engine, tenancy=settings.tenancy))
        folded += follower.catch_up(_print_alarm) if once else _follow_until_stopped(follower)
    OutputConsole().print(f"folded {count_of(folded, 'event')} into snapshots")


def _close_killed_commands(follower: Follower, log: RunCompletionLog) -> int:
    """Fold all events, close the runs of killed commands, and return the number of folded events."""
    folded = follower.catch_up(_print_alarm)
    with suppress(LedgerRefused):  # only some roles may close runs of others
        for run_id in log.close_silent_commands():
            typer.echo(f"run {run_id} was closed as failed: {COMMAND_KILLED}", err=True)
    return folded


@command(run_events, "retire", cls=RecordedCommand)
def retire(
    settings: Settings,
    run: OptionalRunName = None,
    *,
    reason: Reason,
    ended_before: Annotated[
        str | None,
        typer.Option(metavar=DATE_FORMAT, help="All runs that ended before the start of this day, in UTC."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    operator: Operator = None,
) -> None:
    """Delete the events of ended runs for good.

    The run's snapshot stays, and no event can be appended to the run again. All snapshots are brought up to date
    first, because they show which runs have ended. The deletion is logged with the operator and the reason, for each
    run in the same transaction; "ads-pipeline audit actions" lists it.
    """
    request = build_request(reason=reason, operator=operator, filters="")
    day = None if ended_before is None else parse_day(ended_before)
    if (run is None) is (ended_before is None):
        raise BadCommand("give either a run or --ended-before, not both")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise BadCommand(
            "standard input is not a terminal: use --yes to delete, or --dry-run to see what would be deleted"
        )
    with open_ledger_for_writing(settings) as ledger:
        log = ledger.events
        Follower(log).catch_up()  # a run counts as ended once its last events are folded
        heads = _find_retirable_runs(log, run, day)
        description = _describe(heads) or f"nothing: {_describe_none(run, day)}"
        if dry_run:
            message = f"would delete {description}"
        else:
            if heads and not yes:
                typer.confirm(f"Delete {description} for good?", abort=True, err=True)
            for number, head in enumerate(heads, 1):
                action_id = request.action_id if len(heads) == 1 else f"{request.action_id}.{number}"
                log.retire(head.run_id, replace(request, action_id=action_id, filters=f"run {head.run_id}"))
            message = f"deleted {description}" + (f"\naction {request.action_id}" if heads else "")
    OutputConsole().print(message, soft_wrap=True)


def _follow_events(
    reader: EventReader, run_id: str, after: int, limit: int | None
) -> Iterator[Sequence[LoggedEvent]]:
    """Yield the run's events after a sequence number as they are appended, until the run has ended."""
    current, last_seq = reader.get_current_snapshot(run_id), after
    remaining = sys.maxsize if limit is None else limit
    while remaining > 0:
        page = reader.fetch(run_id, after_seq=last_seq, limit=min(remaining, DEFAULT_PAGE_SIZE))
        if page:
            yield page
            last_seq, remaining = page[-1].run_seq, remaining - len(page)
            current, _steps = fold_events(current, {}, page)  # the run's status does not depend on known steps
        elif current.status.is_terminal:
            return
        else:
            _check_not_retired(reader.get_head(run_id))
            time.sleep(POLL_INTERVAL.total_seconds())


def _check_not_retired(head: RunHead | None) -> None:
    """Raise EventsNotFound for a retired run. A run may be retired while it is followed."""
    if head is not None and head.retired_at is not None:
        why = f'its events were retired at {format_instant(head.retired_at)}; see "ads-pipeline events snapshot"'
        raise EventsNotFound(head.run_id, why)


def _print_pages(pages: Iterable[Sequence[LoggedEvent]], *, as_json: bool) -> None:
    """Print each page as soon as it arrives."""
    console = OutputConsole()
    for page in pages:
        if as_json:
            write_json(map(event_to_json, page))
            sys.stdout.flush()
        elif page:
            console.print(events_table(page))


def _read_last_events(
    reader: EventReader, run_id: str, steps: Mapping[str, StepStatus]
) -> Iterator[tuple[str, StepStatus, LoggedEvent | None]]:
    for batch in split_batches(steps, STEPS_PER_QUERY):
        last_events = reader.get_last_step_events(run_id, batch)
        yield from ((step_id, steps[step_id], last_events.get(step_id)) for step_id in batch)


def _follow_until_stopped(follower: Follower) -> int:
    """Follow in a thread, so that Ctrl-C and SIGTERM do not interrupt a transaction."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stopped = threading.Event()
    with ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(follower.follow, stopped, _print_alarm)
        try:
            with suppress(KeyboardInterrupt):
                future.result()
        finally:
            stopped.set()
        return future.result()


def _print_alarm(level: LagLevel, lag: timedelta) -> None:
    message = ALARM_MESSAGES[level].format(behind=f"{lag.total_seconds():,.1f} s")
    print(f"{level}: {message}", file=sys.stderr, flush=True)  # noqa: T201 - standard output is the program's


def _find_retirable_runs(log: EventLog, run_prefix: str | None, day: date | None) -> list[RunHead]:
    """Return the runs to retire. Raises RunOpen if the named run has not ended."""
    if day is not None:
        return log.list_retirable_runs(datetime(day.year, day.month, day.day, tzinfo=UTC))
    head = find_run(log, run_prefix or "")
    if head.retired_at is not None:
        return []
    status = log.get_current_snapshot(head.run_id).status
    if not status.is_terminal:
        raise RunOpen(head.run_id, str(status))
    return [head]


def _describe(heads: Sequence[RunHead]) -> str:
    events = count_of(sum(head.last_seq for head in heads), "event")
    runs = f"run {heads[0].run_id}" if len(heads) == 1 else count_of(len(heads), "run")
    return f"{events} of {runs}" if heads else ""


def _describe_none(run: str | None, day: date | None) -> str:
    return f"no run that ended before {day} has events" if day else f"run {run} has no events any more"
