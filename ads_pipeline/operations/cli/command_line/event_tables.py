"""Formats runs, events and snapshots: tables for terminals and fields for JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import pairwise
from typing import Any, Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ads_pipeline.domain.quoting import count_of, printable
from ads_pipeline.domain.run_events import Event, LoggedEvent
from ads_pipeline.domain.run_snapshots import STEP_STATUS_AFTER, RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.events.event_reader import RunHead
from ads_pipeline.operations.cli.command_line.output import (
    CELL_PADDING,
    Column,
    Fields,
    cell,
    format_instant,
    format_minute,
    grid_of,
    table_of,
)

ASSIGNED: Final = ("run_seq", "idempotency_key", "persisted_at")  # by the store
FIELDS: Final = (*(each.name for each in fields(Event) if each.init), *ASSIGNED)
MIN_SHORT_ID_LENGTH: Final = 8  # characters, as in Dagster's UI
MAX_DATA_LENGTH: Final = 160  # characters of an event's data; --json prints all of it
STATUS_AFTER: Final = {**STEP_STATUS_AFTER, "RunCompleted": RunStatus.COMPLETED, "RunFailed": RunStatus.FAILED}


def event_to_json(logged: LoggedEvent) -> dict[str, Any]:
    return {name: getattr(logged if name in ASSIGNED else logged.event, name) for name in FIELDS}


def run_to_json(head: RunHead, snapshot: RunSnapshot | None) -> dict[str, Any]:
    """Merge the head and the snapshot of a run. Without a snapshot its fields are null."""
    values = (
        dict.fromkeys(asdict(RunSnapshot(engine_run_id=head.engine_run_id))) if snapshot is None else asdict(snapshot)
    )
    row = {"engine_run_id": head.engine_run_id, "status": None, "events": head.last_seq} | values | asdict(head)
    del row["last_seq"]
    return row


def runs_table(runs: Sequence[Fields], *, full_ids: bool) -> list[RenderableType]:
    """A table of runs as `run_to_json` gives them."""
    names = shorten_names([row["engine_run_id"] for row in runs])
    columns = (
        Column("run", "engine_run_id" if full_ids else lambda row: names[row["engine_run_id"]], wrap=True),
        Column("status", _status_and_marks),
        Column("events", "events"),
        Column("steps", lambda row: _format_step_counts(row["steps"] or {}), wrap=True),
        Column("started", lambda row: format_minute(row["started_at"])),
        Column("ended", _format_end),
    )
    return table_of(runs, columns)[:1]


def events_table(page: Sequence[LoggedEvent]) -> Table:
    table = Table.grid(padding=CELL_PADDING)
    table.add_column(justify="right", min_width=5, no_wrap=True)  # the same width on every page
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for logged in page:
        table.add_row(str(logged.run_seq), cell(logged.persisted_at), _format_event(logged))
    return table


def summary_table(head: RunHead, snapshot: RunSnapshot) -> Table:
    """The summary of a run. Facts without a value are left out."""
    conflicts, misfits = head.payload_conflicts, snapshot.inconsistencies
    facts = {
        "run": head.engine_run_id,
        "status": snapshot.status,
        "plan": head.plan_version,
        "started": snapshot.started_at,
        "ended": snapshot.ended_at,
        "last event": f"{snapshot.last_event_seq:,}",
        "steps": _format_step_counts(snapshot.steps) or "none",
        "inconsistent": misfits and f"{count_of(misfits, 'event')} did not fit the run's status and changed nothing",
        "conflicts": conflicts
        and f"{count_of(conflicts, 'event')} sent again with another payload; the first is kept",
        "stale since": snapshot.stale_since and f"{format_instant(snapshot.stale_since)}; events are missing",
        "retired": head.retired_at and f"{format_instant(head.retired_at)}; the events are deleted",
    }
    return grid_of(facts.items(), style="dim")


def steps_table(steps: Iterable[tuple[str, StepStatus, LoggedEvent | None]]) -> Table:
    """Each step with its status and its last event, which names the step."""
    return grid_of(
        (
            status,
            cell(step)
            if last is None
            else Text("  ").join([_format_event(last), cell(f"at {format_instant(last.persisted_at)}")]),
        )
        for step, status, last in steps
    )


def format_event_data(event_data: Any) -> str:
    """An event's data on one line, cut to MAX_DATA_LENGTH. An object becomes name=value pairs.

    A structured reason is left out where its text is there too.
    """
    match event_data:
        case None:
            text = ""
        case dict():
            repeated = {"reason"} if "error_message" in event_data else set()
            shown = {name: value for name, value in event_data.items() if name not in repeated}
            text = "  ".join(f"{name}={_format_value(value)}" for name, value in shown.items())
        case _:
            text = _format_value(event_data)
    return printable(text, limit=MAX_DATA_LENGTH)


def shorten_names(names: Sequence[str]) -> dict[str, str]:
    """Map each name to its shortest unique prefix of at least MIN_SHORT_ID_LENGTH characters."""
    shared = dict.fromkeys(names, 0)  # the length of the longest prefix shared with another name
    for one, following in pairwise(sorted(names)):
        pairs = zip(one, following, strict=False)
        length = next((index for index, (a, b) in enumerate(pairs) if a != b), len(one))
        shared[one], shared[following] = max(shared[one], length), length
    return {name: name[: max(MIN_SHORT_ID_LENGTH, shared[name] + 1)] for name in names}


def _format_value(value: Any) -> str:
    is_word = isinstance(value, str) and value and not set(value) & set(' "=')
    return value if is_word else json.dumps(value, ensure_ascii=False)


def _status_and_marks(row: Fields) -> Text:
    marks = {
        "behind": row["projected_seq"] < row["events"],
        "stale": row["stale_since"] is not None,
        "retired": row["retired_at"] is not None,
    }
    status = [cell(row["status"])] if row["status"] else []
    return Text("\n").join([*status, *(cell(mark, style="yellow") for mark, applies in marks.items() if applies)])


def _format_end(row: Fields) -> str | None:
    """The end of the run, without the day if the run started on the same day."""
    started, ended = row["started_at"], row["ended_at"]
    if started is None or ended is None:
        return None
    return f"{ended:%H:%M}Z" if started.date() == ended.date() else format_minute(ended)


def _format_event(logged: LoggedEvent) -> Text:
    event = logged.event
    style = cell(STATUS_AFTER.get(event.event_type)).style
    cells = (cell(event.step_id), cell(event.event_type, style=str(style)), cell(format_event_data(event.event_data)))
    return Text("  ").join(filled for filled in cells if filled)


def _format_step_counts(steps: Mapping[StepStatus, int]) -> str:
    return ", ".join(f"{count:,} {status.lower()}" for status, count in steps.items() if count)
