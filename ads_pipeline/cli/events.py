"""Shows what happened in runs: which there are, what their events say, and what the snapshots make of them.

What writes, keeping snapshots up and retiring events, is in `upkeep`. It loads neither Dagster, Spark nor DuckDB.
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

from ads_pipeline.cli.output import GAP, Paper, cell, counted, instant_of, listing, moment, write_json
from ads_pipeline.cli.parsing import events_of, run_named
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.run_snapshots import (
    FIRST_PAGE,
    STEP_MOVES,
    Lag,
    RunSnapshot,
    RunStatus,
    StepStatus,
    fold,
    lag_of,
)
from ads_pipeline.errors import BadCommand, EventsNotFound, printable
from ads_pipeline.ledger.events.event_reader import EventReader, RunHead
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
WIDE: Final = 120  # columns; below, runs go by the first letters of their names
SHORT: Final = 8  # letters, as in Dagster's UI
LONGEST: Final = 160  # letters of what an event says; --json has all of it
MOST_STEPS: Final = 50
AT_ONCE: Final = 500  # steps whose last words are looked for together
LOOKS_EVERY: Final = timedelta(milliseconds=500)
UNDONE: Final = (StepStatus.FAILED, StepStatus.RUNNING)
# A run and a step that failed or are running are called alike.
COLOURS: Final[Mapping[str, str]] = {
    RunStatus.COMPLETED: "green",
    StepStatus.SUCCEEDED: "green",
    StepStatus.FAILED: "red",
    StepStatus.RUNNING: "yellow",
    "RunCompleted": "green",
    "RunFailed": "red",
}


def runs(settings: Settings, *, limit: int, as_json: bool) -> None:
    """Write the runs that were opened last, then how far the snapshots are behind when they are."""
    with events_of(settings) as reader:
        found, lag = reader.newest(limit + 1), reader.lag()
    shown, notes = found[:limit], [] if found else ["no run has events yet"]
    if len(found) > limit:
        notes.append("older runs follow; --limit shows more")
    if lag_of(lag) is not Lag.NORMAL:
        behind = f"the snapshots are {seconds(lag)} behind the events"
        notes.append(f'{behind}; "ads-pipeline events follow" keeps them up')
    if as_json:
        write_json(_run_fields(head, snapshot) for head, snapshot in shown)
        _remark(notes)
        return
    paper = Paper()
    if shown:
        paper.print(_runs_table(shown, is_wide=paper.width >= WIDE))
    _print_notes(paper, notes)


def tail(settings: Settings, word: str, *, after: int, limit: int | None, follow: bool, as_json: bool) -> None:
    """Write the events of a run behind a place, in order: a page of them, or all until the run has ended."""
    with events_of(settings) as reader:
        head = run_named(reader, word)
        _check_kept(head)
        if after > head.last_seq:
            raise BadCommand(f"--after {after} is behind the last event of run {head.run_id}, {head.last_seq}")
        if follow:
            pages = _followed(reader, head.run_id, after)
            _write_pages(pages if limit is None else _first(pages, limit), as_json=as_json)
            return
        page = reader.fetch(head.run_id, after_seq=after, limit=limit or FIRST_PAGE)
    _write_pages([page], as_json=as_json)
    last = page[-1].run_seq if page else after
    notes = [] if page else [f"no event stands behind place {after}, which is the last"]
    if page and last < head.last_seq:
        notes = [f"{head.last_seq - last:,} more follow; go on with", f"  --after {last}"]
    if as_json:
        _remark(notes)
    else:
        _print_notes(Paper(), notes)


def snapshot(settings: Settings, word: str, *, all_steps: bool, as_json: bool) -> None:
    """Write what the events of a run make of it now, and the steps that failed or are not done, or all of them."""
    with events_of(settings) as reader:
        head = run_named(reader, word)
        found, steps = reader.open_run(head.run_id, tuple(StepStatus) if all_steps else UNDONE)
        if as_json:
            listed = [_step_fields(*each) for each in _last_words(reader, head.run_id, steps)]
            write_json([_run_fields(head, found) | {"listed_steps": listed}])
            return
        failed_first = sorted(steps.items(), key=lambda each: each[1] is not StepStatus.FAILED)
        shown = steps if all_steps else dict(failed_first[:MOST_STEPS])
        paper = Paper()
        paper.print(_facts(head, found))
        if steps:
            what = "" if all_steps else ", failed or still running"
            paper.print("", f"{counted(len(steps), 'step')}{what}, and the last that was said of each:", sep="\n")
            paper.print(_steps_table(_last_words(reader, head.run_id, shown)))
    if len(shown) < len(steps):
        _print_notes(paper, [f"{len(steps) - len(shown):,} more follow; --steps lists all"])


def seconds(lag: timedelta) -> str:
    return f"{lag.total_seconds():,.1f} s"


def telling(event_data: Any) -> str:
    """What an event says, on one line: an object's fields, else the value itself; cut where it is long."""
    match event_data:
        case None:
            said = ""
        case dict():
            said = "  ".join(f"{name}={_said(value)}" for name, value in event_data.items())
        case _:
            said = _said(event_data)
    return printable(said, limit=LONGEST)


def _said(value: Any) -> str:
    is_word = isinstance(value, str) and value and not set(value) & set(' "=')
    return value if is_word else json.dumps(value, ensure_ascii=False)


def _followed(reader: EventReader, run_id: str, after: int) -> Iterator[Sequence[LoggedEvent]]:
    """The run's events behind a place, as they come, until it has ended and there is nothing left to read."""
    now, place = reader.open_snapshot(run_id), after
    while True:
        page = reader.fetch(run_id, after_seq=place)
        if page:
            yield page
            place = page[-1].run_seq
            now, _steps = fold(now, {}, page)  # only the status is wanted, and for that no step need be known
        elif now.status.terminal:
            return
        else:
            _check_kept(reader.head(run_id))
            time.sleep(LOOKS_EVERY.total_seconds())


def _check_kept(head: RunHead | None) -> None:
    """A run that is followed may be retired as well, between two looks."""
    if head is not None and head.retired_at is not None:
        why = f'its events were retired at {moment(head.retired_at)}; "ads-pipeline events snapshot" sums them up'
        raise EventsNotFound(head.run_id, why)


def _first(pages: Iterable[Sequence[LoggedEvent]], limit: int) -> Iterator[Sequence[LoggedEvent]]:
    left = limit
    for page in pages:
        yield page[:left]
        left -= len(page)
        if left <= 0:
            return


def _write_pages(pages: Iterable[Sequence[LoggedEvent]], *, as_json: bool) -> None:
    """Each page at once, for somebody may be watching."""
    paper = Paper()
    for page in pages:
        if as_json:
            write_json(map(event_fields, page))
            sys.stdout.flush()
        elif page:
            paper.print(_events_table(page))


def event_fields(logged: LoggedEvent) -> dict[str, Any]:
    own = {
        "run_seq": logged.run_seq,
        "idempotency_key": logged.idempotency_key,
        "persisted_at": instant_of(logged.persisted_at),
    }
    return {name: own[name] if name in own else getattr(logged.event, name) for name in FIELDS}


def _run_fields(head: RunHead, snapshot: RunSnapshot | None) -> dict[str, Any]:
    """What the log and the snapshot say of a run, flat; of a run that was not projected the latter is null."""
    summed = dict.fromkeys(asdict(RunSnapshot(run_id=head.run_id))) if snapshot is None else asdict(snapshot)
    fields = {"run_id": head.run_id, "status": None, "events": head.last_seq} | summed | asdict(head)
    del fields["last_seq"]
    return {name: instant_of(value) if isinstance(value, datetime) else value for name, value in fields.items()}


def _step_fields(step: str, status: StepStatus, last: LoggedEvent | None) -> dict[str, Any]:
    return {"step_id": step, "status": status, "last_event": last and event_fields(last)}


def _last_words(
    reader: EventReader, run_id: str, steps: Mapping[str, StepStatus]
) -> Iterator[tuple[str, StepStatus, LoggedEvent | None]]:
    names = list(steps)
    for start in range(0, len(names), AT_ONCE):
        part = names[start : start + AT_ONCE]
        said = reader.last_words(run_id, part)
        yield from ((name, steps[name], said.get(name)) for name in part)


def _runs_table(found: Sequence[tuple[RunHead, RunSnapshot | None]], *, is_wide: bool) -> Table:
    table = listing(run="fold", status="left", events="right", steps="fold", begun="left", ended="left")
    names = [head.run_id for head, _snapshot in found]
    shown = dict(zip(names, names, strict=True)) if is_wide else shortened(names)
    for head, snapshot in found:
        marks = _marks(head, snapshot)
        status = [] if snapshot is None else [cell(snapshot.status, style=COLOURS.get(snapshot.status, ""))]
        table.add_row(
            cell(shown[head.run_id]),
            Text("\n").join([*status, *(cell(mark, style="yellow") for mark in marks)]),
            cell(f"{head.last_seq:,}"),
            cell(None if snapshot is None else _tallied(snapshot)),
            cell(snapshot and snapshot.started_at and f"{snapshot.started_at:%Y-%m-%d %H:%M}Z"),
            cell(snapshot and _ended(snapshot)),
        )
    return table


def _ended(snapshot: RunSnapshot) -> str | None:
    """Without the day where that is the one on which the run began."""
    begun, ended = snapshot.started_at, snapshot.ended_at
    if begun is None or ended is None:
        return None
    return f"{ended:%H:%M}Z" if begun.date() == ended.date() else f"{ended:%Y-%m-%d %H:%M}Z"


def shortened(names: Sequence[str]) -> dict[str, str]:
    """Each name by its first letters: as many as tell it from the others, and not too few to be looked for."""
    shared, ordered = dict.fromkeys(names, 0), sorted(names)
    for one, next_one in pairwise(ordered):
        both = zip(one, next_one, strict=False)
        alike = next((place for place, (a, b) in enumerate(both) if a != b), len(one))
        shared[one], shared[next_one] = max(shared[one], alike), alike
    return {name: name[: max(SHORT, shared[name] + 1)] for name in names}


def _marks(head: RunHead, snapshot: RunSnapshot | None) -> list[str]:
    marks = {
        "behind": head.projected_seq < head.last_seq,
        "stale": snapshot is not None and snapshot.stale_since is not None,
        "retired": head.retired_at is not None,
    }
    return [mark for mark, applies in marks.items() if applies]


def _events_table(page: Sequence[LoggedEvent]) -> Table:
    table = _grid()
    for logged in page:
        table.add_row(cell(logged.run_seq), cell(moment(logged.persisted_at)), _words(logged))
    return table


def _grid() -> Table:
    """Columns that stand in the same place on every page: a place, a time, and all the rest."""
    table = Table.grid(padding=GAP)
    table.add_column(justify="right", min_width=5, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _words(logged: LoggedEvent) -> Text:
    event = logged.event
    colour = COLOURS.get(STEP_MOVES.get(event.event_type) or event.event_type, "")
    said = (cell(event.step_id), cell(event.event_type, style=colour), cell(telling(event.event_data)))
    return Text("  ").join(each for each in said if each)


def _facts(head: RunHead, snapshot: RunSnapshot) -> Table:
    """What there is to say of a run; what does not apply is left out."""
    conflicts, odd = head.payload_conflicts, snapshot.inconsistencies
    facts = {
        "run": head.run_id,
        "status": cell(snapshot.status, style=COLOURS.get(snapshot.status, "")),
        "plan": head.plan_version,
        "begun": snapshot.started_at and moment(snapshot.started_at),
        "ended": snapshot.ended_at and moment(snapshot.ended_at),
        "last place": f"{snapshot.last_event_seq:,}",
        "steps": _tallied(snapshot) or "none",
        "inconsistent": odd and f"{counted(odd, 'event')} that could not be, and changed nothing",
        "conflicts": conflicts
        and f"{counted(conflicts, 'event')} told again with another payload; the first is kept",
        "stale since": snapshot.stale_since and f"{moment(snapshot.stale_since)}; events are known to be missing",
        "retired": head.retired_at and f"{moment(head.retired_at)}; the events are deleted",
    }
    table = Table.grid(padding=GAP)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        if fact:
            table.add_row(name, fact if isinstance(fact, Text) else cell(fact))
    return table


def _steps_table(steps: Iterable[tuple[str, StepStatus, LoggedEvent | None]]) -> Table:
    table = Table.grid(padding=GAP)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for step, status, last in steps:
        said = (
            cell(step) if last is None else Text("  ").join([_words(last), cell(f"at {moment(last.persisted_at)}")])
        )
        table.add_row(cell(status, style=COLOURS.get(status, "")), said)
    return table


def _tallied(snapshot: RunSnapshot) -> str:
    return ", ".join(f"{count:,} {status.lower()}" for status, count in snapshot.steps.items() if count)


def _remark(notes: Sequence[str]) -> None:
    for note in notes:
        print(note, file=sys.stderr)  # noqa: T201 - standard output is the program's


def _print_notes(paper: Paper, notes: Sequence[str]) -> None:
    """Below the table, after an empty line."""
    if notes:
        paper.print("")
    for note in notes:
        paper.print(cell(note), soft_wrap=True)
