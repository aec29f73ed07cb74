"""Formats runs, events and snapshots: tables for terminals and fields for JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.output import CELL_PADDING, cell, count_of, format_instant, iso_instant, new_grid, new_table
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.run_snapshots import STEP_STATUS_AFTER, RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.events.event_reader import RunHead
from ads_pipeline.quoting import printable

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
MIN_SHORT_ID_LENGTH: Final = 8  # characters, as in Dagster's UI
MAX_DATA_LENGTH: Final = 160  # characters of an event's data; --json prints all of it
# FAILED and RUNNING have the same text for runs and steps.
COLOURS: Final[Mapping[str, str]] = {
    RunStatus.COMPLETED: "green",
    StepStatus.SUCCEEDED: "green",
    StepStatus.FAILED: "red",
    StepStatus.RUNNING: "yellow",
    "RunCompleted": "green",
    "RunFailed": "red",
}


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


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Map each name to its shortest unique prefix of at least MIN_SHORT_ID_LENGTH characters."""
    shared = dict.fromkeys(names, 0)  # the length of the longest prefix shared with another name
    for one, following in pairwise(sorted(names)):
        pairs = zip(one, following, strict=False)
        length = next((index for index, (a, b) in enumerate(pairs) if a != b), len(one))
        shared[one], shared[following] = max(shared[one], length), length
    return {name: name[: max(MIN_SHORT_ID_LENGTH, shared[name] + 1)] for name in names}


def event_to_json(logged: LoggedEvent) -> dict[str, Any]:
    assigned = {
        "run_seq": logged.run_seq,
        "idempotency_key": logged.idempotency_key,
        "persisted_at": iso_instant(logged.persisted_at),
    }
    return {name: assigned[name] if name in assigned else getattr(logged.event, name) for name in FIELDS}


def run_to_json(head: RunHead, snapshot: RunSnapshot | None) -> dict[str, Any]:
    """Merge the head and the snapshot of a run. Without a snapshot its fields are null."""
    values = dict.fromkeys(asdict(RunSnapshot(run_id=head.run_id))) if snapshot is None else asdict(snapshot)
    fields = {"run_id": head.run_id, "status": None, "events": head.last_seq} | values | asdict(head)
    del fields["last_seq"]
    return {name: iso_instant(value) if isinstance(value, datetime) else value for name, value in fields.items()}


def runs_table(runs: Sequence[tuple[RunHead, RunSnapshot | None]], *, full_ids: bool) -> Table:
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


def _marks(head: RunHead, snapshot: RunSnapshot | None) -> list[str]:
    marks = {
        "behind": head.projected_seq < head.last_seq,
        "stale": snapshot is not None and snapshot.stale_since is not None,
        "retired": head.retired_at is not None,
    }
    return [mark for mark, applies in marks.items() if applies]


def events_table(page: Sequence[LoggedEvent]) -> Table:
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


def summary_table(head: RunHead, snapshot: RunSnapshot) -> Table:
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


def steps_table(steps: Iterable[tuple[str, StepStatus, LoggedEvent | None]]) -> Table:
    table = new_grid()
    for step, status, last in steps:
        text = cell(step)
        if last is not None:
            text = Text("  ").join([_format_event(last), cell(f"at {format_instant(last.persisted_at)}")])
        table.add_row(cell(status, style=COLOURS.get(status, "")), text)
    return table


def _format_step_counts(snapshot: RunSnapshot) -> str:
    return ", ".join(f"{count:,} {status.lower()}" for status, count in snapshot.steps.items() if count)
