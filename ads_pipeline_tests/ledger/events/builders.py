"""Creates runs and reads their rows for tests of the event log."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.run_snapshots import EventSummary, RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import read_steps
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.sql import database
from ads_pipeline.testing.event_strategies import make_completions, make_event


def stored_steps(log: EventLog, engine_run_id: str) -> dict[str, StepStatus]:
    """Return the status that a fold of later events begins with, of each step of the run."""
    snapshot = log.get_snapshot(engine_run_id)
    if snapshot is None:
        return {}
    names = [
        EventSummary(0, "", logged.step_id, logged.persisted_at) for logged in log.fetch(engine_run_id, limit=10_000)
    ]
    open_run = replace(snapshot, status=RunStatus.RUNNING)
    return database.transact(log.engine, lambda connection: read_steps(connection, open_run, names))


def complete_run(log: EventLog, engine_run_id: str = "over", *, steps: int = 3) -> RunSnapshot:
    """Append a completed run and return its stored snapshot."""
    log.append_many(
        [
            make_event(engine_run_id, "RunStarted"),
            *make_completions(engine_run_id, steps),
            make_event(engine_run_id, "RunCompleted"),
        ]
    )
    Follower(log).catch_up()
    snapshot = log.get_snapshot(engine_run_id)
    assert snapshot is not None
    return snapshot


def run_once_after_query(engine: database.Reading, table: str, action: Callable[[], object]) -> None:
    """Run the action once, right after the next query of the table."""
    pending = [action]

    def after_query(*arguments: Any) -> None:
        if pending and f"FROM {table}" in arguments[2].replace("\n", " "):
            pending.pop()()

    sa.event.listen(engine, "after_cursor_execute", after_query)
