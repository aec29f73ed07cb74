"""The budget of API operations that all runs share: reserve one before each call, and record its outcome.

Operations are numbered. The number of the newest operation that is a day old gives the count of those within the
last 24 hours, so that a reservation reads three rows, however many operations there are.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.quota import (
    WINDOW,
    Granted,
    Hold,
    Operation,
    OperationOutcome,
    QuotaLimits,
    QuotaUsage,
    Refused,
)
from ads_pipeline.domain.retry import Lane
from ads_pipeline.ledger import database
from ads_pipeline.ledger.extraction.tables import api_holds, api_operations, quota_head
from ads_pipeline.ledger.row_mapping import read_clock
from ads_pipeline.ledger.statements import Statement, insert, query, upsert
from ads_pipeline.ledger.tables import Instant, instant_text
from ads_pipeline.ledger.transactions import LedgerTransaction, LedgerWriter
from ads_pipeline.quoting import printable

WHOLE_SOURCE: Final = ""  # the customer_id of a hold on all calls
_INSERT_HEAD: Final = insert(quota_head, skip_present=True)
_READ_HEAD: Final = Statement(
    "read_quota_head",
    {"source": "text"},
    "SELECT quota_head.*, {now} AS now FROM quota_head WHERE source = (SELECT source FROM {given})",
)
_LOCK_HEAD: Final = Statement(
    "lock_quota_head",
    {"source": "text"},
    "SELECT quota_head.*, {now} AS now FROM quota_head WHERE source = (SELECT source FROM {given}) {for_update}",
)
_ADVANCE_HEAD: Final = Statement(
    "advance_quota_head",
    {"source": "text", "operations": "bigint", "backfill_operations": "bigint", "last_at": "instant"},
    """
    UPDATE quota_head
    SET operations = given.operations, backfill_operations = given.backfill_operations, last_at = given.last_at
    FROM {given} WHERE quota_head.source = given.source
    """,
)
_INSERT_OPERATION: Final = insert(api_operations, skip_present=True)
_UPSERT_HOLD: Final = upsert(api_holds, newer="api_holds.held_until < excluded.held_until")
# The newest operation that no longer counts.
_READ_EXPIRED: Final = query(
    """
    SELECT operation_no, backfill_no FROM api_operations
    WHERE source = :source AND entry = 'reserved' AND at <= :expired
    ORDER BY at DESC, operation_no DESC LIMIT 1
    """,
    expired=Instant(),
)
_READ_OPERATION_TIME: Final = query(
    "SELECT at FROM api_operations WHERE source = :source AND operation_no = :number AND entry = 'reserved'"
)
_READ_BACKFILL_TIME: Final = query(
    """
    SELECT at FROM api_operations
    WHERE source = :source AND backfill_no = :number AND entry = 'reserved' AND lane = 'backfill'
    """
)
_READ_HOLDS: Final = query(
    "SELECT api_holds.* FROM api_holds WHERE source = :source AND held_until > :now ORDER BY customer_id",
    now=Instant(),
)


class QuotaReader:
    """How many operations the last 24 hours have used, and which holds are active."""

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine, self._clock = engine, clock

    def usage(self, source: str, limits: QuotaLimits) -> QuotaUsage:
        """What is used and what is left now."""

        def read(connection: sa.Connection) -> QuotaUsage:
            now = self._clock() if self._clock else read_clock(connection)
            head = _READ_HEAD.execute(connection, [{"source": source}]).one_or_none()
            total, backfill = (head.operations, head.backfill_operations) if head else (0, 0)
            used, used_for_backfill = _count(connection, source, total, backfill, now)
            holds = tuple(_read_holds(connection, source, now))
            return QuotaUsage(limits=limits, fresh=used - used_for_backfill, backfill=used_for_backfill, holds=holds)

        return database.transact(self._engine, read)


class Quota(QuotaReader):
    """Reserves operations. A process that dies after a reservation has spent it, which is the safe side."""

    def __init__(self, writer: LedgerWriter) -> None:
        super().__init__(writer.engine, clock=writer.clock)
        self._writer = writer

    def reserve(self, operation: Operation, limits: QuotaLimits) -> Granted | Refused:
        """Count one operation and grant it, or say until when the call must wait.

        Reservations of a source run one after the other, so that no two processes spend the same operation.
        """
        return self._writer.transact(lambda transaction: _reserve(transaction, operation, limits))

    def finish(self, granted: Granted, outcome: OperationOutcome) -> None:
        """Record how the call ended, and emit OperationSpent. A repeated record changes nothing."""
        self._writer.transact(lambda transaction: _finish(transaction, granted, outcome))

    def hold(self, hold: Hold) -> None:
        """Stop calls of all runs until a time. A later time that is stored already stays."""
        row = {
            "source": hold.source,
            "customer_id": hold.customer_id or WHOLE_SOURCE,
            "held_until": instant_text(hold.until),
            "why": printable(hold.why),
            "request_id": hold.request_id,
        }
        self._writer.transact(
            lambda transaction: _UPSERT_HOLD.execute(transaction.connection, [row | {"held_at": transaction.at}])
        )


def _reserve(transaction: LedgerTransaction, operation: Operation, limits: QuotaLimits) -> Granted | Refused:
    connection, clock = transaction.connection, transaction.writer.clock
    head = _lock_head(transaction, operation.source)
    # Never before the last operation: times must have the order of the numbers.
    now = max(clock() if clock else head.now, head.last_at)
    if refused := _find_refusal(connection, head, operation, limits, now):
        return refused
    number = head.operations + 1
    backfill, at = head.backfill_operations + (operation.lane is Lane.BACKFILL), instant_text(now)
    advanced = {"source": head.source, "operations": number, "backfill_operations": backfill, "last_at": at}
    _ADVANCE_HEAD.execute(connection, [advanced])
    row = _encode(transaction, operation, number) | {"entry": "reserved", "at": at, "backfill_no": backfill}
    _INSERT_OPERATION.execute(connection, [row])
    return Granted(operation=operation, number=number)


def _lock_head(transaction: LedgerTransaction, source: str) -> sa.Row[Any]:
    """The numbers of the last operations, locked, with the database's time."""
    connection, given = transaction.connection, [{"source": source}]
    locked = _LOCK_HEAD.execute(connection, given).one_or_none()
    if locked is None:
        head = {"source": source, "operations": 0, "backfill_operations": 0, "last_at": transaction.at}
        _INSERT_HEAD.execute(connection, [head])
        locked = _LOCK_HEAD.execute(connection, given).one()
    return locked


def _finish(transaction: LedgerTransaction, granted: Granted, outcome: OperationOutcome) -> None:
    result = {
        "outcome": outcome.outcome,
        "request_id": outcome.request_id,
        "rows_received": outcome.rows,
        "milliseconds": None if outcome.seconds is None else round(outcome.seconds * 1_000),
        "consumption": outcome.consumption,
    }
    row = _encode(transaction, granted.operation, granted.number)
    row |= {"entry": "finished", "at": transaction.at, "backfill_no": 0} | result
    if _INSERT_OPERATION.execute(transaction.connection, [row]).rowcount:
        data = {name: row[name] for name in ("kind", "customer_id", "query_name", "since", "until", *result)}
        transaction.emit("OperationSpent", None, granted.number, data)


def _encode(transaction: LedgerTransaction, operation: Operation, number: int) -> dict[str, Any]:
    return {
        "source": operation.source,
        "operation_no": number,
        "engine_run_id": transaction.writer.origin.run_id,
        "kind": str(operation.kind),
        "lane": str(operation.lane),
        "customer_id": operation.customer_id,
        "query_name": operation.query_name,
        "since": operation.since and operation.since.isoformat(),
        "until": operation.until and operation.until.isoformat(),
    }


def _find_refusal(
    connection: sa.Connection, head: sa.Row[Any], operation: Operation, limits: QuotaLimits, now: datetime
) -> Refused | None:
    """Why the call must wait: a hold, or a limit with the moment at which an operation of the window expires."""
    holds = [each for each in _read_holds(connection, head.source, now) if each.customer_id in _held_by(operation)]
    if holds:
        longest = max(holds, key=lambda hold: hold.until)
        return Refused(until=longest.until, why=longest.why)
    total, own = limits.daily_operations, limits.limit_of(operation.lane)
    if total is None or own is None:
        return None
    used, backfill = _count(connection, head.source, head.operations, head.backfill_operations, now)
    waits = list[tuple[datetime, str]]()
    if used >= total:
        at = _time_of(connection, _READ_OPERATION_TIME, head.source, head.operations - total + 1)
        waits.append((at + WINDOW, f"{used} of {total} operations were used within 24 hours"))
    if operation.lane is Lane.BACKFILL and backfill >= own:
        at = _time_of(connection, _READ_BACKFILL_TIME, head.source, head.backfill_operations - own + 1)
        why = f"backfills used {backfill} of {own} operations within 24 hours; the rest is reserved for fresh days"
        waits.append((at + WINDOW, why))
    return Refused(until=max(waits)[0], why=max(waits)[1]) if waits else None


def _held_by(operation: Operation) -> tuple[str | None, ...]:
    return (None, operation.customer_id)


def _count(connection: sa.Connection, source: str, total: int, backfill: int, now: datetime) -> tuple[int, int]:
    """How many operations the last 24 hours had, and how many of them were for backfills."""
    expired = connection.execute(_READ_EXPIRED, {"source": source, "expired": now - WINDOW}).one_or_none()
    return (total - expired.operation_no, backfill - expired.backfill_no) if expired else (total, backfill)


def _time_of(connection: sa.Connection, statement: sa.TextualSelect, source: str, number: int) -> datetime:
    at: datetime = connection.execute(statement, {"source": source, "number": number}).scalar_one()
    return at


def _read_holds(connection: sa.Connection, source: str, now: datetime) -> list[Hold]:
    rows = connection.execute(_READ_HOLDS, {"source": source, "now": now})
    return [
        Hold(
            source=row.source,
            customer_id=row.customer_id or None,
            until=row.held_until,
            why=row.why,
            request_id=row.request_id,
        )
        for row in rows
    ]
