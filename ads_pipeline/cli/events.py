"""Prints runs, their events and their snapshots for `ads-pipeline events`.

`event_maintenance` has the commands that write. Neither module imports Dagster, Spark or DuckDB.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.output import (
    CELL_PADDING,
    OutputConsole,
    cell,
    count_of,
    format_instant,
    iso_instant,
    new_grid,
    new_table,
    write_json,
    write_results,
)
from ads_pipeline.cli.parsing import find_run, open_event_reader
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.run_snapshots import (
    DEFAULT_PAGE_SIZE,
    STEP_STATUS_AFTER,
    LagLevel,
    RunSnapshot,
    RunStatus,
    StepStatus,
    fold_events,
    lag_level,
)
from ads_pipeline.errors import BadCommand, EventsNotFound
from ads_pipeline.ledger.events.event_reader import EventReader, RunHead
from ads_pipeline.quoting import printable
from ads_pipeline.settings import Settings

FIELDS: Final = (
    "run_id",
    "run_seq",
    "event_id",
    "step_id",
    "engine_attempt_id",
    "logical_attempt_id",
    "event_type",
    "event_data",
    "idempotency_key",
    "emitted_at",
    "persisted_at",
    "adapter_version",
    "engine_run_ref",
    "caused_by_signal_id",
    "parent_event_id",
    "plan_version",
)
MIN_WIDTH_FOR_FULL_IDS: Final = 120  # columns; narrower terminals get shortened run ids
MIN_SHORT_ID_LENGTH: Final = 8  # characters, as in Dagster's UI
MAX_DATA_LENGTH: Final = 160  # characters of an event's data; --json prints all of it
MAX_STEPS: Final = 50
STEPS_PER_QUERY: Final = 500
POLL_INTERVAL: Final = timedelta(milliseconds=500)
UNFINISHED: Final = (StepStatus.FAILED, StepStatus.RUNNING)
# FAILED and RUNNING have the same text for runs and steps.
COLOURS: Final[Mapping[str, str]] = {
    RunStatus.COMPLETED: "green",
    StepStatus.SUCCEEDED: "green",
    StepStatus.FAILED: "red",
    StepStatus.RUNNING: "yellow",
    "RunCompleted": "green",
    "RunFailed": "red",
}


def print_runs(settings: Settings, *, limit: int, as_json: bool) -> None:
    """Print the newest runs, and the lag of the snapshots if it is not normal."""
    with open_event_reader(settings) as reader:
        runs, lag = reader.list_newest_runs(limit + 1), reader.get_lag()
    shown, notes = runs[:limit], [] if runs else ["no run has events yet"]
    if len(runs) > limit:
        notes.append("there are older runs; --limit shows more")
    if lag_level(lag) is not LagLevel.NORMAL:
        notes.append(f'the snapshots are {format_seconds(lag)} behind; "ads-pipeline events follow" folds new events')
    objects = (_run_to_json(head, snapshot) for head, snapshot in shown)
    table = [_runs_table(shown, full_ids=OutputConsole().width >= MIN_WIDTH_FOR_FULL_IDS)] if shown else []
    write_results(objects, [*table, *_gap_before(notes)], notes, as_json=as_json)


def print_events(
    settings: Settings, prefix: str, *, after: int, limit: int | None, follow: bool, as_json: bool
) -> None:
    """Print the events of a run after a sequence number: one page, or with `follow` all until the run ends.

    Raises EventsNotFound for an unknown or retired run.
    """
    with open_event_reader(settings) as reader:
        head = find_run(reader, prefix)
        _check_not_retired(head)
        if after > head.last_seq:
            raise BadCommand(f"--after {after} is beyond the last event of run {head.run_id}, number {head.last_seq}")
        if follow:
            pages = _follow_events(reader, head.run_id, after)
            _print_pages(pages if limit is None else _limit_events(pages, limit), as_json=as_json)
            return
        page = reader.fetch(head.run_id, after_seq=after, limit=limit or DEFAULT_PAGE_SIZE)
    _print_pages([page], as_json=as_json)
    last = page[-1].run_seq if page else after
    notes = [] if page else [f"no events after number {after}, which is the last"]
    if page and last < head.last_seq:
        notes = [f"{head.last_seq - last:,} more follow; continue with", f"  --after {last}"]
    write_results((), _gap_before(notes), notes, as_json=as_json)


def print_snapshot(settings: Settings, prefix: str, *, all_steps: bool, as_json: bool) -> None:
    """Print the current snapshot of a run, and its failed and running steps or all steps."""
    with open_event_reader(settings) as reader:
        head = find_run(reader, prefix)
        current, steps = reader.get_current_run(head.run_id, tuple(StepStatus) if all_steps else UNFINISHED)
        if as_json:
            listed = [
                {"step_id": step_id, "status": status, "last_event": last and event_to_json(last)}
                for step_id, status, last in _read_last_events(reader, head.run_id, steps)
            ]
            write_json([_run_to_json(head, current) | {"listed_steps": listed}])
            return
        failed_first = sorted(steps.items(), key=lambda item: item[1] is not StepStatus.FAILED)
        shown = steps if all_steps else dict(failed_first[:MAX_STEPS])
        console = OutputConsole()
        console.print(_summary_table(head, current))
        if steps:
            which = "" if all_steps else ", failed or still running"
            console.print("", f"{count_of(len(steps), 'step')}{which}, each with its last event:", sep="\n")
            console.print(_steps_table(_read_last_events(reader, head.run_id, shown)))
    if len(shown) < len(steps):
        console.print("", cell(f"{len(steps) - len(shown):,} more steps; --steps lists all"), sep="\n")


def format_seconds(lag: timedelta) -> str:
    return f"{lag.total_seconds():,.1f} s"


def format_event_data(event_data: Any) -> str:
    """Return an event's data on one line, cut to MAX_DATA_LENGTH. An object becomes name=value pairs."""
    match event_data:
        case None:
            text = ""
        case dict():
            text = "  ".join(f"{name}={_format_value(value)}" for name, value in event_data.items())
        case _:
            text = _format_value(event_data)
    return printable(text, limit=MAX_DATA_LENGTH)


def _format_value(value: Any) -> str:
    is_word = isinstance(value, str) and value and not set(value) & set(' "=')
    return value if is_word else json.dumps(value, ensure_ascii=False)


def _follow_events(reader: EventReader, run_id: str, after: int) -> Iterator[Sequence[LoggedEvent]]:
    """Yield the run's events after a sequence number as they are appended, until the run has ended."""
    current, last_seq = reader.get_current_snapshot(run_id), after
    while True:
        page = reader.fetch(run_id, after_seq=last_seq)
        if page:
            yield page
            last_seq = page[-1].run_seq
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


def _limit_events(pages: Iterable[Sequence[LoggedEvent]], limit: int) -> Iterator[Sequence[LoggedEvent]]:
    remaining = limit
    for page in pages:
        yield page[:remaining]
        remaining -= len(page)
        if remaining <= 0:
            return


def _print_pages(pages: Iterable[Sequence[LoggedEvent]], *, as_json: bool) -> None:
    """Print each page as soon as it arrives."""
    console = OutputConsole()
    for page in pages:
        if as_json:
            write_json(map(event_to_json, page))
            sys.stdout.flush()
        elif page:
            console.print(_events_table(page))


def event_to_json(logged: LoggedEvent) -> dict[str, Any]:
    assigned = {
        "run_seq": logged.run_seq,
        "idempotency_key": logged.idempotency_key,
        "persisted_at": iso_instant(logged.persisted_at),
    }
    return {name: assigned[name] if name in assigned else getattr(logged.event, name) for name in FIELDS}


def _run_to_json(head: RunHead, snapshot: RunSnapshot | None) -> dict[str, Any]:
    """Merge the head and the snapshot of a run. Without a snapshot its fields are null."""
    values = dict.fromkeys(asdict(RunSnapshot(run_id=head.run_id))) if snapshot is None else asdict(snapshot)
    fields = {"run_id": head.run_id, "status": None, "events": head.last_seq} | values | asdict(head)
    del fields["last_seq"]
    return {name: iso_instant(value) if isinstance(value, datetime) else value for name, value in fields.items()}


def _read_last_events(
    reader: EventReader, run_id: str, steps: Mapping[str, StepStatus]
) -> Iterator[tuple[str, StepStatus, LoggedEvent | None]]:
    step_ids = list(steps)
    for start in range(0, len(step_ids), STEPS_PER_QUERY):
        batch = step_ids[start : start + STEPS_PER_QUERY]
        last_events = reader.get_last_step_events(run_id, batch)
        yield from ((step_id, steps[step_id], last_events.get(step_id)) for step_id in batch)


def _runs_table(runs: Sequence[tuple[RunHead, RunSnapshot | None]], *, full_ids: bool) -> Table:
    table = new_table(run="fold", status="left", events="right", steps="fold", started="left", ended="left")
    run_ids = [head.run_id for head, _snapshot in runs]
    shown = dict(zip(run_ids, run_ids, strict=True)) if full_ids else shorten_names(run_ids)
    for head, snapshot in runs:
        marks = _marks(head, snapshot)
        status = [] if snapshot is None else [cell(snapshot.status, style=COLOURS.get(snapshot.status, ""))]
        table.add_row(
            cell(shown[head.run_id]),
            Text("\n").join([*status, *(cell(mark, style="yellow") for mark in marks)]),
            cell(f"{head.last_seq:,}"),
            cell(None if snapshot is None else _format_step_counts(snapshot)),
            cell(snapshot and snapshot.started_at and f"{snapshot.started_at:%Y-%m-%d %H:%M}Z"),
            cell(snapshot and _format_end(snapshot)),
        )
    return table


def _format_end(snapshot: RunSnapshot) -> str | None:
    """Return the end of the run, without the day if the run started on the same day."""
    started, ended = snapshot.started_at, snapshot.ended_at
    if started is None or ended is None:
        return None
    return f"{ended:%H:%M}Z" if started.date() == ended.date() else f"{ended:%Y-%m-%d %H:%M}Z"


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Map each name to its shortest unique prefix of at least MIN_SHORT_ID_LENGTH characters."""
    shared = dict.fromkeys(names, 0)  # the length of the longest prefix shared with another name
    for one, following in pairwise(sorted(names)):
        pairs = zip(one, following, strict=False)
        length = next((index for index, (a, b) in enumerate(pairs) if a != b), len(one))
        shared[one], shared[following] = max(shared[one], length), length
    return {name: name[: max(MIN_SHORT_ID_LENGTH, shared[name] + 1)] for name in names}


def _marks(head: RunHead, snapshot: RunSnapshot | None) -> list[str]:
    marks = {
        "behind": head.projected_seq < head.last_seq,
        "stale": snapshot is not None and snapshot.stale_since is not None,
        "retired": head.retired_at is not None,
    }
    return [mark for mark, applies in marks.items() if applies]


def _events_table(page: Sequence[LoggedEvent]) -> Table:
    table = Table.grid(padding=CELL_PADDING)
    table.add_column(justify="right", min_width=5, no_wrap=True)  # the same width on every page
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for logged in page:
        table.add_row(cell(logged.run_seq), cell(format_instant(logged.persisted_at)), _format_event(logged))
    return table


def _format_event(logged: LoggedEvent) -> Text:
    event = logged.event
    colour = COLOURS.get(STEP_STATUS_AFTER.get(event.event_type) or event.event_type, "")
    cells = (cell(event.step_id), cell(event.event_type, style=colour), cell(format_event_data(event.event_data)))
    return Text("  ").join(filled for filled in cells if filled)


def _summary_table(head: RunHead, snapshot: RunSnapshot) -> Table:
    """Build the summary of a run. Rows without a value are left out."""
    conflicts, misfits = head.payload_conflicts, snapshot.inconsistencies
    facts = {
        "run": head.run_id,
        "status": cell(snapshot.status, style=COLOURS.get(snapshot.status, "")),
        "plan": head.plan_version,
        "started": snapshot.started_at and format_instant(snapshot.started_at),
        "ended": snapshot.ended_at and format_instant(snapshot.ended_at),
        "last event": f"{snapshot.last_event_seq:,}",
        "steps": _format_step_counts(snapshot) or "none",
        "inconsistent": misfits and f"{count_of(misfits, 'event')} did not fit the run's status and changed nothing",
        "conflicts": conflicts
        and f"{count_of(conflicts, 'event')} sent again with another payload; the first is kept",
        "stale since": snapshot.stale_since and f"{format_instant(snapshot.stale_since)}; events are missing",
        "retired": head.retired_at and f"{format_instant(head.retired_at)}; the events are deleted",
    }
    table = new_grid(style="dim")
    for name, fact in facts.items():
        if fact:
            table.add_row(name, fact if isinstance(fact, Text) else cell(fact))
    return table


def _steps_table(steps: Iterable[tuple[str, StepStatus, LoggedEvent | None]]) -> Table:
    table = new_grid()
    for step, status, last in steps:
        text = cell(step)
        if last is not None:
            text = Text("  ").join([_format_event(last), cell(f"at {format_instant(last.persisted_at)}")])
        table.add_row(cell(status, style=COLOURS.get(status, "")), text)
    return table


def _format_step_counts(snapshot: RunSnapshot) -> str:
    return ", ".join(f"{count:,} {status.lower()}" for status, count in snapshot.steps.items() if count)


def _gap_before(notes: Sequence[str]) -> list[Text]:
    return [Text("")] if notes else []
