"""Reads the new events of all runs, from a position on. `event_reader` reads those of one run."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.run_events import LEDGER_TYPES, LoggedEvent
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

    @property
    def document(self) -> dict[str, Any]:
        """The position as JSON."""
        newest_at = self.newest_at and self.newest_at.astimezone(UTC).isoformat()
        return {"newest_at": newest_at, "last_seqs": dict(self.last_seqs)}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "LogPosition":
        """Read what `document` has made.

        Raises ValueError, KeyError, TypeError or AttributeError for anything else.
        """
        newest_at = document["newest_at"]
        return cls(
            newest_at=newest_at and datetime.fromisoformat(newest_at).astimezone(UTC),
            last_seqs={str(run): int(seq) for run, seq in document["last_seqs"].items()},
        )


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
    found = list[LoggedEvent]()
    with database.open_snapshot(engine) as connection:
        heads = _read_recent_heads(connection, position, now)
        for is_new in _find_new(heads, position, event_types, now):
            of_run = sa.select(run_events, run_head.c.plan_version).join(
                run_head, run_head.c.engine_run_id == run_events.c.engine_run_id
            )
            rows = connection.execute(of_run.where(is_new).order_by(run_events.c.run_seq))
            found += map(decode_event, rows)
    ordered = sorted(found, key=lambda each: (each.persisted_at, each.event.engine_run_id, each.run_seq))
    return ordered, _position_of(heads, position)


def list_partitions_changed_after(
    engine: database.Reading, position: LogPosition, *, now: datetime
) -> tuple[set[PartitionKey], LogPosition]:
    """Return the partitions that the ledger's own events after the position changed, and the position after them."""
    found = set[str]()
    with database.open_snapshot(engine) as connection:
        heads = _read_recent_heads(connection, position, now)
        for is_new in _find_new(heads, position, LEDGER_TYPES, now):
            found.update(connection.scalars(sa.select(run_events.c.step_id).where(is_new).distinct()))
    return set(map(parse_key, found)), _position_of(heads, position)


def _read_recent_heads(connection: sa.Connection, position: LogPosition, now: datetime) -> Sequence[sa.Row[Any]]:
    since = position.since(now)
    recent = sa.true() if since is None else run_head.c.last_at >= sa.literal(since, Instant())
    return connection.execute(sa.select(run_head).where(recent)).all()


def _find_new(
    heads: Iterable[sa.Row[Any]], position: LogPosition, event_types: Collection[str], now: datetime
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield for each run with new events the condition that selects those of these types."""
    since = position.since(now)
    for head in heads:
        if not event_types or head.last_seq <= (seen := position.last_seqs.get(head.engine_run_id, 0)):
            continue
        is_new = sa.and_(
            run_events.c.engine_run_id == head.engine_run_id,
            run_events.c.run_seq > seen,
            run_events.c.event_type.in_(sorted(event_types)),
        )
        if since is not None and not seen:  # the run's earlier events were read, and its position was dropped
            is_new = sa.and_(is_new, run_events.c.persisted_at >= sa.literal(since, Instant()))
        yield is_new


def _position_of(heads: Sequence[sa.Row[Any]], position: LogPosition) -> LogPosition:
    newest_at = max((head.last_at for head in heads), default=position.newest_at)
    return LogPosition(newest_at=newest_at, last_seqs={head.engine_run_id: head.last_seq for head in heads})
