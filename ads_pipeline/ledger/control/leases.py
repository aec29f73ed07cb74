"""Keeps who works on what: the lease of a run, renewed while it lives, and the partitions it has claimed under it.

The store's clock alone decides what has expired. A claim's row is the lock of its holding: who claims takes it, and
who writes of a partition under a lease shares it until the commit. So of a take-over and a late write the second sees
the first.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final, Self

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.errors import LeaseLost, LedgerUnavailable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.tables import claims, leases
from ads_pipeline.ledger.row_mapping import (
    KEY_TYPES,
    clock_ahead,
    clock_of,
    insert_into,
    key_fields,
    key_in,
    key_of,
    same_key,
)
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.tables import KEY, Instant, instant_text
from ads_pipeline.ledger.values import ClaimResult, LeaseHolder

BEATS_IN_A_LEASE: Final = 4
# Whoever chooses the time gives it with each row; else it is the store's when the row is looked at.
_ASKED: Final = dict(KEY_TYPES) | {"run_id": sa.Text(), "now": Instant()}


class Lease:
    """One run's lease. It is lost when nothing was heard of the run for as long as it lasts, and for good."""

    def __init__(
        self, engine: sa.Engine, run_id: str, *, lasts: timedelta, clock: Callable[[], datetime] | None = None
    ) -> None:
        self.run_id, self.lasts = run_id, lasts
        self._engine, self._clock, self._dialect = engine, clock, engine.dialect.name
        self._insert_claims = self._named("insert_claims", self._inserted)
        self._lock_claims = self._named("lock_claims", _locked)
        self._holdings = self._named("holdings", lambda rowset: holdings(rowset, self._dialect))
        self._take = self._named("take_claims", self._taken)
        self._lost = self._named("lost_claims", lambda rowset: _lost(rowset, self._dialect))

    @classmethod
    @contextmanager
    def opened(cls, url: str, run_id: str, *, lasts: timedelta) -> Iterator[Self]:
        """Open, renewed in a thread of its own while the block runs, and ended with it."""
        with database.opened(url) as engine:
            lease = cls(engine, run_id, lasts=lasts)
            lease.open()
            try:
                with beating(lease):
                    yield lease
            finally:
                with suppress(LedgerUnavailable):  # it would hide how the block ended; the lease expires by itself
                    lease.end()

    def open(self) -> None:
        """Begin to hold; a run that is repeated while its lease lives goes on with it.

        LeaseLost when the lease of this very run has ended or expired: others may have worked on its partitions.
        """
        database.transact(self._engine, self._open)

    def claim(self, keys: Iterable[PartitionKey]) -> ClaimResult:
        """Take each partition that no other run holds; by whom the others are held, and until when at least.

        All that is granted stays so until the lease ends or expires. LeaseLost when it has.
        """
        wanted = sorted(set(keys))
        return database.transact(self._engine, lambda connection: self._claim(connection, wanted))

    def beat(self) -> bool:
        """Say that the run lives. False when the lease is lost, which no beat brings back."""
        return database.transact(self._engine, self._beat)

    def end(self) -> None:
        """Give all partitions free."""
        database.transact(self._engine, lambda c: end_lease(c, self.run_id, self._times()[0]))

    def check(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> None:
        """LeaseLost unless every partition is claimed by this run and its lease lives.

        Nobody takes one over until the transaction ends. The caller holds the partitions' locks.
        """
        lost = self._lost.run(connection, self._asked(keys)).all()
        if lost:
            first = min(lost, key=key_in)
            raise LeaseLost(self.run_id, _why(self.run_id, first), str(key_in(first)))

    def keep(self, stopped: threading.Event) -> None:
        """Beat until stopped or lost. An outage of the database is waited for, not died of."""
        wait = self.lasts / BEATS_IN_A_LEASE
        while not stopped.wait(wait.total_seconds()):
            wait = self.lasts / BEATS_IN_A_LEASE
            try:
                if not self.beat():
                    return
            except LedgerUnavailable:
                wait = min(wait, timedelta(seconds=1))

    def _open(self, connection: sa.Connection) -> None:
        now, until = self._times()
        fresh = insert_into(self._dialect, leases).values(
            run_id=self.run_id, opened_at=now, beat_at=now, expires_at=until
        )
        if not connection.execute(fresh.on_conflict_do_nothing()).rowcount and not self._beat(connection):
            raise LeaseLost(self.run_id, "its lease has ended or expired before")

    def _beat(self, connection: sa.Connection) -> bool:
        now, until = self._times()
        later = sa.func.greatest if self._dialect == "postgresql" else sa.func.max
        lives = leases.c.run_id == self.run_id, leases.c.ended_at.is_(None), leases.c.expires_at > now
        moved = {"beat_at": now, "expires_at": later(leases.c.expires_at, until)}  # also when the clock goes back
        return bool(connection.execute(sa.update(leases).where(*lives).values(moved)).rowcount)

    def _claim(self, connection: sa.Connection, keys: Sequence[PartitionKey]) -> ClaimResult:
        """Each statement after the lock sees all that was committed while the lock was waited for."""
        self._insert_claims.run(connection, self._asked(keys))
        self._lock_claims.run(connection, self._asked(keys)).all()
        found = {key_in(row): row for row in self._holdings.run(connection, self._asked(keys))}
        free = {key for key in keys if not found[key].lives}
        own = {key for key in keys if found[key].run_id == self.run_id}
        if own & free or (free and not self._beat(connection)):
            raise LeaseLost(self.run_id, "its lease has ended or expired")
        if free:
            self._take.run(connection, self._asked(sorted(free)))
        granted = {key: found[key].fence + (key in free) for key in keys if key in own or key in free}
        return ClaimResult(granted=granted, held={key: holder_of(found[key]) for key in keys if key not in granted})

    def _times(self) -> tuple[Any, Any]:
        """Now, and when a lease renewed now expires: by the store's clock unless somebody chooses the time."""
        if self._clock is not None:
            now = self._clock()
            return sa.literal(now, Instant()), sa.literal(now + self.lasts, Instant())
        return clock_of(self._dialect), clock_ahead(self._dialect, self.lasts)

    def _asked(self, keys: Iterable[PartitionKey]) -> Iterator[dict[str, Any]]:
        now = instant_text(self._clock()) if self._clock else None
        return (key_fields(key) | {"run_id": self.run_id, "now": now} for key in keys)

    def _named(self, name: str, build: Callable[[Rowset], sa.Executable]) -> RowStatement:
        return RowStatement(name, self._dialect, build)

    def _inserted(self, rowset: Rowset) -> sa.Insert:
        """Claims on partitions that nobody ever claimed, so that there is something to lock."""
        asked = rowset(_ASKED)
        fresh: tuple[Any, ...] = (
            asked.c.run_id,
            sa.literal_column("1").label("fence"),
            _now(asked, self._dialect).label("claimed_at"),
        )
        rows = sa.select(*key_of(asked), *fresh).where(sa.true()).order_by(*key_of(asked))
        insert = insert_into(self._dialect, claims).from_select((*KEY, "run_id", "fence", "claimed_at"), rows)
        return insert.on_conflict_do_nothing()

    def _taken(self, rowset: Rowset) -> sa.Update:
        asked = rowset(_ASKED)
        given = {
            "run_id": asked.c.run_id,
            "fence": claims.c.fence + sa.literal_column("1"),
            "claimed_at": _now(asked, self._dialect),
        }
        return sa.update(claims).values(given).where(same_key(claims, asked))


@contextmanager
def beating(lease: Lease) -> Iterator[None]:
    """Renews the lease in a thread while the block runs."""
    stopped = threading.Event()
    thread = threading.Thread(target=lease.keep, args=(stopped,), name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def end_lease(connection: sa.Connection, run_id: str, now: Any) -> None:
    """Give free what a run has claimed; its late writes are refused from then on."""
    lives = leases.c.run_id == run_id, leases.c.ended_at.is_(None)
    connection.execute(sa.update(leases).where(*lives).values(ended_at=now))


def expired_leases(now: Any) -> sa.Select[Any]:
    """The runs whose leases have expired and were not ended, the longest silent first."""
    expired = leases.c.ended_at.is_(None), leases.c.expires_at <= now
    return sa.select(leases.c.run_id).where(*expired).order_by(leases.c.expires_at, leases.c.run_id)


def holdings(rowset: Rowset, dialect: str) -> sa.Select[Any]:
    """The claim on each asked partition that was ever claimed, with its lease and whether that lives now."""
    asked = rowset(_ASKED)
    return (
        sa.select(claims, leases.c.expires_at, leases.c.ended_at, _lives(_now(asked, dialect)).label("lives"))
        .join_from(asked, claims, same_key(claims, asked))
        .join(leases, leases.c.run_id == claims.c.run_id)
    )


def holder_of(row: sa.Row[Any]) -> LeaseHolder:
    return LeaseHolder(run_id=row.run_id, fence=row.fence, since=row.claimed_at, until=row.expires_at)


def _lost(rowset: Rowset, dialect: str) -> sa.Select[Any]:
    """Those of the asked partitions that the asking run does not hold; each claim is locked against take-overs."""
    asked = rowset(_ASKED)
    held = _claims_of(asked).with_for_update(read=True, of=claims).cte("held")
    lives = sa.func.coalesce(_lives(_now(asked, dialect)), sa.false())
    return (
        sa.select(*key_of(asked), held.c.run_id, held.c.claimed_at, leases.c.expires_at, leases.c.ended_at)
        .select_from(asked)
        .outerjoin(held, same_key(held, asked))
        .outerjoin(leases, leases.c.run_id == held.c.run_id)
        .where(sa.or_(held.c.run_id.is_distinct_from(asked.c.run_id), sa.not_(lives)))
    )


def _locked(rowset: Rowset) -> sa.Select[Any]:
    return _claims_of(rowset(_ASKED)).with_for_update(of=claims)


def _claims_of(asked: sa.FromClause) -> sa.Select[Any]:
    """In key order, which is the order in which everybody takes such locks."""
    among = sa.tuple_(*key_of(claims)).in_(sa.select(*key_of(asked)))
    return sa.select(claims).where(among).order_by(*key_of(claims))


def _lives(now: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.ended_at.is_(None), leases.c.expires_at > now)


def _now(asked: sa.FromClause, dialect: str) -> sa.ColumnElement[Any]:
    return sa.func.coalesce(asked.c.now, clock_of(dialect), type_=Instant())


def _why(run_id: str, row: sa.Row[Any]) -> str:
    if row.run_id is None:
        return "it has not claimed it"
    if row.run_id != run_id:
        return f"run {row.run_id} has claimed it at {instant_text(row.claimed_at)}"
    if row.ended_at is not None:
        return f"its lease was ended at {instant_text(row.ended_at)}"
    return f"its lease expired at {instant_text(row.expires_at)}"
