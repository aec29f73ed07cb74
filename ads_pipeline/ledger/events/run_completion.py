"""Ends a run of the engine: what it left unfinished is told as ended, and counts as an attempt without a verdict.

For those who see how runs end, such as sensors: they can tell of it, and cannot write what is safe to read. A run may
be ended any number of times, by many at once; only the first counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW, AttemptOutcome, Tenancy
from ads_pipeline.domain.partition import PartitionKey, Run, parse_key
from ads_pipeline.domain.run_events import Event, Origin
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.errors import BadName
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.leases import end_lease, expired_leases
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import replayed
from ads_pipeline.ledger.reader import HERE
from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_fields, run_in
from ads_pipeline.ledger.rowsets import RowStatement
from ads_pipeline.ledger.state import visibility_queries
from ads_pipeline.ledger.state.verdict_statements import locked_states
from ads_pipeline.ledger.status.partition_status import AttemptFinish, Statuses
from ads_pipeline.ledger.tables import run_head, run_snapshots

# How a run can end: what is told of it, and of the steps that it left with work to do.
ENDINGS: Final = {
    RunStatus.COMPLETED: ("RunCompleted", "StepFailed", AttemptOutcome.FAILED),
    RunStatus.FAILED: ("RunFailed", "StepFailed", AttemptOutcome.FAILED),
    RunStatus.CANCELLED: ("RunCancelled", "StepCancelled", AttemptOutcome.CANCELLED),
}


class RunCompletionLog(EventLog):
    """The log of events for those who watch runs: it also ends them."""

    def __init__(
        self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None, space: Tenancy = HERE
    ) -> None:
        super().__init__(engine, clock=clock)
        self._statuses = Statuses(engine.dialect.name, space)
        self._known = RowStatement("known_runs", engine.dialect.name, visibility_queries.known_runs)
        self._lock = RowStatement("lock_states", engine.dialect.name, lambda rowset: locked_states(rowset(KEY_TYPES)))

    @classmethod
    @contextmanager
    def watching(cls, url: str, *, space: Tenancy = HERE) -> Iterator[Self]:
        with database.opened(url) as engine:
            yield cls(engine, space=space)

    def unended(self, limit: int = 1_000) -> list[str]:
        """The runs that have not ended, as far as they are projected, oldest name first."""
        statement = sa.select(run_snapshots.c.run_id).where(run_snapshots.c.ended_at.is_(None))
        return [row.run_id for row in self._execute(statement.order_by(run_snapshots.c.run_id).limit(limit))]

    def overdue(self, limit: int = 1_000) -> list[str]:
        """The runs that were silent for longer than their leases, and did not say that they ended."""

        def silent(connection: sa.Connection) -> list[str]:
            return [row.run_id for row in connection.execute(expired_leases(self.now(connection)).limit(limit))]

        return database.transact(self.engine, silent)

    def end(self, origin: Origin, ended: RunStatus, *, why: str | None = None) -> list[PartitionKey]:
        """Tell that a run ended and so; the partitions whose sealed runs it left without a verdict.

        Its lease ends with it: should it be at work after all, what it writes is refused.
        """
        return database.transact(self.engine, lambda connection: self._end(connection, origin, ended, why))

    def _end(
        self, connection: sa.Connection, origin: Origin, ended: RunStatus, why: str | None
    ) -> list[PartitionKey]:
        now = self.now(connection)
        head = connection.execute(sa.select(run_head).where(run_head.c.run_id == origin.run_id)).one_or_none()
        if head is not None:  # it is ended by the plan that it began with, whichever release looks after it now
            origin = replace(origin, plan_version=head.plan_version)
        run_event, step_event, outcome = ENDINGS[ended]
        reason = {"why": why} if why else None
        last = origin.event(run_event, at=now, event_data=reason)
        running = self._held(connection, last, now)
        end_lease(connection, origin.run_id, now)
        if running is None:
            return []
        left = self._unjudged(connection, running)
        events: list[Event] = []
        for key in running:
            told = (step_event, reason) if key in left else ("StepSkipped", {"why": "nothing of it awaits a verdict"})
            events.append(origin.event(told[0], at=now, step_id=str(key), event_data=told[1]))
        answers = self._append_many(connection, [*events, last])
        fresh = [key for key, answer in zip(running, answers, strict=False) if answer.persisted and key in left]
        finished = [AttemptFinish(key=key, run_id=left[key].run_id, outcome=outcome) for key in fresh]
        self._statuses.finish(connection, RAW, finished, now)
        return fresh

    def _held(self, connection: sa.Connection, last: Event, now: datetime) -> list[PartitionKey] | None:
        """The partitions that the run began and did not finish, locked as its head is; None when it ended before.

        Which rows to lock is known only from the events, so these are read once more, now that none can be added.
        """
        steps = dict[str, StepStatus]()
        seen = replayed(connection, RunSnapshot(run_id=last.run_id), steps)
        if seen.status.terminal:
            return None
        locked = _running(steps)
        self._lock.run(connection, map(key_fields, locked)).all()
        self._open(connection, [last], now)
        connection.execute(sa.select(run_head.c.run_id).where(run_head.c.run_id == last.run_id).with_for_update())
        if replayed(connection, seen, steps).status.terminal:
            return None
        running = _running(steps)
        if not set(running) <= set(locked):
            raise database.Overtaken("a step was begun while its run was being ended")
        return running

    def _unjudged(self, connection: sa.Connection, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Run]:
        """The newest registered run of each partition that awaits its verdict."""
        rows = self._known.run(connection, map(key_fields, keys))
        return {run.key: run for run in (run_in(row) for row in rows if not row.judged)}


def _running(steps: Mapping[str, StepStatus]) -> list[PartitionKey]:
    """The partitions among the steps that go on; other engines' steps may be anything."""
    found = []
    for step, status in steps.items():
        if status is StepStatus.RUNNING:
            with suppress(BadName):
                found.append(parse_key(step))
    return sorted(found)
