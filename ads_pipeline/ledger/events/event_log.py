"""Keeps the events of runs, append-only and in one order a run: the adapter of `RunEventStore` for both databases.

What the ledger itself changes is told by `writer`, in the transaction of the change. Snapshots are kept up by
`projection`.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.run_events import LEDGER_TYPES, REPEATABLE, AppendResult, Event, Origin
from ads_pipeline.domain.run_snapshots import RunSnapshot
from ads_pipeline.errors import BadEvent, EventsNotFound, LedgerRefused, LedgerUnavailable, RunClosed, RunOpen
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.append_statements import EventStatements
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.event_rows import event_fields, placed, snapshot_of
from ads_pipeline.ledger.tables import instant_text, run_events, run_head, run_snapshots

PLAN_VERSION: Final = f"ads_pipeline-{version('ads_pipeline')}"


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

    def append(self, event: Event) -> AppendResult:
        """Keep an event that is not kept yet; say where it is. Safe to send again, also when the answer was lost."""
        return self.append_many([event])[0]

    def append_many(self, events: Sequence[Event]) -> list[AppendResult]:
        """Keep those of the events that are not kept yet, in the order given, in one transaction."""
        for event in events:
            if event.event_type in LEDGER_TYPES:
                raise BadEvent("event_type", f"{event.event_type} is told by the ledger itself, with its change")
        if all(event.logical_attempt_id is not None for event in events):
            with suppress(LedgerRefused):  # by a key that is there, or a run that is closed: looking tells which
                return database.transact(self.engine, lambda connection: self._append_new(connection, events))
        return database.transact(self.engine, lambda connection: self._append_many(connection, events))

    def retire(self, run_id: str) -> int:
        """Delete all events of a run that has ended, and leave a tombstone; how many they were."""

        def work(connection: sa.Connection) -> int:
            head = connection.execute(
                sa.select(run_head).where(run_head.c.run_id == run_id).with_for_update()
            ).one_or_none()
            if head is None:
                raise EventsNotFound(run_id, "no event of it was ever appended")
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
        """Retire the runs that ended before a moment; which they were. One of which more is told just now stays."""
        retired = []
        for head in self.ended_before(moment):
            with suppress(RunOpen):
                self.retire(head.run_id)
                retired.append(head.run_id)
        return retired

    def _append_new(self, connection: sa.Connection, events: Sequence[Event]) -> list[AppendResult]:
        """As if none of the events were there: one statement, which the database refuses where one is."""
        places = self._insert(connection, map(event_fields, events), self._clock and self._clock())
        return [AppendResult(run_seq=places[_key(event)], idempotent=False) for event in events]

    def _append_many(self, connection: sa.Connection, events: Sequence[Event]) -> list[AppendResult]:
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
                AppendResult(
                    run_seq=row.run_seq or places[_key(event)],
                    idempotent=row.run_seq is not None or kept != number,
                    payload_conflict=payload != event.payload,
                )
            )
        self._count_conflicts(connection, numbered, answers)
        return answers

    def _count_conflicts(
        self, connection: sa.Connection, events: Sequence[Event], answers: Sequence[AppendResult]
    ) -> None:
        both = zip(events, answers, strict=True)
        conflicts = Counter(event.run_id for event, answer in both if answer.payload_conflict)
        if conflicts:
            counted = ({"run_id": run_id, "number": number} for run_id, number in conflicts.items())
            self._sql.count_conflicts.run(connection, counted)

    def _insert(
        self, connection: sa.Connection, rows: Iterable[dict[str, Any]], now: datetime | None
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


def _check_open(event: Event, row: sa.Row[Any]) -> None:
    if row.retired_at is not None:
        raise RunClosed(event.run_id, "its events were retired")
    if row.plan_version != event.plan_version:
        raise RunClosed(event.run_id, f"it follows plan {row.plan_version}, the event plan {event.plan_version}")


def _key(event: Event) -> tuple[str, str]:
    return event.run_id, event.idempotency_key
