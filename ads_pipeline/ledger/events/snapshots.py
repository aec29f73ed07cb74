"""Keeps the snapshots of runs up to their events, however many follow at once, and says how far behind they are.

A snapshot moves only forward, by the events that follow it without a gap. Behind a gap it is stale until it was made
whole again from the last event before the gap.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from ads_pipeline.domain.run_snapshots import Lag, LagWatch, RunSnapshot, StepStatus, contiguous, fold
from ads_pipeline.errors import LedgerUnavailable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import fetch, steps_of
from ads_pipeline.ledger.events.event_rows import snapshot_fields, snapshot_of
from ads_pipeline.ledger.row_mapping import insert_into
from ads_pipeline.ledger.tables import run_head, run_snapshots, run_steps

AT_ONCE: Final = 2_000  # events of one run in one transaction: bounds how long its snapshot is locked
LOOKS_EVERY: Final = timedelta(milliseconds=200)
Raise = Callable[[Lag, timedelta], None]


class _Step(NamedTuple):
    """One transaction's projection of a run: how many events, up to which, and how many the run had taken."""

    projected: int
    last_seq: int
    appended: int


class Follower:
    """Projects what was appended. Any number of them may follow the same log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._engine = log.engine
        self._watch = LagWatch()
        put_steps = insert_into(self._engine.dialect.name, run_steps)
        self._open = insert_into(self._engine.dialect.name, run_snapshots).on_conflict_do_nothing()
        self._put_steps = put_steps.on_conflict_do_update(
            index_elements=["run_id", "step_id"], set_={"status": put_steps.excluded.status}
        )

    def catch_up(self, raised: Raise | None = None) -> int:
        """Project everything that is visible now; how many events that were. `raised` is told of the lag's alarms."""
        behind = self._log.lag()
        self._watch, alarms = self._watch.after(behind)
        for alarm in alarms:
            if raised is not None:
                raised(alarm, behind)
        projected, last = 0, ""
        while runs := self._log.behind(after=last):
            for run_id in runs:
                projected += self._catch_up(run_id, whole=Lag.RESYNC in alarms)
            last = runs[-1]
        return projected

    def follow(self, stopped: threading.Event, raised: Raise | None = None) -> int:
        """Catch up again and again until stopped; how many events that were. An outage is waited for, not died of."""
        projected = 0
        while not stopped.wait(LOOKS_EVERY.total_seconds()):
            try:
                projected += self.catch_up(raised)
            except LedgerUnavailable:
                stopped.wait(1)
        return projected

    def project(self, run_id: str) -> int:
        """Fold the run's next events into its snapshot; how many. Where one is missing the snapshot becomes stale."""
        return self._step(run_id).projected

    def resync(self, run_id: str) -> int:
        """The same under the run's lock, under which nothing can be on its way: what is missing now never comes."""
        return self._step(run_id, whole=True).projected

    def _catch_up(self, run_id: str, *, whole: bool) -> int:
        """Project what the run has taken by now; what comes meanwhile waits, or a busy run would never be left."""
        step = self._step(run_id, whole=whole)
        projected, visible = step.projected, step.appended
        while step.last_seq < visible:
            step = self._step(run_id, whole=whole)
            projected += step.projected
        return projected

    def _step(self, run_id: str, *, whole: bool = False) -> "_Step":
        return database.transact(self._engine, lambda connection: self._project(connection, run_id, whole=whole))

    def _project(self, connection: sa.Connection, run_id: str, *, whole: bool) -> "_Step":
        row = self._locked(connection, run_id)
        before, known_holes = snapshot_of(row), row.holes
        whole = whole or before.stale_since is not None
        appended = self._appended(connection, run_id, locked=whole)
        events = fetch(connection, run_id, before.last_event_seq, AT_ONCE)
        following = events if whole else contiguous(before.last_event_seq, events)
        after, changed = fold(before, steps_of(connection, run_id, following), following)
        if whole:
            at_end = max(appended, after.last_event_seq) if len(events) < AT_ONCE else after.last_event_seq
            after = replace(after, stale_since=None, last_event_seq=at_end)
        elif len(following) < len(events) or (not events and appended > before.last_event_seq):
            after = replace(after, stale_since=self._log.now(connection))
        missing = after.last_event_seq - before.last_event_seq - len(following)
        self._keep(connection, after, changed, holes=known_holes + missing)
        return _Step(projected=len(following), last_seq=after.last_event_seq, appended=appended)

    def _appended(self, connection: sa.Connection, run_id: str, *, locked: bool) -> int:
        """How many events the run has taken; with its lock no more can come in below that number."""
        head = sa.select(run_head.c.last_seq).where(run_head.c.run_id == run_id)
        return connection.scalar(head.with_for_update() if locked else head) or 0

    def _locked(self, connection: sa.Connection, run_id: str) -> sa.Row[Any]:
        """The run's snapshot, an empty one if there is none; nobody else moves it until the transaction ends."""
        kept = sa.select(run_snapshots).where(run_snapshots.c.run_id == run_id).with_for_update()
        row = connection.execute(kept).one_or_none()
        if row is None:
            connection.execute(self._open, snapshot_fields(RunSnapshot(run_id=run_id)) | {"holes": 0})
            row = connection.execute(kept).one()
        return row

    def _keep(
        self, connection: sa.Connection, snapshot: RunSnapshot, changed: dict[str, StepStatus], *, holes: int
    ) -> None:
        here = run_snapshots.c.run_id == snapshot.run_id
        values = snapshot_fields(snapshot) | {"holes": holes}
        connection.execute(sa.update(run_snapshots).where(here).values(values))
        if changed:
            rows = [
                {"run_id": snapshot.run_id, "step_id": step, "status": str(status)}
                for step, status in changed.items()
            ]
            connection.execute(self._put_steps, rows)
        moved = sa.update(run_head).where(
            run_head.c.run_id == snapshot.run_id, run_head.c.projected_seq < snapshot.last_event_seq
        )
        connection.execute(moved.values(projected_seq=snapshot.last_event_seq))


@contextmanager
def following(log: EventLog, raised: Raise | None = None) -> Iterator[None]:
    """Follows in a thread while the block runs, and catches up when it ends: no process of its own is needed."""
    stopped = threading.Event()
    follower = Follower(log)
    thread = threading.Thread(target=follower.follow, args=(stopped, raised), name="run-events", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        with suppress(LedgerUnavailable):  # it would hide how the block ended; others will project what is left
            follower.catch_up(raised)
