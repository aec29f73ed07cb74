"""Reads run events, run heads and snapshots. `event_log` appends events."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import EventsNotFound
from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.run_events import CONTRACT_VERSION, LEDGER_TYPES, LoggedEvent
from ads_pipeline.domain.run_snapshots import (
    DEFAULT_PAGE_SIZE,
    STEP_STATUS_AFTER,
    EventSummary,
    RunSnapshot,
    StepStatus,
    fold_events,
)
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Instant, run_events, run_head
from ads_pipeline.ledger.sql.row_mapping import database_clock, pick_fields
from ads_pipeline.ledger.sql.statements import Statement
from ads_pipeline.ledger.write_steps.event_rows import decode_event, decode_snapshot

LARGEST_PAGE: Final = 10_000
_EVENTS_PER_PAGE: Final = 5_000
_IS_FOLDED: Final = run_head.c.status.is_not(None)
_EVENTS: Final = sa.select(run_events, run_head.c.plan_version).join(
    run_head, run_head.c.engine_run_id == run_events.c.engine_run_id
)
_SUMMARIES: Final = sa.select(*(run_events.c[name] for name in EventSummary._fields))
_STATUS_TYPES: Final = ", ".join(f"'{name}'" for name, status in sorted(STEP_STATUS_AFTER.items()) if status)
# The type of the last event, up to a `run_seq`, that gave each step of a run a status.
_READ_STEPS: Final = Statement(
    "step_statuses",
    {"step_id": "text", "engine_run_id": "text", "run_seq": "bigint"},
    f"""
    SELECT step_id, (
        SELECT event_type FROM run_events AS earlier
        WHERE earlier.step_id = given.step_id AND earlier.engine_run_id = given.engine_run_id
            AND earlier.run_seq <= given.run_seq AND earlier.event_type IN ({_STATUS_TYPES})
        ORDER BY earlier.run_seq DESC LIMIT 1
    ) AS event_type FROM given
    """,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """The head row of a run: its last `run_seq`, and how many duplicates came with another payload."""

    engine_run_id: str
    plan_version: str
    last_seq: int
    projected_seq: int
    payload_conflicts: int
    opened_at: datetime
    last_at: datetime
    retired_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestEvent:
    """The number of events of all runs, and the time of the newest, if there is any."""

    position: int
    at: datetime | None


class EventReader:
    """Read access to the events of all runs."""

    contract_version = CONTRACT_VERSION

    def __init__(self, engine: database.Reading, *, clock: Callable[[], datetime] | None = None) -> None:
        self.engine, self._clock = engine, clock
        self._read_clock = sa.select(database_clock(engine.dialect.name))

    def fetch(self, engine_run_id: str, *, after_seq: int = 0, limit: int = DEFAULT_PAGE_SIZE) -> list[LoggedEvent]:
        """Return the next events of a run after `after_seq`, in order. Raises ValueError for a bad limit."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"limit must be 1 to {LARGEST_PAGE}, not {limit}")
        if after_seq < 0:
            raise ValueError(f"after_seq must be 0 or more, not {after_seq}")
        return database.transact(
            self.engine, lambda connection: fetch_events(connection, engine_run_id, after_seq, limit)
        )

    def get_snapshot(self, engine_run_id: str) -> RunSnapshot | None:
        """Return the stored snapshot of a run, or None if no event of the run is folded yet."""
        rows = self._execute(sa.select(run_head).where(run_head.c.engine_run_id == engine_run_id, _IS_FOLDED))
        return decode_snapshot(rows[0]) if rows else None

    def get_current_snapshot(self, engine_run_id: str) -> RunSnapshot:
        """Return the stored snapshot with all later events folded in. Nothing is stored.

        Raises EventsNotFound for an unknown run.
        """
        return self.get_current_run(engine_run_id, ())[0]

    def get_current_run(
        self, engine_run_id: str, statuses: Iterable[StepStatus] = tuple(StepStatus)
    ) -> tuple[RunSnapshot, dict[str, StepStatus]]:
        """Return the current snapshot and the steps with these statuses, by step id, as of one moment.

        Raises EventsNotFound for an unknown run.
        """
        requested = sorted(statuses)

        def read(connection: sa.Connection) -> tuple[RunSnapshot, dict[str, StepStatus]]:
            database.use_one_snapshot(connection)
            snapshot, steps = _fold_current(connection, engine_run_id), dict[str, StepStatus]()
            if requested:
                fold_later_events(connection, RunSnapshot(engine_run_id=engine_run_id), steps)
            return snapshot, {step: status for step, status in sorted(steps.items()) if status in requested}

        snapshot, steps = database.transact(self.engine, read)
        if not snapshot.last_event_seq:
            raise EventsNotFound(engine_run_id, "it has no events")
        return snapshot, steps

    def get_last_step_events(self, engine_run_id: str, steps: Sequence[str]) -> dict[str, LoggedEvent]:
        """Return the last event of each of these steps. Steps without events are left out."""
        latest = (
            sa.select(sa.func.max(run_events.c.run_seq))
            .where(run_events.c.engine_run_id == engine_run_id, run_events.c.step_id.in_(steps))
            .group_by(run_events.c.step_id)
        )
        rows = self._execute(
            _EVENTS.where(run_events.c.engine_run_id == engine_run_id, run_events.c.run_seq.in_(latest))
        )
        return {logged.event.step_id: logged for logged in map(decode_event, rows) if logged.event.step_id}

    def list_steps(self, engine_run_id: str, event_types: Collection[str]) -> list[str]:
        """Return the steps of a run that have an event of one of these types, sorted."""
        matches = run_events.c.engine_run_id == engine_run_id, run_events.c.event_type.in_(sorted(event_types))
        steps = sa.select(run_events.c.step_id).where(*matches).distinct()
        return sorted(row.step_id for row in self._execute(steps))

    def find_step_events(self, step_id: str, limit: int = 20) -> list[LoggedEvent]:
        """Return the last events of a step in all runs, oldest first."""
        newest = run_events.c.persisted_at.desc(), run_events.c.engine_run_id.desc(), run_events.c.run_seq.desc()
        statement = _EVENTS.where(run_events.c.step_id == step_id).order_by(*newest).limit(limit)
        return list(map(decode_event, self._execute(statement)))[::-1]

    def find_runs(self, prefix: str, limit: int = 10) -> list[str]:
        """Return the ids of the runs that start with the prefix, sorted. An exact match comes first."""
        # A range scan of the primary key: "~" sorts after every character that a run id may contain.
        matches = sa.and_(run_head.c.engine_run_id >= prefix, run_head.c.engine_run_id < prefix + "~")
        statement = sa.select(run_head.c.engine_run_id).where(matches).order_by(run_head.c.engine_run_id).limit(limit)
        return [row.engine_run_id for row in self._execute(statement)]

    def project_snapshot(self, engine_run_id: str) -> RunSnapshot:
        """Fold all events of a run, from the first one, into a new snapshot. Nothing is stored.

        Raises EventsNotFound for an unknown run and for a retired one.
        """

        def read(connection: sa.Connection) -> RunSnapshot:
            database.use_one_snapshot(connection)
            return fold_later_events(connection, RunSnapshot(engine_run_id=engine_run_id), {})

        snapshot = database.transact(self.engine, read)
        if not snapshot.last_event_seq:
            head = self.get_head(engine_run_id)
            raise EventsNotFound(
                engine_run_id, "its events were retired" if head and head.retired_at else "it has no events"
            )
        return snapshot

    def get_head(self, engine_run_id: str) -> RunHead | None:
        """Return the head of a run, or None for an unknown run."""
        rows = self._execute(sa.select(run_head).where(run_head.c.engine_run_id == engine_run_id))
        return _decode_head(rows[0]) if rows else None

    def list_newest_runs(self, limit: int = 20) -> list[tuple[RunHead, RunSnapshot | None]]:
        """Return the newest runs with their stored snapshots, newest first."""
        newest = run_head.c.opened_at.desc(), run_head.c.engine_run_id
        rows = self._execute(sa.select(run_head).order_by(*newest).limit(limit))
        return [(_decode_head(row), decode_snapshot(row) if row.status else None) for row in rows]

    def list_lagging_runs(self, limit: int = 100, *, after: str = "") -> list[str]:
        """Return the ids of runs with unfolded events, sorted, after the id `after`."""
        lagging = run_head.c.last_seq > run_head.c.projected_seq
        statement = sa.select(run_head.c.engine_run_id).where(lagging, run_head.c.engine_run_id > after)
        return [row.engine_run_id for row in self._execute(statement.order_by(run_head.c.engine_run_id).limit(limit))]

    def list_changed_runs(self, since: datetime) -> list[str]:
        """Return the ids of the runs with an event at or after `since`, sorted."""
        statement = sa.select(run_head.c.engine_run_id).where(run_head.c.last_at >= sa.literal(since, Instant()))
        return [row.engine_run_id for row in self._execute(statement.order_by(run_head.c.engine_run_id))]

    def list_changed_partitions(self, engine_run_ids: Collection[str], since: datetime) -> list[PartitionKey]:
        """Return the partitions that these runs changed at or after `since`, by the ledger's own events, sorted."""
        changes = (
            run_events.c.engine_run_id.in_(engine_run_ids),
            run_events.c.persisted_at >= sa.literal(since, Instant()),
            run_events.c.event_type.in_(sorted(LEDGER_TYPES)),
        )
        rows = self._execute(sa.select(run_events.c.step_id).where(*changes).distinct()) if engine_run_ids else ()
        return sorted(parse_key(row.step_id) for row in rows)

    def count_changes(self, since: datetime, until: datetime | None = None) -> int:
        """Return how many changes of partitions the ledger stored from `since` on, before `until`."""
        start = sa.literal(since, Instant())
        changes = [
            run_head.c.last_at >= start,
            run_events.c.persisted_at >= start,
            run_events.c.event_type.in_(sorted(LEDGER_TYPES)),
        ]
        if until is not None:
            changes.append(run_events.c.persisted_at < sa.literal(until, Instant()))
        joined = run_events.join(run_head, run_head.c.engine_run_id == run_events.c.engine_run_id)
        return int(self._execute(sa.select(sa.func.count()).select_from(joined).where(*changes))[0][0])

    def list_retirable_runs(self, moment: datetime) -> list[RunHead]:
        """Return the runs that ended before `moment`, are folded to the end and still have events, by id."""
        rows = self._execute(
            sa.select(run_head)
            .where(
                run_head.c.ended_at < moment,
                run_head.c.retired_at.is_(None),
                run_head.c.projected_seq == run_head.c.last_seq,
            )
            .order_by(run_head.c.engine_run_id)
        )
        return list(map(_decode_head, rows))

    def get_newest(self) -> NewestEvent:
        """Return how many events all runs have, and when the newest was stored."""
        newest = sa.func.max(run_head.c.last_at, type_=Instant())
        position = sa.func.coalesce(sa.func.sum(run_head.c.last_seq), 0)
        (row,) = self._execute(sa.select(position.label("position"), newest.label("at")))
        return NewestEvent(position=int(row.position), at=row.at)

    def get_lag(self) -> timedelta:
        """Return the age of the oldest unfolded event, or zero if every event is folded."""
        oldest = (
            sa.select(run_events.c.persisted_at)
            .where(
                run_events.c.engine_run_id == run_head.c.engine_run_id,
                run_events.c.run_seq > run_head.c.projected_seq,
            )
            .order_by(run_events.c.run_seq)
            .limit(1)
            .scalar_subquery()
        )

        def read(connection: sa.Connection) -> timedelta:
            lagging = connection.execute(
                sa.select(oldest.label("since")).where(run_head.c.last_seq > run_head.c.projected_seq)
            )
            since = min((row.since for row in lagging if row.since), default=None)
            return timedelta(0) if since is None else max(timedelta(0), self.now(connection) - since)

        return database.transact(self.engine, read)

    def now(self, connection: sa.Connection) -> datetime:
        """Return the time of the store's clock, which dates every event and measures the lag."""
        return self._clock() if self._clock else connection.scalars(self._read_clock).one()

    def _execute(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return database.transact(self.engine, lambda connection: connection.execute(statement).all())


def fetch_events(connection: sa.Connection, engine_run_id: str, after_seq: int, limit: int) -> list[LoggedEvent]:
    later = run_events.c.engine_run_id == engine_run_id, run_events.c.run_seq > after_seq
    rows = connection.execute(_EVENTS.where(*later).order_by(run_events.c.run_seq).limit(limit))
    return list(map(decode_event, rows))


def fetch_summaries(connection: sa.Connection, engine_run_id: str, after_seq: int, limit: int) -> list[EventSummary]:
    """Return what a fold needs of the next events of a run."""
    later = run_events.c.engine_run_id == engine_run_id, run_events.c.run_seq > after_seq
    rows = connection.execute(_SUMMARIES.where(*later).order_by(run_events.c.run_seq).limit(limit))
    return [EventSummary._make(row) for row in rows]


def fold_later_events(connection: sa.Connection, snapshot: RunSnapshot, steps: dict[str, StepStatus]) -> RunSnapshot:
    """Return the snapshot with all later events folded in. Updates `steps`, which holds all steps of the run."""
    while events := fetch_summaries(connection, snapshot.engine_run_id, snapshot.last_event_seq, _EVENTS_PER_PAGE):
        snapshot, changed = fold_events(snapshot, steps, events)
        steps |= changed
    return snapshot


def _fold_current(connection: sa.Connection, engine_run_id: str) -> RunSnapshot:
    """Return the stored snapshot with all later events folded in."""
    row = connection.execute(sa.select(run_head).where(run_head.c.engine_run_id == engine_run_id)).one_or_none()
    snapshot = RunSnapshot(engine_run_id=engine_run_id) if row is None else decode_snapshot(row)
    while events := fetch_summaries(connection, engine_run_id, snapshot.last_event_seq, _EVENTS_PER_PAGE):
        snapshot, _changed = fold_events(snapshot, read_steps(connection, snapshot, events), events)
    return snapshot


def read_steps(
    connection: sa.Connection, snapshot: RunSnapshot, events: Sequence[EventSummary]
) -> dict[str, StepStatus]:
    """Return the statuses that the steps of these events had when the snapshot was made.

    Only the last status of a step counts. An ended run takes no event, so that its steps need not be read.
    """
    if not snapshot.last_event_seq or snapshot.status.is_terminal:
        return {}
    step_ids = dict.fromkeys(event.step_id for event in events if event.step_id)
    given = ((step_id, snapshot.engine_run_id, snapshot.last_event_seq) for step_id in step_ids)
    rows = _READ_STEPS.execute(connection, given)
    return {row.step_id: status for row in rows if (status := STEP_STATUS_AFTER.get(row.event_type))}


def _decode_head(row: sa.Row[Any]) -> RunHead:
    return RunHead(**pick_fields(RunHead, row))
