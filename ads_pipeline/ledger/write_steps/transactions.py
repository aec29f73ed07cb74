"""The steps that every write of the ledger takes in its transaction: lock states, check the lease, append events.

The lock of a partition is its state row. Every transaction locks in the same order, which prevents deadlocks: states
by key, claims by key, then the head row of its own run.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import PartitionStatus, Tenancy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import KEY, instant_text, partition_state
from ads_pipeline.ledger.sql.row_mapping import decode_state, encode_key, read_clock
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Call, RowWrite, Statement, Values, columns_of, insert
from ads_pipeline.ledger.write_steps.event_rows import EventEncoder, append_in_order
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.ledger.write_steps.partition_status import AttemptResult, PartitionStatuses

T = TypeVar("T")
Clock = Callable[[], datetime]


# The states of the given partitions, locked in the order of their keys, which prevents deadlocks.
LOCK_STATES: Final = Statement(
    "lock_states",
    KEY_COLUMNS,
    """
    SELECT * FROM partition_state
    WHERE (source, customer_id, query_name, logical_date) IN (
        SELECT source, customer_id, query_name, logical_date FROM given
    )
    ORDER BY source, customer_id, query_name, logical_date FOR UPDATE
    """,
)
UPDATE_STATES: Final = RowWrite(
    "update_states",
    columns_of(partition_state),
    """
    UPDATE partition_state
    SET status = given.status, current_run_id = given.current_run_id, schema_version = given.schema_version,
        record_count = given.record_count, updated_at = given.updated_at, error_message = given.error_message,
        attempt_count = given.attempt_count
    FROM given
    WHERE (partition_state.source, partition_state.customer_id, partition_state.query_name,
        partition_state.logical_date) = (given.source, given.customer_id, given.query_name, given.logical_date)
    """,
)
_INSERT_PENDING: Final = insert(partition_state, *KEY, "status", "updated_at", skip_present=True)
_WITHDRAW_POINTERS: Final = Statement(
    "withdraw_pointers",
    {**KEY_COLUMNS, "changed_at": "instant"},
    """
    UPDATE warehouse_pointer SET availability = 'unavailable', changed_at = given.changed_at
    FROM given
    WHERE (warehouse_pointer.source, warehouse_pointer.customer_id, warehouse_pointer.query_name,
        warehouse_pointer.logical_date) = (given.source, given.customer_id, given.query_name, given.logical_date)
        AND availability = 'published'
    """,
)


class LedgerWriter:
    """The engine, clock and lease of one writer. Its events have one origin.

    `after_events` is called after each transaction that has appended events.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None,
        origin: EventOrigin,
        tenancy: Tenancy,
        lease: Lease | None = None,
        after_events: Callable[[], None] | None = None,
    ) -> None:
        self.engine, self.origin = engine, origin
        self.statuses = PartitionStatuses(tenancy)
        self.event_encoder = EventEncoder(origin)
        self.clock, self.lease = clock, lease
        self._after_events = after_events

    def transact(self, work: Callable[["LedgerTransaction"], T]) -> T:
        """Run the work in one transaction. Its events are appended last: that locks the head row of the run."""

        def run(connection: sa.Connection) -> tuple[T, bool]:
            transaction = LedgerTransaction(self, connection)
            result = work(transaction)
            transaction.finish()
            return result, transaction.has_events

        result, has_events = database.transact(self.engine, run)
        if has_events and self._after_events is not None:
            self._after_events()
        return result


class LedgerTransaction:
    """One transaction of a writer."""

    def __init__(self, writer: LedgerWriter, connection: sa.Connection) -> None:
        self.connection, self.writer = connection, writer
        self._last_writes: list[Call] = []
        self._events: list[Values] = []
        self._statuses: list[PartitionStatus] = []

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    @cached_property
    def now(self) -> datetime:
        """The time of this transaction: when it first needs it."""
        return self.writer.clock() if self.writer.clock else read_clock(self.connection)

    def date_by(self, now: datetime) -> None:
        """Date this transaction by a time that was read under its locks, unless it has a time."""
        self.__dict__.setdefault("now", now)

    @cached_property
    def at(self) -> str:
        """The time of this transaction, as rows have it."""
        return instant_text(self.now)

    def lock_states(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """Lock the states of these partitions, and return those that are recorded."""
        requested = {(key.source, key.customer_id, key.query_name, key.logical_date): key for key in keys}
        rows = LOCK_STATES.execute(self.connection, map(encode_key, requested.values()))
        states = (decode_state(row, requested[tuple(row[: len(KEY)])]) for row in rows)
        return {state.key: state for state in states}

    def lock_claimed_states(self, keys: Collection[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """Lock the states of partitions that a run with a lease must have claimed. Raises LeaseLost if it has not."""
        states = self.lock_states(keys)
        self.check_lease(keys)
        return states

    def lock_claimed(self, keys: Collection[PartitionKey]) -> None:
        """Do the same without reading the states. On SQLite the transaction has locked the whole database."""
        if self.connection.dialect.name != "sqlite":
            LOCK_STATES.execute(self.connection, map(encode_key, keys)).close()
        self.check_lease(keys)

    def check_lease(self, keys: Collection[PartitionKey]) -> None:
        """Raise LeaseLost when a run with a lease has lost one of these partitions. The caller holds their locks."""
        if self.writer.lease is not None and keys:
            self.writer.lease.require_claims(self.connection, keys)

    def insert_pending(self, keys: Iterable[PartitionKey]) -> int:
        """Insert a pending row for each partition that has no row. Return the number of inserted rows."""
        pending = str(Status.PENDING), self.at
        return _INSERT_PENDING.write(self.connection, (encode_key(key) + pending for key in keys))

    def withdraw_pointers(self, keys: Iterable[PartitionKey]) -> None:
        """Hide the partitions from readers. The caller holds their locks."""
        _WITHDRAW_POINTERS.execute(self.connection, ((*encode_key(key), self.at) for key in keys))

    def record_attempts(self, asset: str, results: Sequence[AttemptResult]) -> list[int]:
        """Record attempts without a verdict in their status rows. Return the number of each in its partition."""
        return self.writer.statuses.record_attempts(self.connection, asset, results, self.now)

    def emit(
        self,
        event_type: str,
        key: PartitionKey | None,
        number: int,
        data: Mapping[str, Any],
        *,
        at: str | None = None,
        caused_by: str | None = None,
    ) -> None:
        """Emit an event of the partition, or of the run. The number tells it from other events of its type."""
        encode, step_id = self.writer.event_encoder.encode, None if key is None else str(key)
        self._events.append(encode(event_type, step_id, number, data, emitted_at=at or self.at, caused_by=caused_by))

    def write_last(self, calls: Iterable[Call], statuses: Iterable[PartitionStatus]) -> None:
        """Write these rows together with the events, at the end of the transaction."""
        self._last_writes.extend(calls)
        self._statuses.extend(statuses)

    def finish(self) -> None:
        """Write what was left to the end, in one message to the database."""
        run, writes = (self.writer.origin.engine_run_id, self.writer.origin.plan_version), self._last_writes
        if self._events:
            writes = [*writes, *append_in_order({run: self._events}, self.at)]
        self.writer.statuses.write(self.connection, self._statuses, after=writes)
