"""Leases and claims: which engine run may write which partitions, and until when.

A run renews its lease in a thread and claims partitions under it. All its processes share the lease. Only the
database's clock decides whether a lease has expired. `Lease.claim` locks a claim's row exclusively;
`Lease.require_claims` locks it in shared mode until the commit. A takeover and a late write therefore wait for each
other, and the later one sees the earlier one's result.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.errors import LeaseLost, LedgerUnavailable
from ads_pipeline.domain.fetching.retry_forecast import LeaseHolder
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Instant, instant_text, leases
from ads_pipeline.ledger.sql.ledger_values import ClaimResult
from ads_pipeline.ledger.sql.row_mapping import (
    database_clock,
    database_clock_plus,
    decode_key,
    encode_key,
    insert_into,
)
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Columns, Statement, Values

_LOG: Final = logging.getLogger(__name__)

RENEWALS_PER_LEASE: Final = 4
SECONDS_TO_STOP: Final = 10.0  # for the threads of a lease; one that waits for the database ends later, by itself
# `now` is set where a test chooses the time. NULL means the database's clock.
_CLAIM: Final[Columns] = {**KEY_COLUMNS, "engine_run_id": "text", "now": "instant"}
# Insert claims for partitions that were never claimed, so that there is a row to lock. ON CONFLICT covers concurrent
# claims. On SQLite a trigger refuses existing keys.
_INSERT_MISSING_CLAIMS: Final = Statement(
    "insert_claims",
    _CLAIM,
    """
    INSERT INTO claims (source, customer_id, query_name, logical_date, engine_run_id, fence, claimed_at)
    SELECT source, customer_id, query_name, logical_date, engine_run_id, 1, coalesce(given.now, clock_timestamp())
    FROM given
    WHERE NOT EXISTS (SELECT 1 FROM claims
        WHERE (claims.source, claims.customer_id, claims.query_name, claims.logical_date) =
            (given.source, given.customer_id, given.query_name, given.logical_date))
                ORDER BY source, customer_id, query_name, logical_date
    ON CONFLICT DO NOTHING
    """,
)
# Every transaction locks claims in the order of their keys, so none can deadlock.
_LOCK_CLAIMS: Final = Statement(
    "lock_claims",
    _CLAIM,
    """
    SELECT * FROM claims
    WHERE (source, customer_id, query_name, logical_date) IN (
        SELECT source, customer_id, query_name, logical_date FROM given
    )
    ORDER BY source, customer_id, query_name, logical_date FOR UPDATE
    """,
)
# The claim on each given partition that was ever claimed, with its lease and whether that is live now.
_READ_CLAIMS: Final = Statement(
    "claims_by_key",
    _CLAIM,
    """
    SELECT claims.*, expires_at, ended_at,
        ended_at IS NULL AND expires_at > coalesce(given.now, clock_timestamp()) AS is_live
    FROM given
    JOIN claims USING (source, customer_id, query_name, logical_date)
    JOIN leases ON leases.engine_run_id = claims.engine_run_id
    """,
    flags=("is_live",),
)
_TAKE_CLAIMS: Final = Statement(
    "take_claims",
    _CLAIM,
    """
    UPDATE claims
    SET engine_run_id = given.engine_run_id, fence = fence + 1, claimed_at = coalesce(given.now, clock_timestamp())
    FROM given
    WHERE (claims.source, claims.customer_id, claims.query_name, claims.logical_date) =
        (given.source, given.customer_id, given.query_name, given.logical_date)
    """,
)
# The given partitions that the run does not hold. All claims are locked against a takeover.
_READ_LOST: Final = Statement(
    "lost_claims",
    _CLAIM,
    """
    WITH held AS (
        SELECT * FROM claims
        WHERE (source, customer_id, query_name, logical_date) IN (
            SELECT source, customer_id, query_name, logical_date FROM given
        )
        ORDER BY source, customer_id, query_name, logical_date FOR SHARE
    )
    SELECT given.source, given.customer_id, given.query_name, given.logical_date, held.engine_run_id, held.claimed_at,
        expires_at, ended_at
    FROM given
    LEFT JOIN held USING (source, customer_id, query_name, logical_date)
    LEFT JOIN leases ON leases.engine_run_id = held.engine_run_id
    WHERE held.engine_run_id IS DISTINCT FROM given.engine_run_id
        OR NOT coalesce(ended_at IS NULL AND expires_at > coalesce(given.now, clock_timestamp()), false)
    """,
)


class Lease:
    """The lease of one run. It is lost for good when the run has not renewed it for `duration`."""

    def __init__(
        self,
        engine: sa.Engine,
        engine_run_id: str,
        *,
        duration: timedelta,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self.engine_run_id, self.duration = engine_run_id, duration
        self._engine, self._clock, self._dialect = engine, clock, engine.dialect.name
        # A renewal without an answer must leave time for another one.
        self._renewing_engine = database.answering_within(engine, duration.total_seconds() / 2)
        self._renewed_at = time.monotonic()

    @classmethod
    @contextmanager
    def held(
        cls,
        engine: sa.Engine,
        engine_run_id: str,
        *,
        duration: timedelta,
        on_loss: Callable[[], None] | None = None,
        find_wait: Callable[[], timedelta | None] | None = None,
    ) -> Iterator[Self]:
        """Open a lease, renew it in a thread while the block runs, and end it afterwards.

        `on_loss` is called in a thread when the lease is lost, or was not renewed for its duration. Where other
        processes of the run still need the lease, `find_wait` says how long it stays open for them; None ends it.
        """
        lease = cls(engine, engine_run_id, duration=duration)
        lease.open()
        try:
            with renewing(lease, on_loss):
                yield lease
        finally:
            wait = find_wait() if find_wait is not None else None
            # An outage here must not hide how the block ended. The lease expires by itself.
            with suppress(LedgerUnavailable):
                if wait is None:
                    lease.end()
                else:
                    lease.stay_open(wait)

    def open(self) -> None:
        """Open the lease, or renew it where a repeated run or another process of the run finds it live.

        Raises LeaseLost when this run's lease has ended or expired: another run may have taken its partitions.
        """
        asked_at = time.monotonic()
        database.transact(self._engine, self._open)
        self._renewed_at = asked_at

    def claim(self, keys: Iterable[PartitionKey]) -> ClaimResult:
        """Claim each partition that no other live run holds. The result names the holders of the others.

        A granted claim lasts until the lease ends or expires. Raises LeaseLost when it already has.
        """
        requested = sorted(set(keys))
        return database.transact(self._engine, lambda connection: self._claim(connection, requested))

    def renew(self) -> bool:
        """Extend the lease by its duration. False when it is lost; renewing cannot bring it back."""
        asked_at = time.monotonic()
        is_live = database.transact(self._renewing_engine, self._renew)
        if is_live:
            self._renewed_at = asked_at
        return is_live

    def stay_open(self, duration: timedelta) -> None:
        """Extend the lease once, for another process of the run, which joins it by `open`."""
        database.transact(self._engine, lambda connection: self._renew(connection, duration))

    def end(self) -> None:
        """End the lease and so release all its claims."""
        database.transact(self._engine, lambda c: close_lease(c, self.engine_run_id, self._times()[0]))

    def require_claims(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> None:
        """Raise LeaseLost unless this run holds a live claim on every partition.

        No run can take these claims over before the transaction ends. The caller holds the state rows' locks.
        """
        lost = _READ_LOST.execute(connection, self._claim_rows(keys)).all()
        if lost:
            first = min(lost, key=decode_key)
            raise LeaseLost(self.engine_run_id, _describe_loss(self.engine_run_id, first), str(decode_key(first)))

    def renew_until_stopped(self, stopped: threading.Event, on_loss: Callable[[], None] | None = None) -> None:
        """Renew the lease until stopped or lost. During a database outage, try again every second at least."""
        wait = self.duration / RENEWALS_PER_LEASE
        while not stopped.wait(wait.total_seconds()):
            wait = self.duration / RENEWALS_PER_LEASE
            try:
                if not self.renew():
                    log_event(_LOG, LogEvent.LEASE_LOST, run=self.engine_run_id)
                    if on_loss is not None:
                        on_loss()
                    return
            except LedgerUnavailable:
                log_event(_LOG, LogEvent.LEASE_RENEWAL_FAILED, run=self.engine_run_id)
                wait = min(wait, timedelta(seconds=1))

    def watch_until_stopped(self, stopped: threading.Event, on_loss: Callable[[], None]) -> None:
        """Call `on_loss` when the lease was not renewed for its duration, also while a renewal gets no answer."""
        while not stopped.wait(max(self._seconds_left, 0.0)):
            if self._seconds_left <= 0:
                log_event(_LOG, LogEvent.LEASE_LOST, run=self.engine_run_id)
                on_loss()
                return

    @property
    def _seconds_left(self) -> float:
        return self._renewed_at + self.duration.total_seconds() - time.monotonic()

    def _open(self, connection: sa.Connection) -> None:
        now, until = self._times()
        # ON CONFLICT covers concurrent inserts. On SQLite a trigger refuses existing keys.
        missing = ~sa.exists().where(leases.c.engine_run_id == self.engine_run_id)
        row = sa.select(sa.literal(self.engine_run_id), now, now, until).where(missing)
        columns = ("engine_run_id", "opened_at", "heartbeat_at", "expires_at")
        insert = insert_into(self._dialect, leases).from_select(columns, row)
        if not connection.execute(insert.on_conflict_do_nothing()).rowcount and not self._renew(connection):
            raise LeaseLost(self.engine_run_id, "its lease has already ended or expired")

    def _renew(self, connection: sa.Connection, duration: timedelta | None = None) -> bool:
        now, until = self._times(duration)
        greatest = sa.func.greatest if self._dialect == "postgresql" else sa.func.max
        live = leases.c.engine_run_id == self.engine_run_id, leases.c.ended_at.is_(None), leases.c.expires_at > now
        # A clock that goes back must not shorten the lease.
        values = {"heartbeat_at": now, "expires_at": greatest(leases.c.expires_at, until)}
        return bool(connection.execute(sa.update(leases).where(*live).values(values)).rowcount)

    def _claim(self, connection: sa.Connection, keys: Sequence[PartitionKey]) -> ClaimResult:
        """Lock first, read in a later statement: it sees what other runs committed while this one waited."""
        _INSERT_MISSING_CLAIMS.execute(connection, self._claim_rows(keys))
        _LOCK_CLAIMS.execute(connection, self._claim_rows(keys)).all()
        rows = {decode_key(row): row for row in _READ_CLAIMS.execute(connection, self._claim_rows(keys))}
        free = {key for key in keys if not rows[key].is_live}
        own = {key for key in keys if rows[key].engine_run_id == self.engine_run_id}
        if own & free or (free and not self._renew(connection)):
            raise LeaseLost(self.engine_run_id, "its lease has ended or expired")
        if free:
            _TAKE_CLAIMS.execute(connection, self._claim_rows(sorted(free)))
        granted = {key: rows[key].fence + (key in free) for key in keys if key in own or key in free}
        held = {key: read_lease_holder(rows[key]) for key in keys if key not in granted}
        return ClaimResult(granted=granted, held=held)

    def _times(self, duration: timedelta | None = None) -> tuple[Any, Any]:
        """Now, and the expiry of a lease that is renewed now."""
        lasts = duration or self.duration
        if self._clock is not None:
            now = self._clock()
            return sa.literal(now, Instant()), sa.literal(now + lasts, Instant())
        return database_clock(self._dialect), database_clock_plus(self._dialect, lasts)

    def _claim_rows(self, keys: Iterable[PartitionKey]) -> Iterator[Values]:
        now = instant_text(self._clock()) if self._clock else None
        return ((*encode_key(key), self.engine_run_id, now) for key in keys)


class Leases:
    """The leases of all runs."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def holders(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, LeaseHolder]:
        """Return the run that holds each claimed partition. Unclaimed partitions are left out."""
        requested = ((*encode_key(key), None, None) for key in dict.fromkeys(keys))
        rows = _READ_CLAIMS.fetch(self._engine, requested)
        return {decode_key(row): read_lease_holder(row) for row in rows if row.is_live}


@contextmanager
def renewing(lease: Lease, on_loss: Callable[[], None] | None = None) -> Iterator[None]:
    """Renew the lease in a thread while the block runs. Another thread calls `on_loss` when that was not possible."""
    stopped = threading.Event()
    threads = [threading.Thread(target=lease.renew_until_stopped, args=(stopped, on_loss), name="lease", daemon=True)]
    if on_loss is not None:
        watch = threading.Thread(target=lease.watch_until_stopped, args=(stopped, on_loss), name="watch", daemon=True)
        threads.append(watch)
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join(SECONDS_TO_STOP)


def close_lease(connection: sa.Connection, engine_run_id: str, now: Any) -> None:
    """End a run's lease. Its claims become free, and its later writes are refused."""
    live = leases.c.engine_run_id == engine_run_id, leases.c.ended_at.is_(None)
    connection.execute(sa.update(leases).where(*live).values(ended_at=now))


def select_expired_leases(now: Any) -> sa.Select[Any]:
    """Select the runs whose leases have expired and were not ended, the earliest expiry first."""
    expired = leases.c.ended_at.is_(None), leases.c.expires_at <= now
    return sa.select(leases.c.engine_run_id).where(*expired).order_by(leases.c.expires_at, leases.c.engine_run_id)


def read_lease_holder(row: sa.Row[Any]) -> LeaseHolder:
    return LeaseHolder(
        engine_run_id=row.engine_run_id, fence=row.fence, claimed_at=row.claimed_at, expires_at=row.expires_at
    )


def _describe_loss(engine_run_id: str, row: sa.Row[Any]) -> str:
    if row.engine_run_id is None:
        return "it never claimed the partition"
    if row.engine_run_id != engine_run_id:
        return f"run {row.engine_run_id} claimed it at {instant_text(row.claimed_at)}"
    if row.ended_at is not None:
        return f"its lease ended at {instant_text(row.ended_at)}"
    return f"its lease expired at {instant_text(row.expires_at)}"
