"""Keeps the events of runs, append-only and in one order a run: the adapter of `RunEventStore` for both databases.

What the ledger itself changes is told by `writer`, in the transaction of the change. Snapshots are kept up by
`projection`.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.errors import BadEvent, LedgerUnavailable, NoSuchEvents, RunClosed, RunOpen
from ads_pipeline.ledger import database
from ads_pipeline.ledger.event_rows import event_fields, logged_of, placed, snapshot_of
from ads_pipeline.ledger.event_statements import EventStatements
from ads_pipeline.ledger.rows import clock_of
from ads_pipeline.ledger.tables import instant_text, run_events, run_head, run_snapshots, run_steps
from ads_pipeline.run_events import LEDGER_TYPES, REPEATABLE, Appended, Event, Logged, Origin
from ads_pipeline.run_snapshots import FIRST_PAGE, RunSnapshot, StepStatus, fold

LARGEST_PAGE: Final = 10_000
PLAN_VERSION: Final = f"ads_pipeline-{version('ads_pipeline')}"
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

    def fetch(self, run_id: str, *, after_seq: int = 0, limit: int = FIRST_PAGE) -> list[Logged]:
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
            raise NoSuchEvents(run_id, "no event of it was ever appended")
        return snapshot, steps

    def last_words(self, run_id: str, steps: Sequence[str]) -> dict[str, Logged]:
        """The last event about each of these steps that has one."""
        latest = (
            sa.select(sa.func.max(run_events.c.run_seq))
            .where(run_events.c.run_id == run_id, run_events.c.step_id.in_(steps))
            .group_by(run_events.c.step_id)
        )
        found = map(logged_of, self._execute(_events_of(run_id).where(run_events.c.run_seq.in_(latest))))
        return {logged.event.step_id: logged for logged in found if logged.event.step_id}

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
            snapshot, steps = RunSnapshot(run_id=run_id), dict[str, StepStatus]()
            while events := fetch(connection, run_id, snapshot.last_event_seq, _REPLAYED):
                snapshot, changed = fold(snapshot, steps, events)
                steps |= changed
            return snapshot

        found = database.transact(self.engine, read)
        if not found.last_event_seq:
            head = self.head(run_id)
            raise NoSuchEvents(
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


class EventLog(EventReader):
    """Read and append. It has no way to write what the ledger says of partitions."""

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None) -> None:
        super().__init__(engine, clock=clock)
        self._sql = EventStatements(engine.dialect.name)

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, clock: Callable[[], datetime] | None = None) -> Iterator[Self]:
        with database.opened(url) as engine:
            yield cls(engine, clock=clock)

    def append(self, event: Event) -> Appended:
        """Keep an event that is not kept yet; say where it is. Safe to send again, also when the answer was lost."""
        return self.append_many([event])[0]

    def append_many(self, events: Sequence[Event]) -> list[Appended]:
        """Keep those of the events that are not kept yet, in the order given, in one transaction."""
        for event in events:
            if event.event_type in LEDGER_TYPES:
                raise BadEvent("event_type", f"{event.event_type} is told by the ledger itself, with its change")
        return database.transact(self.engine, lambda connection: self._append_many(connection, events))

    def retire(self, run_id: str) -> int:
        """Delete all events of a run that has ended, and leave a tombstone; how many they were."""

        def work(connection: sa.Connection) -> int:
            head = connection.execute(
                sa.select(run_head).where(run_head.c.run_id == run_id).with_for_update()
            ).one_or_none()
            if head is None:
                raise NoSuchEvents(run_id, "no event of it was ever appended")
            if head.retired_at is not None:
                return 0
            kept = connection.execute(sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id)).one_or_none()
            snapshot = snapshot_of(kept) if kept else RunSnapshot(run_id=run_id)
            if head.projected_seq < head.last_seq or not snapshot.status.terminal:
                raise RunOpen(run_id, str(snapshot.status) if kept else "not projected yet")
            retired = sa.update(run_head).where(run_head.c.run_id == run_id).values(retired_at=self.now(connection))
            connection.execute(retired)
            return int(head.last_seq - kept.holes) if kept else 0

        return database.transact(self.engine, work)

    def retire_before(self, moment: datetime) -> list[str]:
        """Retire the runs that ended before a moment; which they were."""
        return [head.run_id for head in self.ended_before(moment) if self.retire(head.run_id)]

    def _append_many(self, connection: sa.Connection, events: Sequence[Event]) -> list[Appended]:
        now = self.now(connection)
        numbered = self._numbered(connection, events, now)
        rows = self._look(connection, numbered, now)
        first: dict[tuple[str, str], int] = {}  # which of the call's events is kept under a key that is new
        for number, (event, row) in enumerate(zip(numbered, rows, strict=True)):
            _check_open(event, row)
            if row.run_seq is None:
                first.setdefault(_key(event), number)
        places = self._insert(connection, (event_fields(numbered[number]) for number in first.values()), now)
        answers = []
        for number, (event, row) in enumerate(zip(numbered, rows, strict=True)):
            kept = first.get(_key(event), number)
            payload = row.event_data if row.run_seq else numbered[kept].payload
            answers.append(
                Appended(
                    run_seq=row.run_seq or places[_key(event)],
                    idempotent=row.run_seq is not None or kept != number,
                    payload_conflict=payload != event.payload,
                )
            )
        self._count_conflicts(connection, numbered, answers)
        return answers

    def _count_conflicts(
        self, connection: sa.Connection, events: Sequence[Event], answers: Sequence[Appended]
    ) -> None:
        both = zip(events, answers, strict=True)
        conflicts = Counter(event.run_id for event, answer in both if answer.payload_conflict)
        if conflicts:
            counted = ({"run_id": run_id, "number": number} for run_id, number in conflicts.items())
            self._sql.count_conflicts.run(connection, counted)

    def _insert(
        self, connection: sa.Connection, rows: Iterable[dict[str, Any]], now: datetime
    ) -> dict[tuple[str, str], int]:
        listed = placed(rows, now)
        if not listed:
            return {}
        *before, last = self._sql.append
        for statement in before:
            statement.run(connection, listed)
        return {(row.run_id, row.idempotency_key): row.run_seq for row in last.run(connection, listed)}

    def _look(self, connection: sa.Connection, events: Sequence[Event], now: datetime) -> Sequence[sa.Row[Any]]:
        """What is there of these events, holding their runs' locks."""
        asked = [
            {"place": place, "run_id": event.run_id, "idempotency_key": event.idempotency_key}
            for place, event in enumerate(events)
        ]
        rows = self._sql.look.run(connection, asked).all()
        if any(row.last_seq is None for row in rows):
            self._open(connection, events, now)
            rows = self._sql.look.run(connection, asked).all()
        if any(row.last_seq != row.seen_seq for row in rows):
            rows = self._sql.look.run(connection, asked).all()  # others appended while their locks were waited for
        return rows

    def _open(self, connection: sa.Connection, events: Sequence[Event], now: datetime) -> None:
        plans = {event.run_id: event.plan_version for event in reversed(events)}
        at = instant_text(now)
        rows = ({"run_id": run, "plan_version": plan, "appended_at": at} for run, plan in plans.items())
        self._sql.open_heads.run(connection, rows)

    def _numbered(self, connection: sa.Connection, events: Sequence[Event], now: datetime) -> list[Event]:
        """Numbers what may come again: an event that is there already has its number, a new one gets the next."""
        waiting = [event for event in events if event.logical_attempt_id is None]
        if not waiting:
            return list(events)
        self._open(connection, events, now)
        runs = sorted({event.run_id for event in events})  # all of the call, for locks are taken in one order
        locked = sa.select(run_head.c.run_id).where(run_head.c.run_id.in_(runs)).order_by(run_head.c.run_id)
        connection.execute(locked.with_for_update()).all()
        earlier = connection.execute(
            sa.select(run_events).where(run_events.c.run_id.in_(runs), run_events.c.event_type.in_(REPEATABLE))
        ).all()
        number = {(row.run_id, row.event_id): row.logical_attempt_id for row in earlier}
        last = Counter[tuple[str, str]]()
        for row in earlier:
            last[row.run_id, row.event_type] = max(last[row.run_id, row.event_type], row.logical_attempt_id)
        for event in events:  # a number that the call itself brings is taken as well
            if event.logical_attempt_id is not None and event.event_type in REPEATABLE:
                number.setdefault((event.run_id, event.event_id), event.logical_attempt_id)
                last[event.run_id, event.event_type] = max(
                    last[event.run_id, event.event_type], event.logical_attempt_id
                )
        for event in waiting:
            if (event.run_id, event.event_id) not in number:
                last[event.run_id, event.event_type] += 1
                number[event.run_id, event.event_id] = last[event.run_id, event.event_type]
        return [
            event if event.logical_attempt_id is not None else event.numbered(number[event.run_id, event.event_id])
            for event in events
        ]


def own_origin() -> Origin:
    """The run of whoever writes without being one of an engine's."""
    return Origin(run_id=str(uuid.uuid4()), plan_version=PLAN_VERSION)


@contextmanager
def closing_run(log: EventLog, origin: Origin) -> Iterator[None]:
    """Ends the origin's run as the block ends, if anything was told of it."""
    ended = "RunFailed"
    try:
        yield
        ended = "RunCompleted"
    finally:
        # An outage now would hide how the block itself ended; the run then only stays open.
        with suppress(LedgerUnavailable):
            if log.head(origin.run_id) is not None:
                log.append(origin.event(ended, at=datetime.now(UTC)))


def fetch(connection: sa.Connection, run_id: str, after_seq: int, limit: int) -> list[Logged]:
    statement = _events_of(run_id).where(run_events.c.run_seq > after_seq).order_by(run_events.c.run_seq).limit(limit)
    return [logged_of(row) for row in connection.execute(statement)]


def _events_of(run_id: str) -> sa.Select[Any]:
    with_plan = sa.select(run_events, run_head.c.plan_version)
    return with_plan.join(run_head, run_head.c.run_id == run_events.c.run_id).where(run_events.c.run_id == run_id)


def _opened(connection: sa.Connection, run_id: str) -> tuple[RunSnapshot, dict[str, StepStatus]]:
    """The kept snapshot with what was appended since folded in, and the steps which that names."""
    kept = connection.execute(sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id)).one_or_none()
    snapshot, steps = snapshot_of(kept) if kept else RunSnapshot(run_id=run_id), dict[str, StepStatus]()
    while events := fetch(connection, run_id, snapshot.last_event_seq, _REPLAYED):
        steps = steps_of(connection, run_id, events) | steps
        snapshot, changed = fold(snapshot, steps, events)
        steps |= changed
    return snapshot, steps


def steps_of(connection: sa.Connection, run_id: str, events: Sequence[Logged]) -> dict[str, StepStatus]:
    """What the steps that these events name were when the run was last projected."""
    named = sorted({logged.event.step_id for logged in events if logged.event.step_id})
    statement = sa.select(run_steps).where(run_steps.c.run_id == run_id, run_steps.c.step_id.in_(named))
    return {row.step_id: StepStatus(row.status) for row in connection.execute(statement)}


def _check_open(event: Event, row: sa.Row[Any]) -> None:
    if row.retired_at is not None:
        raise RunClosed(event.run_id, "its events were retired")
    if row.plan_version != event.plan_version:
        raise RunClosed(event.run_id, f"it follows plan {row.plan_version}, the event plan {event.plan_version}")


def _key(event: Event) -> tuple[str, str]:
    return event.run_id, event.idempotency_key
