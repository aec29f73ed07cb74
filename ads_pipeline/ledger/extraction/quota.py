"""The budget of API operations that all runs share: reserve one before each call, and record its outcome.

Operations are numbered. The number of the newest operation that is a day old gives the count of those within the
last 24 hours, so that a reservation reads two of them, however many there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
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
_LOCK_HEAD: Final = Statement(
    "lock_quota_head",
    {"source": "text"},
    "SELECT {now} AS now FROM quota_head WHERE source = (SELECT source FROM {given}) {for_update}",
)
_INSERT_OPERATION: Final = insert(api_operations, skip_present=True)
_UPSERT_HOLD: Final = upsert(api_holds, newer="api_holds.held_until < excluded.held_until")
# The newest operation, the newest one that no longer counts, and whether any hold is active.
_READ_WINDOW: Final = query(
    """
    SELECT newest.operation_no, newest.backfill_no, newest.at, expired.operation_no AS expired_no,
        expired.backfill_no AS expired_backfill_no,
        EXISTS (SELECT 1 FROM api_holds WHERE source = :source AND held_until > :now) AS is_held
    FROM (
        SELECT operation_no, backfill_no, at FROM api_operations
        WHERE source = :source AND entry = 'reserved' ORDER BY at DESC, operation_no DESC LIMIT 1
    ) AS newest
    LEFT JOIN (
        SELECT operation_no, backfill_no FROM api_operations
        WHERE source = :source AND entry = 'reserved' AND at <= :expired ORDER BY at DESC, operation_no DESC LIMIT 1
    ) AS expired ON TRUE
    """,
    now=Instant(),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The numbers of the last operations of a source, and how many of them are within the last 24 hours."""

    number: int = 0
    backfill_number: int = 0
    last_at: datetime | None = None
    used: int = 0
    backfill_used: int = 0
    is_held: bool


class QuotaReader:
    """How many operations the last 24 hours have used, and which holds are active."""

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine, self._clock = engine, clock

    def usage(self, source: str, limits: QuotaLimits) -> QuotaUsage:
        """What is used and what is left now."""

        def read(connection: sa.Connection) -> QuotaUsage:
            now = self._clock() if self._clock else read_clock(connection)
            window = _read_window(connection, source, now)
            holds = tuple(_read_holds(connection, source, now))
            return QuotaUsage(
                limits=limits, fresh=window.used - window.backfill_used, backfill=window.backfill_used, holds=holds
            )

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
    connection, source = transaction.connection, operation.source
    now = _lock(transaction, source)
    window = _read_window(connection, source, now)
    if refused := _find_refusal(connection, window, operation, limits, now):
        return refused
    number, backfill_no = window.number + 1, window.backfill_number + (operation.lane is Lane.BACKFILL)
    # Never before the last operation: times must have the order of the numbers.
    at = instant_text(max(now, window.last_at or now))
    row = _encode(transaction, operation, number) | {"entry": "reserved", "at": at, "backfill_no": backfill_no}
    _INSERT_OPERATION.execute(connection, [row])
    if number == 1:
        _INSERT_HEAD.execute(connection, [{"source": source, "opened_at": at}])
    return Granted(operation=operation, number=number)


def _lock(transaction: LedgerTransaction, source: str) -> datetime:
    """Wait for the reservations of the source that have begun. Return the time after that."""
    connection, clock, given = transaction.connection, transaction.writer.clock, [{"source": source}]
    if connection.dialect.name == "sqlite":  # the transaction has locked the whole file, on this machine's clock
        return clock() if clock else datetime.now(UTC)
    locked = _LOCK_HEAD.execute(connection, given).one_or_none()
    if locked is None:
        _INSERT_HEAD.execute(connection, [{"source": source, "opened_at": transaction.at}])
        locked = _LOCK_HEAD.execute(connection, given).one()
    now: datetime = clock() if clock else locked.now
    return now


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
    connection: sa.Connection, window: _Window, operation: Operation, limits: QuotaLimits, now: datetime
) -> Refused | None:
    """Why the call must wait: a hold, or a limit with the moment at which an operation of the window expires."""
    source = operation.source
    active = _read_holds(connection, source, now) if window.is_held else []
    holds = [each for each in active if each.customer_id in _held_by(operation)]
    if holds:
        longest = max(holds, key=lambda hold: hold.until)
        return Refused(until=longest.until, why=longest.why)
    total, own = limits.daily_operations, limits.limit_of(operation.lane)
    if total is None or own is None:
        return None
    waits = list[tuple[datetime, str]]()
    if window.used >= total:
        at = _time_of(connection, _READ_OPERATION_TIME, source, window.number - total + 1)
        waits.append((at + WINDOW, f"{window.used} of {total} operations were used within 24 hours"))
    if operation.lane is Lane.BACKFILL and window.backfill_used >= own:
        at = _time_of(connection, _READ_BACKFILL_TIME, source, window.backfill_number - own + 1)
        used = f"backfills used {window.backfill_used} of {own} operations within 24 hours"
        waits.append((at + WINDOW, f"{used}; the rest is reserved for fresh days"))
    return Refused(until=max(waits)[0], why=max(waits)[1]) if waits else None


def _held_by(operation: Operation) -> tuple[str | None, ...]:
    return (None, operation.customer_id)


def _read_window(connection: sa.Connection, source: str, now: datetime) -> _Window:
    row = connection.execute(_READ_WINDOW, {"source": source, "now": now, "expired": now - WINDOW}).one_or_none()
    if row is None:  # no operation yet; there may be a hold
        return _Window(is_held=True)
    return _Window(
        number=row.operation_no,
        backfill_number=row.backfill_no,
        last_at=row.at,
        used=row.operation_no - (row.expired_no or 0),
        backfill_used=row.backfill_no - (row.expired_backfill_no or 0),
        is_held=bool(row.is_held),
    )


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
