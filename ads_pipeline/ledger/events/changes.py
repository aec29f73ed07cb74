"""Finds which partitions changed since a moment, and in which runs, from the ledger's own events."""

from collections.abc import Collection
from datetime import datetime

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.run_events import LEDGER_TYPES
from ads_pipeline.ledger import database
from ads_pipeline.ledger.tables import Instant, run_events, run_head


def list_changed_runs(engine: sa.Engine, since: datetime) -> list[str]:
    """Return the ids of the runs with an event at or after `since`, sorted."""
    statement = sa.select(run_head.c.run_id).where(run_head.c.last_at >= sa.literal(since, Instant()))
    return [row.run_id for row in database.fetch(engine, statement.order_by(run_head.c.run_id))]


def list_changed_partitions(engine: sa.Engine, run_ids: Collection[str], since: datetime) -> list[PartitionKey]:
    """Return the partitions that these runs changed at or after `since`, sorted."""
    statement = (
        sa.select(run_events.c.step_id)
        .where(
            run_events.c.run_id.in_(run_ids),
            run_events.c.persisted_at >= sa.literal(since, Instant()),
            run_events.c.event_type.in_(sorted(LEDGER_TYPES)),
        )
        .distinct()
    )
    return sorted(parse_key(row.step_id) for row in database.fetch(engine, statement)) if run_ids else []
