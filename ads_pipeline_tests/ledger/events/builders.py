"""Reads rows of the event tables for tests."""

import sqlalchemy as sa

from ads_pipeline.domain.run_snapshots import StepStatus
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.tables import run_steps


def stored_steps(log: EventLog, run_id: str) -> dict[str, StepStatus]:
    """Return the rows of `run_steps` for this run, without folding later events."""
    statement = sa.select(run_steps).where(run_steps.c.run_id == run_id)
    rows = database.transact(log.engine, lambda connection: connection.execute(statement).all())
    return {row.step_id: StepStatus(row.status) for row in rows}
