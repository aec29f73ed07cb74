"""Reads run events, run heads and snapshots. `event_log` appends events."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.run_events import CONTRACT_VERSION, LEDGER_TYPES, LoggedEvent
from ads_pipeline.domain.run_snapshots import DEFAULT_PAGE_SIZE, RunSnapshot, StepStatus, fold_events
from ads_pipeline.errors import EventsNotFound
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_rows import decode_event, decode_snapshot
from ads_pipeline.ledger.row_mapping import database_clock
from ads_pipeline.ledger.tables import Instant, run_events, run_head, run_snapshots, run_steps

LARGEST_PAGE: Final = 10_000
_EVENTS_PER_PAGE: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """The head row of a run: its last `run_seq`, and how many duplicates came with another payload."""

    run_id: str
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

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None) -> None:
        self.engine, self._clock = engine, clock
        self._read_clock = sa.select(database_clock(engine.dialect.name))

    def fetch(self, run_id: str, *, after_seq: int = 0, limit: int = DEFAULT_PAGE_SIZE) -> list[LoggedEvent]:
        """Return the next events of a run after `after_seq`, in order. Raises ValueError for a bad limit."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"limit must be 1 to {LARGEST_PAGE}, not {limit}")
        if after_seq < 0:
            raise ValueError(f"after_seq must be 0 or more, not {after_seq}")
        return database.transact(self.engine, lambda connection: fetch_events(connection, run_id, after_seq, limit))

    def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        """Return the stored snapshot of a run, or None if no event of the run is folded yet."""
        rows = self._execute(sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id))
        return decode_snapshot(rows[0]) if rows else None

    def get_current_snapshot(self, run_id: str) -> RunSnapshot:
        """Return the stored snapshot with all later events folded in. Nothing is stored.

        Raises EventsNotFound for an unknown run.
        """
        return self.get_current_run(run_id, ())[0]

    def get_current_run(
        self, run_id: str, statuses: Iterable[StepStatus] = tuple(StepStatus)
    ) -> tuple[RunSnapshot, dict[str, StepStatus]]:
        """Return the current snapshot and the steps with these statuses, by step id, as of one moment.

        Raises EventsNotFound for an unknown run.
        """
        requested = sorted(statuses)

        def read(connection: sa.Connection) -> tuple[RunSnapshot, dict[str, StepStatus]]:
            database.use_one_snapshot(connection)
            snapshot, changed = _fold_current(connection, run_id)
            stored = sa.select(run_steps).where(run_steps.c.run_id == run_id, run_steps.c.status.in_(requested))
            steps = {row.step_id: StepStatus(row.status) for row in connection.execute(stored)} | changed
            return snapshot, {step: status for step, status in sorted(steps.items()) if status in requested}

        snapshot, steps = database.transact(self.engine, read)
        if not snapshot.last_event_seq:
            raise EventsNotFound(run_id, "it has no events")
        return snapshot, steps

    def get_last_step_events(self, run_id: str, steps: Sequence[str]) -> dict[str, LoggedEvent]:
        """Return the last event of each of these steps. Steps without events are left out."""
        latest = (
            sa.select(sa.func.max(run_events.c.run_seq))
            .where(run_events.c.run_id == run_id, run_events.c.step_id.in_(steps))
            .group_by(run_events.c.step_id)
        )
        rows = self._execute(_select_events(run_id).where(run_events.c.run_seq.in_(latest)))
        return {logged.event.step_id: logged for logged in map(decode_event, rows) if logged.event.step_id}

    def find_step_events(self, step_id: str, limit: int = 20) -> list[LoggedEvent]:
        """Return the last events of a step in all runs, oldest first.

        There is no index on `step_id`, because it would slow every append. The stored steps name the runs to search.
        The newest runs with unfolded events are searched too.
        """

        def read(connection: sa.Connection) -> list[LoggedEvent]:
            database.use_one_snapshot(connection)
            runs = {row.run_id for select in _select_step_runs(step_id, limit) for row in connection.execute(select)}
            events = (
                sa.select(run_events, run_head.c.plan_version)
                .join(run_head, run_head.c.run_id == run_events.c.run_id)
                .where(run_events.c.run_id.in_(sorted(runs)), run_events.c.step_id == step_id)
                .order_by(run_events.c.persisted_at.desc(), run_events.c.run_id.desc(), run_events.c.run_seq.desc())
                .limit(limit)
            )
            return [decode_event(row) for row in connection.execute(events)][::-1]

        return database.transact(self.engine, read)

    def find_runs(self, prefix: str, limit: int = 10) -> list[str]:
        """Return the ids of the runs that start with the prefix, sorted. An exact match comes first."""
        # A range scan of the primary key: "~" sorts after every character that a run id may contain.
        matches = sa.and_(run_head.c.run_id >= prefix, run_head.c.run_id < prefix + "~")
        statement = sa.select(run_head.c.run_id).where(matches).order_by(run_head.c.run_id).limit(limit)
        return [row.run_id for row in self._execute(statement)]

    def project_snapshot(self, run_id: str) -> RunSnapshot:
        """Fold all events of a run, from the first one, into a new snapshot. Nothing is stored.

        Raises EventsNotFound for an unknown run and for a retired one.
        """

        def read(connection: sa.Connection) -> RunSnapshot:
            database.use_one_snapshot(connection)
            return fold_later_events(connection, RunSnapshot(run_id=run_id), {})

        snapshot = database.transact(self.engine, read)
        if not snapshot.last_event_seq:
            head = self.get_head(run_id)
            raise EventsNotFound(
                run_id, "its events were retired" if head and head.retired_at else "it has no events"
            )
        return snapshot

    def get_head(self, run_id: str) -> RunHead | None:
        """Return the head of a run, or None for an unknown run."""
        rows = self._execute(sa.select(run_head).where(run_head.c.run_id == run_id))
        return RunHead(**rows[0]._mapping) if rows else None

    def list_newest_runs(self, limit: int = 20) -> list[tuple[RunHead, RunSnapshot | None]]:
        """Return the newest runs with their stored snapshots, newest first."""
        heads = self._execute(
            sa.select(run_head).order_by(run_head.c.opened_at.desc(), run_head.c.run_id).limit(limit)
        )
        run_ids = [row.run_id for row in heads]
        rows = self._execute(sa.select(run_snapshots).where(run_snapshots.c.run_id.in_(run_ids)))
        snapshots = {row.run_id: decode_snapshot(row) for row in rows}
        return [(RunHead(**row._mapping), snapshots.get(row.run_id)) for row in heads]

    def list_lagging_runs(self, limit: int = 100, *, after: str = "") -> list[str]:
        """Return the ids of runs with unfolded events, sorted, after the id `after`."""
        lagging = run_head.c.last_seq > run_head.c.projected_seq
        statement = sa.select(run_head.c.run_id).where(lagging, run_head.c.run_id > after)
        return [row.run_id for row in self._execute(statement.order_by(run_head.c.run_id).limit(limit))]

    def list_changed_runs(self, since: datetime) -> list[str]:
        """Return the ids of the runs with an event at or after `since`, sorted."""
        statement = sa.select(run_head.c.run_id).where(run_head.c.last_at >= sa.literal(since, Instant()))
        return [row.run_id for row in self._execute(statement.order_by(run_head.c.run_id))]

    def list_changed_partitions(self, run_ids: Collection[str], since: datetime) -> list[PartitionKey]:
        """Return the partitions that these runs changed at or after `since`, by the ledger's own events, sorted."""
        changes = (
            run_events.c.run_id.in_(run_ids),
            run_events.c.persisted_at >= sa.literal(since, Instant()),
            run_events.c.event_type.in_(sorted(LEDGER_TYPES)),
        )
        rows = self._execute(sa.select(run_events.c.step_id).where(*changes).distinct()) if run_ids else ()
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
        joined = run_events.join(run_head, run_head.c.run_id == run_events.c.run_id)
        return int(self._execute(sa.select(sa.func.count()).select_from(joined).where(*changes))[0][0])

    def list_retirable_runs(self, moment: datetime) -> list[RunHead]:
        """Return the runs that ended before `moment`, are folded to the end and still have events, by id."""
        rows = self._execute(
            sa.select(run_head)
            .join(run_snapshots, run_head.c.run_id == run_snapshots.c.run_id)
            .where(
                run_snapshots.c.ended_at < moment,
                run_head.c.retired_at.is_(None),
                run_head.c.projected_seq == run_head.c.last_seq,
            )
            .order_by(run_head.c.run_id)
        )
        return [RunHead(**row._mapping) for row in rows]

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
            .where(run_events.c.run_id == run_head.c.run_id, run_events.c.run_seq > run_head.c.projected_seq)
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


def fetch_events(connection: sa.Connection, run_id: str, after_seq: int, limit: int) -> list[LoggedEvent]:
    statement = (
        _select_events(run_id).where(run_events.c.run_seq > after_seq).order_by(run_events.c.run_seq).limit(limit)
    )
    return [decode_event(row) for row in connection.execute(statement)]


def fold_later_events(connection: sa.Connection, snapshot: RunSnapshot, steps: dict[str, StepStatus]) -> RunSnapshot:
    """Return the snapshot with all later events folded in. Updates `steps`, which holds all steps of the run."""
    while events := fetch_events(connection, snapshot.run_id, snapshot.last_event_seq, _EVENTS_PER_PAGE):
        snapshot, changed = fold_events(snapshot, steps, events)
        steps |= changed
    return snapshot


def _select_events(run_id: str) -> sa.Select[Any]:
    with_plan = sa.select(run_events, run_head.c.plan_version)
    return with_plan.join(run_head, run_head.c.run_id == run_events.c.run_id).where(run_events.c.run_id == run_id)


def _select_step_runs(step_id: str, limit: int) -> list[sa.Select[Any]]:
    """Build two queries: the newest runs with this step, and the newest runs with unfolded events."""
    newest = sa.select(run_head.c.run_id).order_by(run_head.c.opened_at.desc()).limit(limit)
    has_step = sa.exists().where(run_steps.c.run_id == run_head.c.run_id, run_steps.c.step_id == step_id)
    return [newest.where(has_step), newest.where(run_head.c.last_seq > run_head.c.projected_seq)]


def _fold_current(connection: sa.Connection, run_id: str) -> tuple[RunSnapshot, dict[str, StepStatus]]:
    """Return the stored snapshot with all later events folded in, and the steps that these events name."""
    row = connection.execute(sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id)).one_or_none()
    snapshot, steps = decode_snapshot(row) if row else RunSnapshot(run_id=run_id), dict[str, StepStatus]()
    while events := fetch_events(connection, run_id, snapshot.last_event_seq, _EVENTS_PER_PAGE):
        steps = read_steps(connection, run_id, events) | steps
        snapshot, changed = fold_events(snapshot, steps, events)
        steps |= changed
    return snapshot, steps


def read_steps(connection: sa.Connection, run_id: str, events: Sequence[LoggedEvent]) -> dict[str, StepStatus]:
    """Return the stored statuses of the steps that these events name."""
    step_ids = sorted({logged.event.step_id for logged in events if logged.event.step_id})
    statement = sa.select(run_steps).where(run_steps.c.run_id == run_id, run_steps.c.step_id.in_(step_ids))
    return {row.step_id: StepStatus(row.status) for row in connection.execute(statement)}
