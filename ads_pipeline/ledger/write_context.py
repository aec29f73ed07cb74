"""The steps that every write of the ledger takes in its transaction: lock states, check the lease, append events.

The lock of a partition is its state row. Every transaction locks in the same order, which prevents deadlocks: states
by key, claims by key, then the head row of its own run.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.events.append_statements import EventStatements
from ads_pipeline.ledger.events.event_rows import EventEncoder, add_positions
from ads_pipeline.ledger.row_mapping import decode_state, encode_key
from ads_pipeline.ledger.state.write_statements import WriteStatements
from ads_pipeline.ledger.status.partition_status import PartitionStatuses
from ads_pipeline.ledger.tables import instant_text

T = TypeVar("T")
Clock = Callable[[], datetime]


class WriteContext:
    """The prepared statements, clock and lease of one writer. Its events have one origin."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None,
        origin: EventOrigin,
        tenancy: Tenancy,
        lease: Lease | None = None,
    ) -> None:
        self.engine, self.origin, dialect = engine, origin, engine.dialect.name
        self.statements = WriteStatements(dialect)
        self.statuses = PartitionStatuses(dialect, tenancy)
        self.event_encoder = EventEncoder(origin)
        self.clock, self.lease = clock, lease
        self._append = EventStatements(dialect).append

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self.engine, work)

    def read_clock(self, connection: sa.Connection) -> datetime:
        return self.clock() if self.clock else connection.scalars(self.statements.read_clock).one()

    def lock_states(
        self, connection: sa.Connection, keys: Iterable[PartitionKey]
    ) -> dict[PartitionKey, PartitionState]:
        rows = self.statements.lock_states.execute(connection, map(encode_key, keys))
        return {state.key: state for state in map(decode_state, rows)}

    def check_lease(self, connection: sa.Connection, keys: Collection[PartitionKey]) -> None:
        """Raise LeaseLost when a run with a lease has lost one of these partitions. The caller holds their locks."""
        if self.lease is not None and keys:
            self.lease.require_claims(connection, keys)

    def insert_pending(self, connection: sa.Connection, keys: Iterable[PartitionKey], now: datetime) -> int:
        """Insert a pending row for each partition that has no row. Return the number of inserted rows."""
        values = {"status": Status.PENDING, "updated_at": instant_text(now)}
        return self.statements.insert_pending.execute(connection, (encode_key(key) | values for key in keys)).rowcount

    def withdraw_pointers(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> None:
        """Hide the partitions from readers. The caller holds their locks."""
        now = instant_text(self.read_clock(connection))
        self.statements.withdraw_pointers.execute(connection, (encode_key(key) | {"changed_at": now} for key in keys))

    def append_events(self, connection: sa.Connection, events: Sequence[dict[str, Any]], now: datetime) -> None:
        """Append the events of a change. Call it last: it locks the head row of the run."""
        if events:
            origin = self.event_encoder.origin_columns
            rows = add_positions((origin | event for event in events), now)
            for statement in self._append:
                statement.execute(connection, rows)
