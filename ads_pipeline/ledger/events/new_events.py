"""Reads the new events of all runs, from a position on. `event_reader` reads those of one run."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Instant, run_events, run_head
from ads_pipeline.ledger.write_steps.event_rows import decode_event

COMMIT_DELAY: Final = timedelta(minutes=10)  # an event may become visible this long after the time it carries


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """The position up to which the logs of all runs were read.

    Runs have no common order. So it holds the time of the newest event, and the last `run_seq` of each run with an
    event shortly before that time. No event is read twice, and none is missed that a slow transaction commits late.
    """

    newest_at: datetime | None = None
    last_seqs: Mapping[str, int] = field(default_factory=dict)

    def since(self, now: datetime) -> datetime | None:
        """The earliest time of an event that may not have been read; None when none was read.

        It is never in the future, so that a clock that was ahead for a while hides no event.
        """
        return None if self.newest_at is None else min(self.newest_at, now) - COMMIT_DELAY


def read_position(engine: database.Reading, now: datetime) -> LogPosition:
    """Return the position at the end of all logs."""
    newest_at = database.transact(
        engine, lambda c: c.scalar(sa.select(sa.func.max(run_head.c.last_at, type_=Instant())))
    )
    return read_events_after(engine, LogPosition(newest_at=newest_at), (), now=now)[1]


def read_events_after(
    engine: database.Reading, position: LogPosition, event_types: Collection[str], *, now: datetime
) -> tuple[list[LoggedEvent], LogPosition]:
    """Return the events of these types after the position, by time, and the position after them."""
    since, found = position.since(now), list[LoggedEvent]()
    recent = sa.true() if since is None else run_head.c.last_at >= sa.literal(since, Instant())
    with database.open_snapshot(engine) as connection:
        heads = connection.execute(sa.select(run_head).where(recent)).all()
        for head in heads:
            if not event_types or head.last_seq <= (seen := position.last_seqs.get(head.engine_run_id, 0)):
                continue
            of_run = sa.select(run_events, run_head.c.plan_version).join(
                run_head, run_head.c.engine_run_id == run_events.c.engine_run_id
            )
            of_run = of_run.where(
                run_events.c.engine_run_id == head.engine_run_id,
                run_events.c.run_seq > seen,
                run_events.c.event_type.in_(sorted(event_types)),
            )
            if since is not None and not seen:  # the run's earlier events were read, and its position was dropped
                of_run = of_run.where(run_events.c.persisted_at >= sa.literal(since, Instant()))
            found += [decode_event(row) for row in connection.execute(of_run.order_by(run_events.c.run_seq))]
    newest_at = max((head.last_at for head in heads), default=position.newest_at)
    return (
        sorted(found, key=lambda each: (each.persisted_at, each.event.engine_run_id, each.run_seq)),
        LogPosition(newest_at=newest_at, last_seqs={head.engine_run_id: head.last_seq for head in heads}),
    )
