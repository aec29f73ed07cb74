"""Creates runs and reads their rows for tests of the event log."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.run_snapshots import RunSnapshot, StepStatus
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.tables import run_steps
from ads_pipeline.testing.run_events import make_completions, make_event


def stored_steps(log: EventLog, run_id: str) -> dict[str, StepStatus]:
    """Return the rows of `run_steps` for this run, without folding later events."""
    statement = sa.select(run_steps).where(run_steps.c.run_id == run_id)
    rows = database.transact(log.engine, lambda connection: connection.execute(statement).all())
    return {row.step_id: StepStatus(row.status) for row in rows}


def complete_run(log: EventLog, run_id: str = "over", *, steps: int = 3) -> RunSnapshot:
    """Append a completed run and return its stored snapshot."""
    log.append_many(
        [make_event(run_id, "RunStarted"), *make_completions(run_id, steps), make_event(run_id, "RunCompleted")]
    )
    Follower(log).catch_up()
    snapshot = log.get_snapshot(run_id)
    assert snapshot is not None
    return snapshot


def run_once_after_query(engine: sa.Engine, table: str, action: Callable[[], object]) -> None:
    """Run the action once, right after the next query of the table."""
    pending = [action]

    def after_query(*arguments: Any) -> None:
        if pending and f"FROM {table}" in arguments[2].replace("\n", " "):
            pending.pop()()

    sa.event.listen(engine, "after_cursor_execute", after_query)
