"""The steps that every write of the ledger takes in its transaction: lock states, check the lease, append events.

The lock of a partition is its state row. Every transaction locks in the same order, which prevents deadlocks: states
by key, claims by key, then the head row of its own run.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.events.append_statements import append_statements
from ads_pipeline.ledger.events.event_rows import EventEncoder, add_positions
from ads_pipeline.ledger.row_mapping import decode_state, encode_key, read_clock
from ads_pipeline.ledger.statements import KEY_COLUMNS, Statement, insert
from ads_pipeline.ledger.status.partition_status import PartitionStatuses
from ads_pipeline.ledger.tables import KEY, instant_text, partition_state

T = TypeVar("T")
Clock = Callable[[], datetime]


# The states of the given partitions, locked in the order of their keys, which prevents deadlocks.
LOCK_STATES: Final = Statement(
    "lock_states",
    KEY_COLUMNS,
    "SELECT * FROM partition_state WHERE ({key}) IN (SELECT {key} FROM {given}) ORDER BY {key} {for_update}",
)
_INSERT_PENDING: Final = insert(partition_state, *KEY, "status", "updated_at", skip_present=True)
_WITHDRAW_POINTERS: Final = Statement(
    "withdraw_pointers",
    {**KEY_COLUMNS, "changed_at": "instant"},
    """
    UPDATE warehouse_pointer SET availability = 'unavailable', changed_at = given.changed_at
    FROM {given} WHERE ({warehouse_pointer.key}) = ({given.key}) AND availability = 'published'
    """,
)


class WriteContext:
    """The engine, clock and lease of one writer. Its events have one origin."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None,
        origin: EventOrigin,
        tenancy: Tenancy,
        lease: Lease | None = None,
    ) -> None:
        self.engine, self.origin = engine, origin
        self.statuses = PartitionStatuses(tenancy)
        self.event_encoder = EventEncoder(origin)
        self.clock, self.lease = clock, lease

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self.engine, work)

    def read_clock(self, connection: sa.Connection) -> datetime:
        return self.clock() if self.clock else read_clock(connection)

    def lock_states(
        self, connection: sa.Connection, keys: Iterable[PartitionKey]
    ) -> dict[PartitionKey, PartitionState]:
        rows = LOCK_STATES.execute(connection, map(encode_key, keys))
        return {state.key: state for state in map(decode_state, rows)}

    def check_lease(self, connection: sa.Connection, keys: Collection[PartitionKey]) -> None:
        """Raise LeaseLost when a run with a lease has lost one of these partitions. The caller holds their locks."""
        if self.lease is not None and keys:
            self.lease.require_claims(connection, keys)

    def insert_pending(self, connection: sa.Connection, keys: Iterable[PartitionKey], now: datetime) -> int:
        """Insert a pending row for each partition that has no row. Return the number of inserted rows."""
        values = {"status": Status.PENDING, "updated_at": instant_text(now)}
        return _INSERT_PENDING.execute(connection, (encode_key(key) | values for key in keys)).rowcount

    def withdraw_pointers(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> None:
        """Hide the partitions from readers. The caller holds their locks."""
        now = instant_text(self.read_clock(connection))
        _WITHDRAW_POINTERS.execute(connection, (encode_key(key) | {"changed_at": now} for key in keys))

    def append_events(self, connection: sa.Connection, events: Sequence[dict[str, Any]], now: datetime) -> None:
        """Append the events of a change. Call it last: it locks the head row of the run."""
        if events:
            origin = self.event_encoder.origin_columns
            rows = add_positions((origin | event for event in events), now)
            for statement in append_statements(connection.dialect.name):
                statement.execute(connection, rows)
