"""Keeps run snapshots current: folds new events into them and raises an alarm when they lag.

A follower folds the events that follow a snapshot without a gap in `run_seq`. A snapshot before a gap is stale. The
next fold of a stale snapshot holds the run's lock and skips the gap.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerRefused, LedgerUnavailable
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import (
    LagLevel,
    LagMonitor,
    RunSnapshot,
    contiguous_prefix,
    fold_events,
)
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import fetch_summaries, read_steps
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import run_head
from ads_pipeline.ledger.write_steps.event_rows import decode_snapshot, encode_snapshot

EVENTS_PER_TRANSACTION: Final = 2_000  # bounds how long a resync locks the run
AlarmCallback = Callable[[LagLevel, timedelta], None]


class FoldedBatch(NamedTuple):
    """The events of one run that one transaction folded."""

    folded: int
    last_seq: int  # of the snapshot after the transaction
    appended_seq: int  # of the run's head at the start


class Follower:
    """Folds new events into the snapshots. Any number of followers may work on the same log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._engine = log.engine
        self._monitor = LagMonitor()

    def catch_up(self, on_alarm: AlarmCallback | None = None) -> int:
        """Fold all events that are visible now, and return their number. Lag alarms go to `on_alarm` first."""
        lag = self._log.get_lag()
        self._monitor, alarms = self._monitor.observe(lag)
        for alarm in alarms:
            if on_alarm is not None:
                on_alarm(alarm, lag)
        folded, last = 0, ""
        while runs := self._log.list_lagging_runs(after=last):
            for engine_run_id in runs:
                folded += self.catch_up_run(engine_run_id, resync=LagLevel.RESYNC in alarms)
            last = runs[-1]
        return folded

    def catch_up_run(self, engine_run_id: str, *, resync: bool = False) -> int:
        """Fold the events that the run has now. Later events wait, or a busy run would block all other runs."""
        batch = self.fold_next_events(engine_run_id, resync=resync)
        folded, appended_seq = batch.folded, batch.appended_seq
        while batch.last_seq < appended_seq:
            batch = self.fold_next_events(engine_run_id, resync=resync)
            folded += batch.folded
        return folded

    def fold_next_events(self, engine_run_id: str, *, resync: bool = False) -> FoldedBatch:
        """Fold the next events of a run into its stored snapshot, in one transaction.

        The fold stops at a gap in `run_seq` and marks the snapshot as stale. A resync, or a fold of a stale snapshot,
        locks the run first. Under the lock no event can be in flight, so missing events are lost and it skips them.
        """
        return database.transact(
            self._engine, lambda connection: self._fold(connection, engine_run_id, resync=resync)
        )

    def _fold(self, connection: sa.Connection, engine_run_id: str, *, resync: bool) -> FoldedBatch:
        head = _read_head(connection, engine_run_id, lock=resync)
        if head is not None and head.stale_since is not None and not resync:
            resync, head = True, _read_head(connection, engine_run_id, lock=True)
        if head is None:
            return FoldedBatch(folded=0, last_seq=0, appended_seq=0)
        before, appended_seq = decode_snapshot(head), head.last_seq
        events = fetch_summaries(connection, engine_run_id, before.last_event_seq, EVENTS_PER_TRANSACTION)
        foldable = events if resync else contiguous_prefix(before.last_event_seq, events)
        after, _changed = fold_events(before, read_steps(connection, before, foldable), foldable)
        if resync:
            is_last_batch = len(events) < EVENTS_PER_TRANSACTION
            last_seq = max(appended_seq, after.last_event_seq) if is_last_batch else after.last_event_seq
            after = replace(after, stale_since=None, last_event_seq=last_seq)
        elif len(foldable) < len(events) or (not events and appended_seq > before.last_event_seq):
            after = replace(after, stale_since=self._log.now(connection))
        missing = after.last_event_seq - before.last_event_seq - len(foldable)
        if after == before and head.status is not None:
            return FoldedBatch(folded=0, last_seq=before.last_event_seq, appended_seq=appended_seq)
        values = encode_snapshot(after) | {"missing_events": head.missing_events + missing}
        if not _store(connection, before, values):  # another follower was faster
            return FoldedBatch(folded=0, last_seq=before.last_event_seq, appended_seq=appended_seq)
        return FoldedBatch(folded=len(foldable), last_seq=after.last_event_seq, appended_seq=appended_seq)


def _read_head(connection: sa.Connection, engine_run_id: str, *, lock: bool) -> sa.Row[Any] | None:
    statement = sa.select(run_head).where(run_head.c.engine_run_id == engine_run_id)
    return connection.execute(statement.with_for_update() if lock else statement).one_or_none()


def _store(connection: sa.Connection, before: RunSnapshot, values: Mapping[str, Any]) -> bool:
    """Replace a snapshot, unless another follower has replaced it. No lock is held while events are folded."""
    is_same = run_head.c.engine_run_id == before.engine_run_id, run_head.c.projected_seq == before.last_event_seq
    return bool(connection.execute(sa.update(run_head).where(*is_same).values(values)).rowcount)


def fold_run(log: EventLog, engine_run_id: str) -> None:
    """Fold the events that the run has now. During an outage, or without the right to store snapshots, do nothing."""
    with suppress(LedgerUnavailable, LedgerRefused):
        Follower(log).catch_up_run(engine_run_id)


@contextmanager
def completing_run(log: EventLog, origin: EventOrigin) -> Iterator[None]:
    """Append RunCompleted or RunFailed when the block ends, if the run has any event, and fold them all.

    So a command leaves no lag behind.
    """
    event_type = "RunFailed"
    try:
        yield
        event_type = "RunCompleted"
    finally:
        # An outage must not hide the block's own exception. The run then stays open.
        with suppress(LedgerUnavailable):
            if log.get_head(origin.engine_run_id) is not None:
                log.append(origin.make_event(event_type, at=datetime.now(UTC)))
                fold_run(log, origin.engine_run_id)
