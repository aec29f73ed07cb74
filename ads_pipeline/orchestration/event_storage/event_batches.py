"""Stores events of a run together, where Dagster's storages would store each in transactions of its own.

Assets and checks collect their events with `batching.batched_events`. `instance_storage` imports this module where
`dagster_private` has the names that it needs.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Final

import dagster as dg
import sqlalchemy as sa
from dagster_postgres import PostgresEventLogStorage

from ads_pipeline.orchestration.event_storage.batching import MAX_BATCH
from ads_pipeline.orchestration.event_storage.dagster_private import (
    CheckExecutions,
    CheckStatus,
    PlannedCheck,
    SqlEventLogStorage,
)
from ads_pipeline.orchestration.event_storage.sqlite_events import SqliteEvents

ASSET_EVENTS: Final = frozenset(
    {
        dg.DagsterEventType.ASSET_MATERIALIZATION,
        dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
        dg.DagsterEventType.ASSET_OBSERVATION,
    }
)
CHECK_EVENTS: Final = frozenset(
    {dg.DagsterEventType.ASSET_CHECK_EVALUATION, dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED}
)


class EventBatches(SqlEventLogStorage):
    """A storage of events that writes many events of one run in one transaction of each database."""

    def __init__(self, location: str) -> None:
        self._thread = _ThreadState()
        super().__init__(location)  # type: ignore[call-arg, no-untyped-call] # of the other base class

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Collect the events that this thread stores, and write them together at the end, also after an exception.

        Events of other kinds end a batch, and so does a read by this thread: the order of the log stays the same.
        Other threads and processes see the events a moment later.
        """
        if self._thread.is_collecting:
            yield
            return
        self._thread.is_collecting = True
        try:
            yield
        finally:
            self._thread.is_collecting = False
            self._write_collected()

    def store_event(self, event: dg.EventLogEntry) -> None:
        """Store the event, at once or with the batch that is open in this thread."""
        collected = self._thread.collected
        if not (self._thread.is_collecting and _is_batchable(event)):
            self._write_collected()
            super().store_event(event)
            return
        if len(collected) == MAX_BATCH or (collected and collected[0].run_id != event.run_id):
            self._write_collected()
        collected.append(event)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store all of the events or none of them, if they are of one run and of kinds that can be batched."""
        if not all(_is_batchable(event) and event.run_id == events[0].run_id for event in events):
            super().store_event_batch(events)
            return
        self._write_collected()
        if events:
            self._write(events)

    def run_connection(self, run_id: str | None = None) -> AbstractContextManager[sa.Connection]:
        """A connection to the events of a run, which include those of this thread's batch."""
        self._write_collected()
        return super().run_connection(run_id)  # type: ignore[safe-super] # of the other base class

    def index_connection(self) -> AbstractContextManager[sa.Connection]:
        """A connection to the events of all runs; while a batch is being written, the one of its transaction."""
        if self._thread.writing is not None:
            return nullcontext(self._thread.writing)
        self._write_collected()
        return super().index_connection()  # type: ignore[safe-super] # of the other base class

    def store_asset_check_event(self, event: dg.EventLogEntry, event_id: int | None) -> None:
        """Store the planned or finished evaluation of a check in the table of checks.

        Dagster encodes a planned evaluation once for each partition, and each copy names all partitions: for 1,000
        partitions that took a third of the time of a run over empty assets.
        """
        data = event.get_dagster_event().event_specific_data
        if not isinstance(data, PlannedCheck) or data.partitions_subset is None:
            super().store_asset_check_event(event, event_id)
            return
        row = {
            "asset_key": data.asset_key.to_string(),
            "check_name": data.check_name,
            "run_id": event.run_id,
            "execution_status": CheckStatus.PLANNED.value,
            "evaluation_event": dg.serialize_value(event),
            "evaluation_event_timestamp": datetime.fromtimestamp(event.timestamp, UTC).replace(tzinfo=None),
            "evaluation_event_storage_id": event_id,
        }
        rows = [row | {"partition": name} for name in data.partitions_subset.get_partition_keys()]
        with self.index_connection() as connection:
            connection.execute(CheckExecutions.insert(), rows)

    def _write_collected(self) -> None:
        events = self._thread.collected.copy()
        self._thread.collected.clear()
        if events:
            self._write(events)

    def _write(self, events: Sequence[dg.EventLogEntry]) -> None:
        inserts = [self.prepare_insert_event(event) for event in events]
        if not self.is_run_sharded:
            self._write_index(events, inserts)
            return
        with self.run_connection(events[0].run_id) as connection:
            for insert in inserts:
                connection.execute(insert)
            self._write_index(events, inserts)

    def _write_index(self, events: Sequence[dg.EventLogEntry], inserts: Sequence[sa.Insert]) -> None:
        with self.index_transaction() as connection:
            ids = [_insert(connection, insert) for insert in inserts]
            self._thread.writing = connection
            try:
                self._store_details(list(zip(events, ids, strict=True)))
            finally:
                self._thread.writing = None

    def _store_details(self, stored: Sequence[tuple[dg.EventLogEntry, int]]) -> None:
        """Store what Dagster keeps in other tables: tags, the newest event of each asset, and results of checks."""
        assets = [(event, number) for event, number in stored if event.dagster_event_type in ASSET_EVENTS]
        if assets:
            self.store_asset_event_tags([event for event, _ in assets], [number for _, number in assets])
        newest = {(event.get_dagster_event().asset_key, event.dagster_event_type): event for event, _ in assets}
        for event, number in assets:
            if newest[event.get_dagster_event().asset_key, event.dagster_event_type] is event:
                self.store_asset_event(event, number)
        for event, number in stored:
            if event.dagster_event_type in CHECK_EVENTS:
                self.store_asset_check_event(event, number)


def _insert(connection: sa.Connection, insert: sa.Insert) -> int:
    """Insert an event and return its number."""
    stored: Sequence[int] = connection.execute(insert).inserted_primary_key or ()
    return stored[0]


class _ThreadState(threading.local):
    """The batch of one thread."""

    def __init__(self) -> None:
        self.is_collecting = False
        self.collected: list[dg.EventLogEntry] = []
        self.writing: sa.Connection | None = None  # the index transaction of the batch that is being written


def _is_batchable(event: dg.EventLogEntry) -> bool:
    return event.is_dagster_event and event.dagster_event_type in ASSET_EVENTS | CHECK_EVENTS


class BatchedSqliteEvents(EventBatches, SqliteEvents):
    """Storage of events in SQLite."""


class BatchedPostgresEvents(EventBatches, PostgresEventLogStorage):
    """Storage of events in Postgres."""
