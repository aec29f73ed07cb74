"""Appends run events and retires runs; implements `RunEventStore` on Postgres and SQLite.

The ledger emits its own events through `transactions`, in the transaction of each change. `snapshots` folds
events into snapshots.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import BadEvent, EventsNotFound, LedgerRefused, RunClosed, RunOpen
from ads_pipeline.domain.run_events import LEDGER_TYPES, REPEATABLE, AppendResult, Event, EventOrigin
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import instant_text, run_events, run_head
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline.ledger.sql.statements import Call, execute_in_order
from ads_pipeline.ledger.write_steps.audit_log import log_request
from ads_pipeline.ledger.write_steps.event_rows import (
    COUNT_CONFLICTS,
    FIND_EXISTING,
    INSERT_MISSING_HEADS,
    READ_LAST_SEQS,
    append_in_order,
    decode_snapshot,
    encode_event,
)

RETIREMENT: Final = "retire_events"  # in the log of actions
PLAN_VERSION: Final = f"ads_pipeline-{version('ads_pipeline')}"
COMMAND: Final = "ads-pipeline-command"  # the adapter of the events of commands


class EventLog(EventReader):
    """Reads and appends run events. It cannot change the state of a partition."""

    engine: sa.Engine

    def append(self, event: Event) -> AppendResult:
        """Append an event, unless it exists already, and return its position. The call is safe to repeat."""
        return self.append_many([event])[0]

    def append_many(self, events: Sequence[Event]) -> list[AppendResult]:
        """Append the events that do not exist yet, in the given order, in one transaction.

        Raises BadEvent for an event type that only the ledger emits, and RunClosed for a retired run or another plan.
        """
        for event in events:
            if event.event_type in LEDGER_TYPES:
                raise BadEvent("event_type", f"only the ledger emits {event.event_type}, when it makes the change")
        if all(event.logical_attempt_id is not None for event in events):
            with suppress(LedgerRefused):  # an event exists or a run is closed: _append_many finds out which
                return database.transact(self.engine, lambda connection: self._append_new(connection, events))
        return database.transact(self.engine, lambda connection: self._append_many(connection, events))

    def retire(self, engine_run_id: str, request: ActionRequest | None = None) -> int:
        """Delete all events of an ended run and return their number. The head and the snapshot stay.

        The request of an operator is logged in the same transaction. The nightly maintenance has none.
        Raises EventsNotFound for an unknown run, and RunOpen for a run that is open or not folded to its end.
        """

        def work(connection: sa.Connection) -> int:
            head = connection.execute(
                sa.select(run_head).where(run_head.c.engine_run_id == engine_run_id).with_for_update()
            ).one_or_none()
            if head is None:
                raise EventsNotFound(engine_run_id, "it has no events")
            if head.retired_at is not None:
                return 0
            if head.projected_seq < head.last_seq or not decode_snapshot(head).status.is_terminal:
                raise RunOpen(engine_run_id, head.status or "not folded into a snapshot yet")
            now = self.now(connection)
            connection.execute(
                sa.update(run_head).where(run_head.c.engine_run_id == engine_run_id).values(retired_at=now)
            )
            if request is not None:
                log_request(connection, RETIREMENT, request, changed=0, at=now)
            return int(head.last_seq - head.missing_events)

        return database.transact(self.engine, work)

    def retire_before(self, moment: datetime) -> list[str]:
        """Retire the runs that ended before `moment` and return their ids. Runs with new events are skipped."""
        retired = []
        for head in self.list_retirable_runs(moment):
            with suppress(RunOpen):
                self.retire(head.engine_run_id)
                retired.append(head.engine_run_id)
        return retired

    def _append_new(self, connection: sa.Connection, events: Sequence[Event]) -> list[AppendResult]:
        """Insert the events without looking for existing ones. The database refuses the insert if one exists."""
        positions = self._insert(connection, events, self._clock and self._clock())
        return [AppendResult(run_seq=positions[_event_key(event)], idempotent=False) for event in events]

    def _append_many(self, connection: sa.Connection, events: Sequence[Event]) -> list[AppendResult]:
        now = self.now(connection)
        numbered = self._number_repeatable(connection, events, now)
        rows = self._find_existing(connection, numbered, now)
        first: dict[tuple[str, str], int] = {}  # for each new key, the index of the first event with it
        for index, (event, row) in enumerate(zip(numbered, rows, strict=True)):
            _check_open(event, row)
            if row.run_seq is None:
                first.setdefault(_event_key(event), index)
        positions = self._insert(connection, [numbered[index] for index in first.values()], now)
        results = []
        for index, (event, row) in enumerate(zip(numbered, rows, strict=True)):
            stored = first.get(_event_key(event), index)
            payload = row.event_data if row.run_seq else numbered[stored].payload
            results.append(
                AppendResult(
                    run_seq=row.run_seq or positions[_event_key(event)],
                    idempotent=row.run_seq is not None or stored != index,
                    payload_conflict=payload != event.payload,
                )
            )
        self._count_conflicts(connection, numbered, results)
        return results

    def _count_conflicts(
        self, connection: sa.Connection, events: Sequence[Event], results: Sequence[AppendResult]
    ) -> None:
        pairs = zip(events, results, strict=True)
        conflicts = Counter(event.engine_run_id for event, result in pairs if result.payload_conflict)
        if conflicts:
            rows = (
                {"engine_run_id": engine_run_id, "conflicts": count} for engine_run_id, count in conflicts.items()
            )
            COUNT_CONFLICTS.execute(connection, rows)

    def _insert(
        self, connection: sa.Connection, events: Sequence[Event], now: datetime | None
    ) -> dict[tuple[str, str], int]:
        """Insert the events, and return the `run_seq` of each. The heads are locked in the order of the run ids."""
        if not events:
            return {}
        of_runs = defaultdict[tuple[str, str], list[Event]](list)
        for event in events:
            of_runs[event.engine_run_id, event.plan_version].append(event)
        rows = {run: list(map(encode_event, of_run)) for run, of_run in of_runs.items()}
        read = Call(READ_LAST_SEQS, [(run,) for run, _plan in rows])
        calls = [*append_in_order(rows, instant_text(now) if now else None), read]
        next_seqs = {row.engine_run_id: row.last_seq for row in execute_in_order(connection, calls)}
        positions = dict[tuple[str, str], int]()
        for event in reversed(events):
            positions[_event_key(event)] = next_seqs[event.engine_run_id]
            next_seqs[event.engine_run_id] -= 1
        return positions

    def _find_existing(
        self, connection: sa.Connection, events: Sequence[Event], now: datetime
    ) -> Sequence[sa.Row[Any]]:
        """Lock the heads of the runs, and return one row per event with its run's head and the existing event."""
        keys = [
            {"position": position, "engine_run_id": event.engine_run_id, "idempotency_key": event.idempotency_key}
            for position, event in enumerate(events)
        ]
        rows = FIND_EXISTING.execute(connection, keys).all()
        if any(row.last_seq is None for row in rows):
            self._insert_missing_heads(connection, events, now)
            rows = FIND_EXISTING.execute(connection, keys).all()
        if any(row.last_seq != row.seen_seq for row in rows):
            rows = FIND_EXISTING.execute(connection, keys).all()  # others appended while this waited for the locks
        return rows

    def _insert_missing_heads(self, connection: sa.Connection, events: Sequence[Event], now: datetime) -> None:
        plans = {event.engine_run_id: event.plan_version for event in reversed(events)}
        appended_at = instant_text(now)
        rows = (
            {"engine_run_id": run, "plan_version": plan, "appended_at": appended_at} for run, plan in plans.items()
        )
        INSERT_MISSING_HEADS.execute(connection, rows)

    def _number_repeatable(self, connection: sa.Connection, events: Sequence[Event], now: datetime) -> list[Event]:
        """Number the repeatable events that have no number: a known event keeps its own, a new one gets the next."""
        unnumbered = [event for event in events if event.logical_attempt_id is None]
        if not unnumbered:
            return list(events)
        self._insert_missing_heads(connection, events, now)
        # Every run of the call: locks are taken in one order.
        runs = sorted({event.engine_run_id for event in events})
        locked = (
            sa.select(run_head.c.engine_run_id)
            .where(run_head.c.engine_run_id.in_(runs))
            .order_by(run_head.c.engine_run_id)
        )
        connection.execute(locked.with_for_update()).all()
        earlier = connection.execute(
            sa.select(run_events).where(run_events.c.engine_run_id.in_(runs), run_events.c.event_type.in_(REPEATABLE))
        ).all()
        number = {(row.engine_run_id, row.event_id): row.logical_attempt_id for row in earlier}
        last = Counter[tuple[str, str]]()
        for row in earlier:
            last[row.engine_run_id, row.event_type] = max(
                last[row.engine_run_id, row.event_type], row.logical_attempt_id
            )
        for event in events:  # numbers that the caller assigned are taken as well
            if event.logical_attempt_id is not None and event.event_type in REPEATABLE:
                number.setdefault((event.engine_run_id, event.event_id), event.logical_attempt_id)
                last[event.engine_run_id, event.event_type] = max(
                    last[event.engine_run_id, event.event_type], event.logical_attempt_id
                )
        for event in unnumbered:
            if (event.engine_run_id, event.event_id) not in number:
                last[event.engine_run_id, event.event_type] += 1
                number[event.engine_run_id, event.event_id] = last[event.engine_run_id, event.event_type]
        return [
            event
            if event.logical_attempt_id is not None
            else event.with_occurrence(number[event.engine_run_id, event.event_id])
            for event in events
        ]


def new_origin() -> EventOrigin:
    """Return an origin with a random run id, for a command, which is not a Dagster run and has no lease."""
    return EventOrigin(engine_run_id=str(uuid.uuid4()), plan_version=PLAN_VERSION, adapter_version=COMMAND)


def _check_open(event: Event, row: sa.Row[Any]) -> None:
    if row.retired_at is not None:
        raise RunClosed(event.engine_run_id, "its events were retired")
    if row.plan_version != event.plan_version:
        raise RunClosed(
            event.engine_run_id, f"the run has plan {row.plan_version}, the event has plan {event.plan_version}"
        )


def _event_key(event: Event) -> tuple[str, str]:
    return event.engine_run_id, event.idempotency_key
