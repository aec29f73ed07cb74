"""The steps that several verbs of the ledger take in their transactions: locking, telling, making rows explicit.

A partition's lock is its state row. Locks are taken in one order, states by key, claims by key and then the head of
the own run, so that nobody waits in a circle.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import Origin
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.events.append_statements import EventStatements
from ads_pipeline.ledger.events.event_rows import EventEncoder, placed
from ads_pipeline.ledger.row_mapping import key_fields, state_of
from ads_pipeline.ledger.state.write_statements import Statements
from ads_pipeline.ledger.status.partition_status import Statuses
from ads_pipeline.ledger.tables import instant_text

Clock = Callable[[], datetime]


class WriteContext:
    """One ledger's statements, whose events belong to one origin."""

    def __init__(
        self, dialect: str, *, clock: Clock | None, origin: Origin, space: Tenancy, lease: Lease | None = None
    ) -> None:
        self.sql = Statements(dialect)
        self.statuses = Statuses(dialect, space)
        self.own = EventEncoder(origin)
        self.clock, self.lease = clock, lease
        self._append = EventStatements(dialect).append

    def now(self, connection: sa.Connection) -> datetime:
        return self.clock() if self.clock else connection.scalars(self.sql.read_clock).one()

    def lock(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        rows = self.sql.lock_states.run(connection, map(key_fields, keys))
        return {state.key: state for state in map(state_of, rows)}

    def guard(self, connection: sa.Connection, keys: Collection[PartitionKey]) -> None:
        """LeaseLost unless the partitions are this run's, for one that holds a lease. Once their locks are held."""
        if self.lease is not None and keys:
            self.lease.check(connection, keys)

    def insert_pending(self, connection: sa.Connection, keys: Iterable[PartitionKey], now: datetime) -> int:
        fresh = {"status": Status.PENDING, "updated_at": instant_text(now)}
        return self.sql.insert_pending.run(connection, (key_fields(key) | fresh for key in keys)).rowcount

    def withdraw_pointers(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> None:
        """The caller holds the partitions' locks."""
        now = instant_text(self.now(connection))
        self.sql.withdraw_pointers.run(connection, (key_fields(key) | {"changed_at": now} for key in keys))

    def tell(self, connection: sa.Connection, events: Sequence[dict[str, Any]], now: datetime) -> None:
        """Append what a change made happen, last of all; nothing else appends such events, so none is there yet."""
        if events:
            listed = placed(events, now)
            for statement in self._append:
                statement.run(connection, listed)
