"""The `events` commands: list runs, and show the events or the snapshot of one.

`event_tables` formats the results. Neither module imports Dagster, Spark or DuckDB.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.errors import BadCommand, EventsNotFound
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.run_snapshots import DEFAULT_PAGE_SIZE, LagLevel, StepStatus, fold_events, lag_level
from ads_pipeline.ledger.events.event_reader import EventReader, RunHead
from ads_pipeline.ledger.sql.ledger_values import MAX_PAGE_SIZE
from ads_pipeline.operations.cli.command_line.event_tables import (
    event_to_json,
    events_table,
    run_to_json,
    runs_table,
    steps_table,
    summary_table,
)
from ads_pipeline.operations.cli.command_line.options import AsJson, RunName
from ads_pipeline.operations.cli.command_line.output import OutputConsole, format_instant, write_json, write_results
from ads_pipeline.operations.cli.command_line.parsing import find_run, open_ledger
from ads_pipeline.settings.environment import Settings

MIN_WIDTH_FOR_FULL_IDS: Final = 120  # columns; narrower terminals get shortened run ids
MAX_STEPS: Final = 50
STEPS_PER_QUERY: Final = 500
POLL_INTERVAL: Final = timedelta(milliseconds=500)
UNFINISHED: Final = (StepStatus.FAILED, StepStatus.RUNNING)


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
            f'the snapshots are {lag.total_seconds():,.1f} s behind; "ads-pipeline reconcile" folds new events'
        )
    rows = [run_to_json(head, snapshot) for head, snapshot in shown]
    table = runs_table(rows, full_ids=OutputConsole().width >= MIN_WIDTH_FOR_FULL_IDS)
    write_results(rows, [*table, *[""] * bool(notes)], notes, as_json=as_json)


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
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="Show the status of the run and of its steps instead.")
    ] = False,
    all_steps: Annotated[
        bool, typer.Option("--steps", help="With --snapshot: list all steps, including successful ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the events of a run in order, or with --snapshot its current status.

    Each line has the sequence number, the time in UTC, the step, the event type and a short form of the data; --json
    prints every field. If there are more events, the last line shows how to continue. With --follow, the exit code is
    0 once the run has ended in any way, and 130 after Ctrl-C. The snapshot has a summary, and below it the steps that
    failed or are still running, each with its last event.
    """
    if snapshot and (after or limit or follow):
        raise BadCommand("--snapshot shows no events: leave out --after, --limit and --follow")
    if all_steps and not snapshot:
        raise BadCommand("--steps needs --snapshot")
    with open_ledger(settings) as ledger:
        reader = ledger.events
        head = find_run(reader, run)
        if snapshot:
            _show_snapshot(reader, head, all_steps=all_steps, as_json=as_json)
            return
        _check_not_retired(head)
        if after > head.last_seq:
            raise BadCommand(
                f"--after {after} is beyond the last event of run {head.engine_run_id}, number {head.last_seq}"
            )
        if follow:
            _print_pages(_follow_events(reader, head.engine_run_id, after, limit), as_json=as_json)
            return
        page = reader.fetch(head.engine_run_id, after_seq=after, limit=limit or DEFAULT_PAGE_SIZE)
    _print_pages([page], as_json=as_json)
    last = page[-1].run_seq if page else after
    notes = [] if page else [f"no events after number {after}, which is the last"]
    if page and last < head.last_seq:
        notes = [f"{head.last_seq - last:,} more follow; continue with", f"  --after {last}"]
    write_results((), [""] * bool(notes), notes, as_json=as_json)


def _show_snapshot(reader: EventReader, head: RunHead, *, all_steps: bool, as_json: bool) -> None:
    current, steps = reader.get_current_run(head.engine_run_id, tuple(StepStatus) if all_steps else UNFINISHED)
    failed_first = sorted(steps.items(), key=lambda item: item[1] is not StepStatus.FAILED)
    shown = steps if all_steps or as_json else dict(failed_first[:MAX_STEPS])
    listed = list(_read_last_events(reader, head.engine_run_id, shown))
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


def _follow_events(
    reader: EventReader, engine_run_id: str, after: int, limit: int | None
) -> Iterator[Sequence[LoggedEvent]]:
    """Yield the run's events after a sequence number as they are appended, until the run has ended."""
    current, last_seq = reader.get_current_snapshot(engine_run_id), after
    remaining = sys.maxsize if limit is None else limit
    while remaining > 0:
        page = reader.fetch(engine_run_id, after_seq=last_seq, limit=min(remaining, DEFAULT_PAGE_SIZE))
        if page:
            yield page
            last_seq, remaining = page[-1].run_seq, remaining - len(page)
            current, _steps = fold_events(current, {}, page)  # the run's status does not depend on known steps
        elif current.status.is_terminal:
            return
        else:
            _check_not_retired(reader.get_head(engine_run_id))
            time.sleep(POLL_INTERVAL.total_seconds())


def _check_not_retired(head: RunHead | None) -> None:
    """Raise EventsNotFound for a retired run. A run may be retired while it is followed."""
    if head is not None and head.retired_at is not None:
        why = f"its events were retired at {format_instant(head.retired_at)}; --snapshot shows what it did"
        raise EventsNotFound(head.engine_run_id, why)


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
    reader: EventReader, engine_run_id: str, steps: Mapping[str, StepStatus]
) -> Iterator[tuple[str, StepStatus, LoggedEvent | None]]:
    for batch in split_batches(steps, STEPS_PER_QUERY):
        last_events = reader.get_last_step_events(engine_run_id, batch)
        yield from ((step_id, steps[step_id], last_events.get(step_id)) for step_id in batch)
