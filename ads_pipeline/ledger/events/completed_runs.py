"""Completes Dagster runs: emits their last events, closes their leases and records attempts without a verdict.

Sensors call it when Dagster reports that a run has ended. It cannot record a verdict. Completing a run is
idempotent, also for several processes at once.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import DEFAULT_TENANCY, RAW, AttemptOutcome, Tenancy
from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, Run, parse_key
from ads_pipeline.domain.run_events import Event, EventOrigin
from ads_pipeline.domain.run_snapshots import RunSnapshot, RunStatus, StepStatus
from ads_pipeline.ledger.events.event_log import COMMAND, PLAN_VERSION, EventLog
from ads_pipeline.ledger.events.event_reader import fold_later_events
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import leases, run_events, run_head
from ads_pipeline.ledger.sql.row_mapping import decode_run, encode_key
from ads_pipeline.ledger.state.run_history import JUDGED_FLAGS
from ads_pipeline.ledger.write_steps.leases import close_lease, select_expired_leases
from ads_pipeline.ledger.write_steps.partition_status import AttemptResult, PartitionStatuses
from ads_pipeline.ledger.write_steps.transactions import LOCK_STATES

# A command has no lease. One that works emits an event for each partition or load, so a silent one was killed.
COMMAND_SILENCE: Final = timedelta(hours=2)
COMMAND_KILLED: Final = (
    f"the command emitted no event for {COMMAND_SILENCE // timedelta(hours=1)} hours: it was killed"
)
# For each final status: the event of the run, the event of its unjudged steps, and the outcome of their attempts.
COMPLETION_EVENTS: Final = {
    RunStatus.COMPLETED: ("RunCompleted", "StepFailed", AttemptOutcome.FAILED),
    RunStatus.FAILED: ("RunFailed", "StepFailed", AttemptOutcome.FAILED),
    RunStatus.CANCELLED: ("RunCancelled", "StepCancelled", AttemptOutcome.CANCELLED),
}


class RunCompletionLog(EventLog):
    """An event log that also completes runs."""

    def __init__(
        self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None, tenancy: Tenancy = DEFAULT_TENANCY
    ) -> None:
        super().__init__(engine, clock=clock)
        self._statuses = PartitionStatuses(tenancy)

    def list_open_runs(self, limit: int = 1_000) -> list[str]:
        """Return the ids of runs whose stored snapshot has not ended, sorted."""
        is_open = run_head.c.ended_at.is_(None), run_head.c.status.is_not(None)
        statement = sa.select(run_head.c.engine_run_id).where(*is_open)
        return [row.engine_run_id for row in self._execute(statement.order_by(run_head.c.engine_run_id).limit(limit))]

    def list_expired_runs(self, limit: int = 1_000) -> list[str]:
        """Return the ids of runs whose lease has expired."""

        def read(connection: sa.Connection) -> list[str]:
            expired = connection.execute(select_expired_leases(self.now(connection)).limit(limit))
            return [lease.engine_run_id for lease in expired]

        return database.transact(self.engine, read)

    def close_silent_commands(self) -> list[str]:
        """Close the runs of commands that were killed, two hours after their newest event. Return their ids.

        The snapshots must be current. A command that ends by itself closes its own run.
        """
        closed = database.transact(self.engine, self._list_silent_commands)
        for engine_run_id in closed:
            origin = EventOrigin(engine_run_id=engine_run_id, plan_version=PLAN_VERSION, adapter_version=COMMAND)
            self.complete_run(origin, RunStatus.FAILED, reason=COMMAND_KILLED)
        return closed

    def _list_silent_commands(self, connection: sa.Connection) -> list[str]:
        silent_since = self.now(connection) - COMMAND_SILENCE
        first = sa.and_(run_events.c.engine_run_id == run_head.c.engine_run_id, run_events.c.run_seq == 1)
        statement = (
            sa.select(run_head.c.engine_run_id)
            .join(run_events, first)
            .where(
                run_head.c.ended_at.is_(None),
                run_head.c.status.is_not(None),
                run_head.c.last_at < silent_since,
                run_events.c.adapter_version == COMMAND,
                ~sa.exists().where(leases.c.engine_run_id == run_head.c.engine_run_id),
            )
        )
        return list(connection.scalars(statement.order_by(run_head.c.engine_run_id)))

    def complete_run(
        self, origin: EventOrigin, status: RunStatus, *, reason: str | None = None
    ) -> list[PartitionKey]:
        """Append the last events of a run. Return the partitions whose sealed runs it left without a verdict.

        The call also closes the run's lease. If the run still works, the ledger then refuses its writes.
        """
        return database.transact(self.engine, lambda connection: self._complete(connection, origin, status, reason))

    def _complete(
        self, connection: sa.Connection, origin: EventOrigin, status: RunStatus, reason: str | None
    ) -> list[PartitionKey]:
        now = self.now(connection)
        head = connection.execute(
            sa.select(run_head).where(run_head.c.engine_run_id == origin.engine_run_id)
        ).one_or_none()
        if head is not None:  # the run may have started under an earlier release
            origin = replace(origin, plan_version=head.plan_version)
        run_event, step_event, outcome = COMPLETION_EVENTS[status]
        event_data = {"why": reason} if reason else None
        last = origin.make_event(run_event, at=now, event_data=event_data)
        running = self._lock_running_steps(connection, last, now)
        close_lease(connection, origin.engine_run_id, now)
        if running is None:
            return []
        unjudged = self._find_unjudged_runs(connection, running)
        skipped = ("StepSkipped", {"why": "no run of this partition awaits a verdict"})
        events: list[Event] = []
        for key in running:
            event_type, data = (step_event, event_data) if key in unjudged else skipped
            events.append(origin.make_event(event_type, at=now, step_id=str(key), event_data=data))
        results = self._append_many(connection, [*events, last])
        left = [key for key, result in zip(running, results, strict=False) if result.persisted and key in unjudged]
        attempts = [AttemptResult(key=key, attempt_id=unjudged[key].run_id, outcome=outcome) for key in left]
        self._statuses.record_attempts(connection, RAW, attempts, now)
        return left

    def _lock_running_steps(self, connection: sa.Connection, last: Event, now: datetime) -> list[PartitionKey] | None:
        """Lock the partitions of the run's running steps and its head. Return None if the run has already ended.

        Only the events name the rows to lock. So this reads the events again once it holds the locks.
        """
        steps = dict[str, StepStatus]()
        snapshot = fold_later_events(connection, RunSnapshot(engine_run_id=last.engine_run_id), steps)
        if snapshot.status.is_terminal:
            return None
        locked = _find_running_partitions(steps)
        LOCK_STATES.execute(connection, map(encode_key, locked)).all()
        self._insert_missing_heads(connection, [last], now)
        connection.execute(
            sa.select(run_head.c.engine_run_id)
            .where(run_head.c.engine_run_id == last.engine_run_id)
            .with_for_update()
        )
        if fold_later_events(connection, snapshot, steps).status.is_terminal:
            return None
        running = _find_running_partitions(steps)
        if not set(running) <= set(locked):
            raise database.ConcurrentWrite("a step started while its run was being completed")
        return running

    def _find_unjudged_runs(self, connection: sa.Connection, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Run]:
        """Return the newest registered run of each partition that awaits a verdict."""
        rows = JUDGED_FLAGS.execute(connection, map(encode_key, keys))
        return {run.key: run for run in (decode_run(row) for row in rows if not row.is_judged)}


def _find_running_partitions(steps: Mapping[str, StepStatus]) -> list[PartitionKey]:
    """Return the running steps that are partitions. Other engines may use any step id."""
    keys = []
    for step, status in steps.items():
        if status is StepStatus.RUNNING:
            with suppress(BadName):
                keys.append(parse_key(step))
    return sorted(keys)
