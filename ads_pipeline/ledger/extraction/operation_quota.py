"""The budget of API operations that all runs share: reserve one before each call, and record its outcome.

Operations are numbered. The number of the newest operation that is a day old gives the count of those within the
last 24 hours, so that a reservation reads two of them, however many there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.fetching.quota import (
    WINDOW,
    Granted,
    Hold,
    NarrowedRequest,
    Operation,
    OperationOutcome,
    OtherCall,
    QuotaLimits,
    QuotaUsage,
    Refused,
    SharedSince,
)
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.run_events import idempotency_key
from ads_pipeline.ledger.control.holds import (
    IS_PROBE,
    STOPS_CALL,
    active,
    describe_times,
    find_refusal,
    lock_source,
    mark_probe,
    needs_settlement,
    place_hold,
    read_holds,
    settle_call,
)
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.database import ConcurrentWrite
from ads_pipeline.ledger.sql.ledger_tables import Instant, api_operations, instant_text
from ads_pipeline.ledger.sql.row_mapping import read_clock
from ads_pipeline.ledger.sql.statements import Statement, columns_of, insert, names, query
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

QUOTA_WAITING: Final = "QuotaWaiting"
_INSERT_OPERATION: Final = insert(api_operations, skip_present=True)
# One row: the newest operation of the source, and the newest one that no longer counts.
_WINDOW: Final = """
    given
    LEFT JOIN (
        SELECT operation_no, others_no, at FROM api_operations
        WHERE source = (SELECT source FROM given) AND entry = 'reserved'
        ORDER BY at DESC, operation_no DESC LIMIT 1
    ) AS newest ON TRUE
    LEFT JOIN (
        SELECT operation_no, others_no FROM api_operations
        WHERE source = (SELECT source FROM given) AND entry = 'reserved'
            AND at <= (SELECT expired_at FROM given)
        ORDER BY at DESC, operation_no DESC LIMIT 1
    ) AS expired ON TRUE
    """
_WINDOW_COLUMNS: Final = {"source": "text", "expired_at": "instant"}
_READ_WINDOW: Final = Statement(
    "read_quota_window",
    _WINDOW_COLUMNS,
    f"""
    SELECT newest.operation_no, newest.others_no,
        expired.operation_no AS expired_no, expired.others_no AS expired_others_no
    FROM {_WINDOW}
    """,
)
# Insert the next operation if neither a limit nor a hold forbids it, and return its number. It is never before the
# last operation: times must have the order of the numbers.
_GRANTED: Final = columns_of(
    api_operations, "engine_run_id", "kind", "lane", "customer_id", "query_name", "since", "until"
)
_GRANT: Final = Statement(
    "grant_operation",
    {
        **_WINDOW_COLUMNS,
        **_GRANTED,
        "now": "instant",
        "probe_limit": "instant",
        "probe_turn": "instant",
        "is_other": "integer",
        "total_limit": "bigint",
        "limit_of_others": "bigint",
    },
    f"""
    INSERT INTO api_operations (source, operation_no, entry, at, others_no, {names(_GRANTED)})
    SELECT source, coalesce(newest.operation_no, 0) + 1, 'reserved',
        greatest(given.now, coalesce(newest.at, given.now)), coalesce(newest.others_no, 0) + is_other,
        {names(_GRANTED)}
    FROM {_WINDOW}
    WHERE (
            total_limit IS NULL
            OR coalesce(newest.operation_no, 0) - coalesce(expired.operation_no, 0) < total_limit
        )
        AND (
            limit_of_others IS NULL
            OR coalesce(newest.others_no, 0) - coalesce(expired.others_no, 0) < limit_of_others
        )
        AND NOT EXISTS (SELECT 1 FROM api_holds WHERE {STOPS_CALL})
    RETURNING operation_no, {IS_PROBE} AS is_probe
    """,
    flags=("is_probe",),
)
# The newest call of another run for some of the same days, if it lasts or has an outcome. A call lasts until its
# outcome is recorded or the lease of its run has expired.
_CALL: Final = columns_of(api_operations, "source", "engine_run_id", "customer_id", "query_name", "since", "until")
_FIND_OTHER_CALL: Final = Statement(
    "find_other_call",
    {**_CALL, "shared_at": "instant", "final_at": "instant", "now": "instant"},
    """
    SELECT reserved.engine_run_id, finished.outcome, finished.error_message, finished.request_id,
        coalesce(leases.ended_at IS NULL AND leases.expires_at > given.now, false) AS is_live,
        coalesce(finished.at >= final_at, false) AS is_new
    FROM given
    JOIN api_operations AS reserved ON reserved.source = given.source AND reserved.entry = 'reserved'
        AND reserved.customer_id = given.customer_id AND reserved.query_name = given.query_name
        AND reserved.since <= given.until AND reserved.until >= given.since
        AND reserved.at >= shared_at AND reserved.engine_run_id <> given.engine_run_id
    LEFT JOIN api_operations AS finished ON finished.source = reserved.source
        AND finished.operation_no = reserved.operation_no AND finished.entry = 'finished'
    LEFT JOIN leases ON leases.engine_run_id = reserved.engine_run_id
    WHERE finished.outcome IS NOT NULL OR (leases.ended_at IS NULL AND leases.expires_at > given.now)
    ORDER BY reserved.operation_no DESC LIMIT 1
    """,
    flags=("is_live", "is_new"),
)
_FIND_EVENT: Final = query(
    "SELECT count(*) FROM run_events WHERE engine_run_id = :engine_run_id AND idempotency_key = :idempotency_key"
)
_READ_OPERATION_TIME: Final = query(
    "SELECT at FROM api_operations WHERE source = :source AND operation_no = :number AND entry = 'reserved'"
)
# The operation with a number among those for no fresh day. The search begins at the oldest operation that counts.
_READ_OTHERS_TIME: Final = query(
    """
    SELECT at FROM api_operations
    WHERE source = :source AND operation_no > :after AND entry = 'reserved' AND others_no >= :number
    ORDER BY operation_no LIMIT 1
    """
)


# Requests for too many days, each beside the later ones for some of its days that were answered.
_READ_NARROWED: Final = query(
    """
    SELECT refused.outcome, refused.at, refused.customer_id, refused.query_name, refused.since, refused.until,
        worked.since AS worked_since, worked.until AS worked_until
    FROM api_operations AS refused
    LEFT JOIN api_operations AS reserved ON reserved.source = refused.source AND reserved.entry = 'reserved'
        AND reserved.customer_id = refused.customer_id AND reserved.query_name = refused.query_name
        AND reserved.operation_no > refused.operation_no
        AND reserved.since >= refused.since AND reserved.until <= refused.until
    LEFT JOIN api_operations AS worked ON worked.source = reserved.source
        AND worked.operation_no = reserved.operation_no AND worked.entry = 'finished' AND worked.outcome = 'ok'
    WHERE refused.source = :source AND refused.at >= :since
        AND refused.outcome IN ('range_too_wide', 'single_days_only', 'timed_out')
    """,
    since=Instant(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Window:
    """The numbers of the last operations of a source, and how many of them are within the last 24 hours."""

    number: int
    others_number: int
    used: int
    others_used: int


class QuotaReader:
    """Reads the operations of the last 24 hours, and the active holds."""

    def __init__(self, engine: database.Reading, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine, self._clock = engine, clock

    def usage(self, source: str, limits: QuotaLimits) -> QuotaUsage:
        """The operations that are used and left now."""

        def read(connection: sa.Connection) -> QuotaUsage:
            now = self._clock() if self._clock else read_clock(connection)
            window = _read_window(connection, source, now)
            holds = active(read_holds(connection, source), now)
            return QuotaUsage(
                limits=limits, fresh=window.used - window.others_used, others=window.others_used, holds=holds
            )

        return database.transact(self._engine, read)

    def list_holds(self, source: str) -> tuple[Hold, ...]:
        """The holds of a source that are not lifted, also those whose time has come before any call tried them."""
        return tuple(database.transact(self._engine, lambda connection: read_holds(connection, source)))

    def list_narrowed(self, source: str, since: datetime) -> list[NarrowedRequest]:
        """The requests since a time that asked for too many days, each once for every narrower one that worked."""
        given = {"source": source, "since": since}
        rows = database.transact(self._engine, lambda connection: connection.execute(_READ_NARROWED, given).all())
        return [
            NarrowedRequest(
                outcome=row.outcome,
                at=row.at,
                customer_id=row.customer_id,
                query_name=row.query_name,
                days=_count_days(row.since, row.until),
                worked_days=row.worked_since and _count_days(row.worked_since, row.worked_until),
            )
            for row in rows
        ]


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

    def reserve_shared(
        self, operation: Operation, limits: QuotaLimits, shared: SharedSince
    ) -> Granted | Refused | OtherCall:
        """The same for a call that runs share. Nothing is counted when the call of another run stands in the way."""

        def reserve(transaction: LedgerTransaction) -> Granted | Refused | OtherCall:
            now = lock_source(transaction, operation.source)
            return _find_other_call(transaction, operation, shared, now) or _reserve(transaction, operation, limits)

        return self._writer.transact(reserve)

    def finish(self, granted: Granted, outcome: OperationOutcome, requested: Hold | None = None) -> Hold | None:
        """Record how the call ended, and emit OperationSpent. A repeated record changes nothing.

        `requested` is the wait that the source asked for. Returns the hold of the outage that an unanswered call met;
        None for an answered call, and when the fault is its account's own.
        """
        return self._writer.transact(lambda transaction: _finish(transaction, granted, outcome, requested))

    def hold(self, hold: Hold) -> None:
        """Stop calls of all runs until a time. A later time that is stored already stays."""
        self._writer.transact(lambda transaction: _hold(transaction, hold))


def _count_days(since: date | str, until: date | str) -> int:
    first, last = (date.fromisoformat(str(day)) for day in (since, until))
    return (last - first).days + 1


def _reserve(transaction: LedgerTransaction, operation: Operation, limits: QuotaLimits) -> Granted | Refused:
    connection, source = transaction.connection, operation.source
    now = lock_source(transaction, source)
    requested = _describe(transaction, operation) | describe_times(now)
    requested |= {
        "now": instant_text(now),
        "expired_at": instant_text(now - WINDOW),
        "is_other": int(not operation.is_for_fresh_days),
        "total_limit": limits.daily_operations,
        "limit_of_others": limits.limit_for(operation),
    }
    row = _GRANT.execute(connection, [requested]).one_or_none()
    if row is None:
        refused = _find_refusal(connection, operation, limits, now)
        _emit_waiting(transaction, operation, refused.until, refused.why)
        return refused
    if row.is_probe:
        mark_probe(connection, operation, row.operation_no, now)
    return Granted(operation=operation, number=row.operation_no, is_probe=row.is_probe)


def _find_other_call(
    transaction: LedgerTransaction, operation: Operation, shared: SharedSince, now: datetime
) -> OtherCall | None:
    """The newest call of another run for these days, if it has not ended or has ended with a final outcome."""
    described = _describe(transaction, operation)
    given = {name: described[name] for name in _CALL} | {
        "shared_at": instant_text(shared.at),
        "final_at": instant_text(shared.final_at),
        "now": instant_text(now),
    }
    row = _FIND_OTHER_CALL.execute(transaction.connection, [given]).one_or_none()
    if row is None:
        return None
    if row.outcome is None:
        return OtherCall(engine_run_id=row.engine_run_id)
    if row.outcome not in shared.final or not (row.is_live or row.is_new):
        return None
    refusal = OperationOutcome(outcome=row.outcome, error_message=row.error_message, request_id=row.request_id)
    return OtherCall(engine_run_id=row.engine_run_id, refusal=refusal)


def _hold(transaction: LedgerTransaction, hold: Hold) -> None:
    placed = place_hold(transaction, hold, lock_source(transaction, hold.source))
    _emit_hold(transaction, placed)


def _emit_hold(transaction: LedgerTransaction, hold: Hold) -> None:
    operation = Operation(source=hold.source, customer_id=hold.customer_id)
    _emit_waiting(transaction, operation, hold.until, printable(hold.why), request_id=hold.request_id)


def _emit_waiting(
    transaction: LedgerTransaction, operation: Operation, until: datetime, why: str, *, request_id: str | None = None
) -> None:
    """Emit QuotaWaiting when the run has to wait for the first time. The lock of the source serializes its steps."""
    origin = transaction.writer.origin
    key = idempotency_key(
        engine_run_id=origin.engine_run_id,
        step_id=None,
        logical_attempt_id=1,
        event_type=QUOTA_WAITING,
        plan_version=origin.plan_version,
    )
    if transaction.connection.scalar(_FIND_EVENT, {"engine_run_id": origin.engine_run_id, "idempotency_key": key}):
        return
    data = {
        "until": instant_text(until),
        "why": why,
        "customer_id": operation.customer_id,
        "query_name": operation.query_name,
        "request_id": request_id,
    }
    transaction.emit(QUOTA_WAITING, None, 1, {name: value for name, value in data.items() if value is not None})


def _finish(
    transaction: LedgerTransaction, granted: Granted, outcome: OperationOutcome, requested: Hold | None
) -> Hold | None:
    result = {
        "outcome": outcome.outcome,
        "request_id": outcome.request_id,
        "rows_received": outcome.rows,
        "milliseconds": None if outcome.seconds is None else round(outcome.seconds * 1_000),
        "consumption": outcome.consumption,
    }
    row = _describe(transaction, granted.operation) | {"operation_no": granted.number}
    row |= {"entry": "finished", "at": transaction.at, "others_no": 0} | result
    row["error_message"] = None if outcome.error_message is None else printable(outcome.error_message)
    if requested is not None or needs_settlement(granted, outcome):
        now = lock_source(transaction, granted.operation.source)
    else:
        now = None
    if not _INSERT_OPERATION.write(transaction.connection, [row]):
        return None
    data = {name: row[name] for name in ("kind", "customer_id", "query_name", "since", "until", *result)}
    transaction.emit("OperationSpent", None, granted.number, data)
    return None if now is None else _settle(transaction, granted, outcome, requested, now)


def _settle(
    transaction: LedgerTransaction,
    granted: Granted,
    outcome: OperationOutcome,
    requested: Hold | None,
    now: datetime,
) -> Hold | None:
    """Place, lengthen or lift holds by the outcome of a call. The source is locked."""
    outage = settle_call(transaction, granted, outcome, now)
    for hold in (outage, requested and place_hold(transaction, requested, now, failed_no=granted.number)):
        if hold is not None:
            _emit_hold(transaction, hold)
    return outage


def _describe(transaction: LedgerTransaction, operation: Operation) -> dict[str, Any]:
    """The columns of an operation that do not depend on when it is granted."""
    return {
        "source": operation.source,
        "engine_run_id": transaction.writer.origin.engine_run_id,
        "kind": str(operation.kind),
        "lane": str(operation.lane),
        "customer_id": operation.customer_id,
        "query_name": operation.query_name,
        "since": operation.since and operation.since.isoformat(),
        "until": operation.until and operation.until.isoformat(),
    }


def _find_refusal(connection: sa.Connection, operation: Operation, limits: QuotaLimits, now: datetime) -> Refused:
    """Why the call must wait: a hold, or a limit with the moment at which an operation of the window expires."""
    source = operation.source
    held = find_refusal(connection, operation, now)
    if held is not None:
        return held
    window, waits = _read_window(connection, source, now), list[tuple[datetime, str]]()
    total, own = limits.daily_operations, limits.limit_for(operation)
    if total is not None and window.used >= total:
        oldest = {"source": source, "number": window.number - total + 1}
        at = connection.execute(_READ_OPERATION_TIME, oldest).scalar_one()
        waits.append((at + WINDOW, f"{window.used} of {total} operations were used within 24 hours"))
    if own is not None and window.others_used >= own:
        oldest = {"source": source, "number": window.others_number - own + 1, "after": window.number - window.used}
        at = connection.execute(_READ_OTHERS_TIME, oldest).scalar_one()
        used = f"backfills and questions about accounts used {window.others_used} of {own} operations within 24 hours"
        waits.append((at + WINDOW, f"{used}; the rest is reserved for fresh days"))
    if not waits:
        raise ConcurrentWrite(f"the operations of {source} changed without its lock")
    return Refused(until=max(waits)[0], why=max(waits)[1])


def _read_window(connection: sa.Connection, source: str, now: datetime) -> _Window:
    row = _READ_WINDOW.execute(connection, [{"source": source, "expired_at": instant_text(now - WINDOW)}]).one()
    number, others_number = row.operation_no or 0, row.others_no or 0
    return _Window(
        number=number,
        others_number=others_number,
        used=number - (row.expired_no or 0),
        others_used=others_number - (row.expired_others_no or 0),
    )
