"""Answers what happened in runs, and can append nothing.

What is appended, and by whom, is in `event_log`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.run_snapshots import FIRST_PAGE, RunSnapshot, StepStatus, fold
from ads_pipeline.errors import EventsNotFound
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_rows import logged_of, snapshot_of
from ads_pipeline.ledger.row_mapping import clock_of
from ads_pipeline.ledger.tables import run_events, run_head, run_snapshots, run_steps

LARGEST_PAGE: Final = 10_000
_REPLAYED: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """A run as its log stands: how many events it took, and how many were refused for another payload."""

    run_id: str
    plan_version: str
    last_seq: int
    projected_seq: int
    payload_conflicts: int
    opened_at: datetime
    last_at: datetime
    retired_at: datetime | None


class EventReader:
    """Read access to the events of all runs."""

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None) -> None:
        self.engine, self._clock = engine, clock
        self._read_clock = sa.select(clock_of(engine.dialect.name))

    @classmethod
    @contextmanager
    def opened(cls, url: str) -> Iterator[Self]:
        with database.opened(url, read_only=True) as engine:
            yield cls(engine)

    def fetch(self, run_id: str, *, after_seq: int = 0, limit: int = FIRST_PAGE) -> list[LoggedEvent]:
        """The next events of a run behind a place, in order; none when there are none."""
        if not 1 <= limit <= LARGEST_PAGE:
            raise ValueError(f"limit must be 1 to {LARGEST_PAGE}, not {limit}")
        if after_seq < 0:
            raise ValueError(f"after_seq must not be negative, and is {after_seq}")
        return database.transact(self.engine, lambda connection: fetch(connection, run_id, after_seq, limit))

    def get_snapshot(self, run_id: str) -> RunSnapshot | None:
        """The snapshot that is kept of a run; None when nothing of it was projected yet."""
        rows = self._execute(sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id))
        return snapshot_of(rows[0]) if rows else None

    def open_snapshot(self, run_id: str) -> RunSnapshot:
        """The snapshot with what was appended since, which is folded in and not kept; NoSuchEvents for no run."""
        return self.open_run(run_id, ())[0]

    def open_run(
        self, run_id: str, statuses: Iterable[StepStatus] = tuple(StepStatus)
    ) -> tuple[RunSnapshot, dict[str, StepStatus]]:
        """The same with the steps that are so, by name; all of it as of one moment."""
        wanted = sorted(statuses)

        def read(connection: sa.Connection) -> tuple[RunSnapshot, dict[str, StepStatus]]:
            database.hold_still(connection)
            snapshot, since = _opened(connection, run_id)
            kept = sa.select(run_steps).where(run_steps.c.run_id == run_id, run_steps.c.status.in_(wanted))
            steps = {row.step_id: StepStatus(row.status) for row in connection.execute(kept)} | since
            return snapshot, {step: status for step, status in sorted(steps.items()) if status in wanted}

        snapshot, steps = database.transact(self.engine, read)
        if not snapshot.last_event_seq:
            raise EventsNotFound(run_id, "no event of it was ever appended")
        return snapshot, steps

    def last_words(self, run_id: str, steps: Sequence[str]) -> dict[str, LoggedEvent]:
        """The last event about each of these steps that has one."""
        latest = (
            sa.select(sa.func.max(run_events.c.run_seq))
            .where(run_events.c.run_id == run_id, run_events.c.step_id.in_(steps))
            .group_by(run_events.c.step_id)
        )
        found = map(logged_of, self._execute(_events_of(run_id).where(run_events.c.run_seq.in_(latest))))
        return {logged.event.step_id: logged for logged in found if logged.event.step_id}

    def about(self, step_id: str, limit: int = 20) -> list[LoggedEvent]:
        """The last events about a step in whatever run, oldest first; those of retired runs are gone.

        Events are not indexed by step, which would slow every append. The runs are found by their projected steps,
        and of those that are not projected yet the newest are looked through.
        """

        def read(connection: sa.Connection) -> list[LoggedEvent]:
            database.hold_still(connection)
            names = {row.run_id for runs in _runs_about(step_id, limit) for row in connection.execute(runs)}
            told = (
                sa.select(run_events, run_head.c.plan_version)
                .join(run_head, run_head.c.run_id == run_events.c.run_id)
                .where(run_events.c.run_id.in_(sorted(names)), run_events.c.step_id == step_id)
                .order_by(run_events.c.persisted_at.desc(), run_events.c.run_id.desc(), run_events.c.run_seq.desc())
                .limit(limit)
            )
            return [logged_of(row) for row in connection.execute(told)][::-1]

        return database.transact(self.engine, read)

    def find_runs(self, prefix: str, limit: int = 10) -> list[str]:
        """The runs whose names begin so, by name; one whose whole name it is comes first."""
        # A range of the primary key: the tilde stands behind every letter that a name may have.
        begun = sa.and_(run_head.c.run_id >= prefix, run_head.c.run_id < prefix + "~")
        statement = sa.select(run_head.c.run_id).where(begun).order_by(run_head.c.run_id).limit(limit)
        return [row.run_id for row in self._execute(statement)]

    def project_snapshot(self, run_id: str) -> RunSnapshot:
        """The snapshot that all events of a run give, made anew from the first one."""

        def read(connection: sa.Connection) -> RunSnapshot:
            database.hold_still(connection)
            return replayed(connection, RunSnapshot(run_id=run_id), {})

        found = database.transact(self.engine, read)
        if not found.last_event_seq:
            head = self.head(run_id)
            raise EventsNotFound(
                run_id, "its events were retired" if head and head.retired_at else "no event of it was ever appended"
            )
        return found

    def head(self, run_id: str) -> RunHead | None:
        """How a run's log stands; None for a run without one."""
        rows = self._execute(sa.select(run_head).where(run_head.c.run_id == run_id))
        return RunHead(**rows[0]._mapping) if rows else None

    def newest(self, limit: int = 20) -> list[tuple[RunHead, RunSnapshot | None]]:
        """The runs that were opened last, with their snapshots."""
        heads = self._execute(
            sa.select(run_head).order_by(run_head.c.opened_at.desc(), run_head.c.run_id).limit(limit)
        )
        names = [row.run_id for row in heads]
        rows = self._execute(sa.select(run_snapshots).where(run_snapshots.c.run_id.in_(names)))
        snapshots = {row.run_id: snapshot_of(row) for row in rows}
        return [(RunHead(**row._mapping), snapshots.get(row.run_id)) for row in heads]

    def steps(
        self, run_id: str, statuses: Iterable[StepStatus] = tuple(StepStatus), *, after: str = "", limit: int = 1_000
    ) -> list[tuple[str, StepStatus]]:
        """The projected steps of a run that are so, by name, from just behind one."""
        rows = self._execute(
            sa.select(run_steps)
            .where(run_steps.c.run_id == run_id, run_steps.c.step_id > after)
            .where(run_steps.c.status.in_([str(status) for status in statuses]))
            .order_by(run_steps.c.step_id)
            .limit(limit)
        )
        return [(row.step_id, StepStatus(row.status)) for row in rows]

    def behind(self, limit: int = 100, *, after: str = "") -> list[str]:
        """Runs with events that are not in their snapshot yet, by name, from just behind one."""
        late = run_head.c.last_seq > run_head.c.projected_seq
        statement = sa.select(run_head.c.run_id).where(late, run_head.c.run_id > after)
        return [row.run_id for row in self._execute(statement.order_by(run_head.c.run_id).limit(limit))]

    def ended_before(self, moment: datetime) -> list[RunHead]:
        """The runs whose events may be retired because they ended before a moment, by name."""
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

    def lag(self) -> timedelta:
        """For how long the oldest event that is in no snapshot has been waiting; nothing when there is none."""
        oldest = (
            sa.select(run_events.c.persisted_at)
            .where(run_events.c.run_id == run_head.c.run_id, run_events.c.run_seq > run_head.c.projected_seq)
            .order_by(run_events.c.run_seq)
            .limit(1)
            .scalar_subquery()
        )

        def read(connection: sa.Connection) -> timedelta:
            waiting = connection.execute(
                sa.select(oldest.label("since")).where(run_head.c.last_seq > run_head.c.projected_seq)
            )
            since = min((row.since for row in waiting if row.since), default=None)
            return timedelta(0) if since is None else max(timedelta(0), self.now(connection) - since)

        return database.transact(self.engine, read)

    def now(self, connection: sa.Connection) -> datetime:
        """The store's clock, which stamps every event and by which the lag is measured."""
        return self._clock() if self._clock else connection.scalars(self._read_clock).one()

    def _execute(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return database.transact(self.engine, lambda connection: connection.execute(statement).all())


def fetch(connection: sa.Connection, run_id: str, after_seq: int, limit: int) -> list[LoggedEvent]:
    statement = _events_of(run_id).where(run_events.c.run_seq > after_seq).order_by(run_events.c.run_seq).limit(limit)
    return [logged_of(row) for row in connection.execute(statement)]


def replayed(connection: sa.Connection, snapshot: RunSnapshot, steps: dict[str, StepStatus]) -> RunSnapshot:
    """The snapshot with what was told since folded in, page by page; `steps`, all of the run's, go along with it."""
    while events := fetch(connection, snapshot.run_id, snapshot.last_event_seq, _REPLAYED):
        snapshot, changed = fold(snapshot, steps, events)
        steps |= changed
    return snapshot


def _events_of(run_id: str) -> sa.Select[Any]:
    with_plan = sa.select(run_events, run_head.c.plan_version)
    return with_plan.join(run_head, run_head.c.run_id == run_events.c.run_id).where(run_events.c.run_id == run_id)


def _runs_about(step_id: str, limit: int) -> list[sa.Select[Any]]:
    """The newest runs that have this step, and the newest whose steps are not known yet."""
    newest = sa.select(run_head.c.run_id).order_by(run_head.c.opened_at.desc()).limit(limit)
    named = sa.exists().where(run_steps.c.run_id == run_head.c.run_id, run_steps.c.step_id == step_id)
    return [newest.where(named), newest.where(run_head.c.last_seq > run_head.c.projected_seq)]


def _opened(connection: sa.Connection, run_id: str) -> tuple[RunSnapshot, dict[str, StepStatus]]:
    """The kept snapshot with what was appended since folded in, and the steps which that names."""
    kept = connection.execute(sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id)).one_or_none()
    snapshot, steps = snapshot_of(kept) if kept else RunSnapshot(run_id=run_id), dict[str, StepStatus]()
    while events := fetch(connection, run_id, snapshot.last_event_seq, _REPLAYED):
        steps = steps_of(connection, run_id, events) | steps
        snapshot, changed = fold(snapshot, steps, events)
        steps |= changed
    return snapshot, steps


def steps_of(connection: sa.Connection, run_id: str, events: Sequence[LoggedEvent]) -> dict[str, StepStatus]:
    """What the steps that these events name were when the run was last projected."""
    named = sorted({logged.event.step_id for logged in events if logged.event.step_id})
    statement = sa.select(run_steps).where(run_steps.c.run_id == run_id, run_steps.c.step_id.in_(named))
    return {row.step_id: StepStatus(row.status) for row in connection.execute(statement)}
