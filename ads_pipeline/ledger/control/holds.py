"""Holds on the calls to a source: placed, made longer, tried by one probe at a time, and lifted.

Who changes a hold has locked its source by `lock_source`, so that all processes see one order.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.fetching.outages import (
    CALLS_JUDGED,
    LONGEST_HOLD,
    PROBE_LIMIT,
    PROBE_TURN,
    SOURCE_UNAVAILABLE,
    EndedCall,
    is_source_away,
    pause_after,
)
from ads_pipeline.domain.fetching.quota import Granted, Hold, Operation, OperationOutcome, Refused
from ads_pipeline.domain.quoting import printable
from ads_pipeline.ledger.control.retry_resets import RECOVERY, reset_retries
from ads_pipeline.ledger.sql.ledger_tables import Instant, api_holds, instant_text
from ads_pipeline.ledger.sql.statements import query, upsert
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction

WHOLE_SOURCE: Final = ""  # the customer_id of a hold on all calls
# The row of the whole source is the lock of the source. The clock is read after the wait.
_LOCK_SOURCE: Final = query(
    """
    SELECT clock_timestamp() AS now FROM (
        SELECT source FROM api_holds WHERE source = :source AND customer_id = '' FOR UPDATE
    ) AS locked
    """
)
# A hold that has ended, so that there is a row to lock.
_INSERT_LOCK: Final = query(
    """
    INSERT INTO api_holds (source, customer_id, held_until, why, held_at, error_class, failures, lifted_at)
    SELECT :source, '', at, 'no hold was placed yet', at, 'none', 0, at FROM (SELECT clock_timestamp() AS at) AS clock
    ON CONFLICT DO NOTHING
    """
)
# A hold that stops the call of the row `given`, with the times `now`, `probe_limit` and `probe_turn`: its time has
# not come, its probe has no outcome yet, or another account probes first.
STOPS_CALL: Final = f"""
    api_holds.source = given.source AND lifted_at IS NULL
    AND (api_holds.customer_id = '' OR api_holds.customer_id = given.customer_id)
    AND (held_until > given.now OR probe_at > given.probe_limit
        OR error_class = '{SOURCE_UNAVAILABLE}' AND held_until > given.probe_turn AND EXISTS (
            SELECT 1 FROM api_operations AS failed
            WHERE failed.source = given.source AND failed.operation_no = failed_no AND failed.entry = 'reserved'
                AND failed.customer_id = given.customer_id))
"""
# Whether a hold covers the operation that was inserted: its time has come, so the operation is the probe.
IS_PROBE: Final = """
    EXISTS (
        SELECT 1 FROM api_holds WHERE api_holds.source = api_operations.source AND lifted_at IS NULL
            AND (api_holds.customer_id = '' OR api_holds.customer_id = api_operations.customer_id))
"""
_UPSERT: Final = upsert(
    api_holds, newer="api_holds.lifted_at IS NOT NULL OR api_holds.held_until < excluded.held_until"
)
_READ: Final = query(
    """
    SELECT api_holds.*, failed.customer_id AS failed_customer FROM api_holds
    LEFT JOIN api_operations AS failed ON failed.source = api_holds.source
        AND failed.operation_no = failed_no AND failed.entry = 'reserved'
    WHERE api_holds.source = :source AND lifted_at IS NULL ORDER BY api_holds.customer_id
    """
)
_COVERS: Final = "source = :source AND lifted_at IS NULL AND (customer_id = '' OR customer_id = :customer_id)"
_MARK_PROBE: Final = query(f"UPDATE api_holds SET probe_no = :number, probe_at = :now WHERE {_COVERS}", now=Instant())
_FORGET_PROBE: Final = query(
    "UPDATE api_holds SET probe_no = NULL, probe_at = NULL WHERE source = :source AND probe_no = :number"
)
_LIFT: Final = query(
    f"UPDATE api_holds SET lifted_at = :now, probe_no = NULL, probe_at = NULL WHERE {_COVERS} RETURNING error_class",
    now=Instant(),
)
_LIFT_ONE: Final = query(
    """
    UPDATE api_holds SET lifted_at = :now, probe_no = NULL, probe_at = NULL
    WHERE source = :source AND customer_id = :customer_id AND lifted_at IS NULL
    """,
    now=Instant(),
)
_READ_ENDED_CALLS: Final = query(
    f"""
    SELECT operation_no, at, customer_id, outcome, rows_received FROM api_operations
    WHERE source = :source AND entry = 'finished' ORDER BY operation_no DESC LIMIT {CALLS_JUDGED}
    """
)
_COUNT_ACCOUNTS: Final = query(
    """
    SELECT count(*) FROM accounts WHERE source = :source AND is_manager = 0 AND gone_at IS NULL AND NOT EXISTS (
        SELECT 1 FROM parkings
        WHERE parkings.source = accounts.source AND scope = 'customer' AND name = accounts.customer_id)
    """
)


def lock_source(transaction: LedgerTransaction, source: str) -> datetime:
    """Wait for the reservations and holds of the source that have begun. Return the time after that."""
    connection, clock = transaction.connection, transaction.writer.clock
    if connection.dialect.name == "sqlite":  # the transaction has locked the whole file, on this machine's clock
        return clock() if clock else datetime.now(UTC)
    locked_at = connection.execute(_LOCK_SOURCE, {"source": source}).scalar()
    if locked_at is None:
        connection.execute(_INSERT_LOCK, {"source": source})
        locked_at = connection.execute(_LOCK_SOURCE, {"source": source}).scalar_one()
    return clock() if clock else locked_at


def read_holds(connection: sa.Connection, source: str) -> list[Hold]:
    """The holds that are not lifted, also those whose time has come and that no call has tried yet."""
    return [_decode(row) for row in connection.execute(_READ, {"source": source})]


def find_refusal(connection: sa.Connection, operation: Operation, now: datetime) -> Refused | None:
    """Until when holds stop the call, and why; None when they do not. The longest counts."""
    rows = connection.execute(_READ, {"source": operation.source}).all()
    refusals = [each for row in rows if (each := _refuse(row, operation, now))]
    return max(refusals, key=lambda each: each.until, default=None)


def mark_probe(connection: sa.Connection, operation: Operation, number: int, now: datetime) -> None:
    """Let others wait for the outcome of this operation."""
    row = {"source": operation.source, "customer_id": operation.customer_id, "number": number, "now": now}
    connection.execute(_MARK_PROBE, row)


def place_hold(transaction: LedgerTransaction, hold: Hold, now: datetime, *, failed_no: int | None = None) -> Hold:
    """Stop calls until a time, at most for the longest hold. A later time that is stored already stays."""
    until = min(hold.until, now + LONGEST_HOLD)
    row = {
        "source": hold.source,
        "customer_id": hold.customer_id or WHOLE_SOURCE,
        "held_until": instant_text(until),
        "why": printable(hold.why),
        "request_id": hold.request_id,
        "held_at": instant_text(hold.since or now),
        "error_class": hold.error_class,
        "failures": hold.failures,
        "failed_no": failed_no,
    }
    _UPSERT.write(transaction.connection, [row])
    return replace(hold, until=until)


def lift_hold(transaction: LedgerTransaction, source: str, customer_id: str | None, now: datetime) -> bool:
    """Grant calls again. False when there was no hold of this scope."""
    row = {"source": source, "customer_id": customer_id or WHOLE_SOURCE, "now": now}
    return bool(transaction.connection.execute(_LIFT_ONE, row).rowcount)


def needs_settlement(granted: Granted, outcome: OperationOutcome) -> bool:
    """Return true when the outcome of a call may place, change or lift a hold."""
    return granted.is_probe or _end(granted, outcome).is_unanswered


def settle_call(
    transaction: LedgerTransaction, granted: Granted, outcome: OperationOutcome, now: datetime
) -> Hold | None:
    """Place, lengthen or lift holds by the outcome of a call that is recorded already.

    Returns the hold of the outage that an unanswered call met; None when the fault is its account's own. An outage
    is always of the whole source.
    """
    connection, source = transaction.connection, granted.operation.source
    ended = _end(granted, outcome)
    outage = next((each for each in read_holds(connection, source) if each.is_outage), None)
    if outage is not None and ended.is_unanswered:
        return _lengthen(transaction, granted, outcome, outage, now)
    if granted.is_probe and not ended.is_evidence:
        connection.execute(_FORGET_PROBE, {"source": source, "number": granted.number})
    elif granted.is_probe:
        _lift_covering(transaction, granted.operation, now)
    if not ended.is_unanswered or not is_source_away(
        list(_read_ended_calls(connection, granted)), connection.scalar(_COUNT_ACCOUNTS, {"source": source}) or 0
    ):
        return None
    return _place_outage(transaction, granted, outcome, failures=1, since=now, now=now)


def _lengthen(
    transaction: LedgerTransaction, granted: Granted, outcome: OperationOutcome, outage: Hold, now: datetime
) -> Hold:
    """The next pause after a probe. A call that began before the hold changes nothing."""
    if not granted.is_probe:
        return outage
    failures, since = outage.failures + 1, outage.since or now
    return _place_outage(transaction, granted, outcome, failures=failures, since=since, now=now)


def _place_outage(
    transaction: LedgerTransaction,
    granted: Granted,
    outcome: OperationOutcome,
    *,
    failures: int,
    since: datetime,
    now: datetime,
) -> Hold:
    calls = "the last call was" if failures == 1 else f"the last {failures:,} calls were"
    hold = Hold(
        source=granted.operation.source,
        until=now + pause_after(failures),
        why=f"the source does not answer, {calls} not answered: {outcome.error_message or outcome.outcome}",
        request_id=outcome.request_id,
        error_class=SOURCE_UNAVAILABLE,
        since=since,
        failures=failures,
    )
    place_hold(transaction, hold, now, failed_no=granted.number)
    return hold


def _lift_covering(transaction: LedgerTransaction, operation: Operation, now: datetime) -> None:
    """Lift what the answered probe was stopped by. After an outage, all that it hit is due again."""
    row = {"source": operation.source, "customer_id": operation.customer_id, "now": now}
    lifted = transaction.connection.execute(_LIFT, row).scalars().all()
    if SOURCE_UNAVAILABLE in lifted:
        reset_retries(transaction, source=operation.source, scope=RECOVERY, name=operation.source, at=now)


def _read_ended_calls(connection: sa.Connection, newest: Granted) -> Iterator[EndedCall]:
    """The newest ended calls, the given one first."""
    rows = connection.execute(_READ_ENDED_CALLS, {"source": newest.operation.source}).all()
    rows = sorted(rows, key=lambda row: (row.operation_no == newest.number, row.at, row.operation_no), reverse=True)
    for row in rows:
        yield EndedCall(customer_id=row.customer_id, outcome=row.outcome, has_rows=bool(row.rows_received))


def _end(granted: Granted, outcome: OperationOutcome) -> EndedCall:
    customer = granted.operation.customer_id
    return EndedCall(customer_id=customer, outcome=outcome.outcome, has_rows=bool(outcome.rows))


def _refuse(row: sa.Row[Any], operation: Operation, now: datetime) -> Refused | None:
    """The refusal of a hold, as `STOPS_CALL` decides it."""
    hold = _decode(row)
    if not hold.covers(operation.customer_id):
        return None
    if hold.until > now:
        return Refused(until=hold.until, why=hold.why, error_class=hold.error_class)
    if hold.probe_at is not None and hold.probe_at > now - PROBE_LIMIT:
        why = f"{hold.why}; one call tries whether that has ended, and this one waits for it"
        return Refused(until=hold.probe_at + PROBE_LIMIT, why=why, error_class=hold.error_class)
    is_turn_of_others = operation.customer_id is not None and hold.failed_customer == operation.customer_id
    if hold.is_outage and is_turn_of_others and hold.until > now - PROBE_TURN:
        why = f"{hold.why}; another account tries first whether that has ended"
        return Refused(until=hold.until + PROBE_TURN, why=why, error_class=hold.error_class)
    return None


def _decode(row: sa.Row[Any]) -> Hold:
    return Hold(
        source=row.source,
        customer_id=row.customer_id or None,
        until=row.held_until,
        why=row.why,
        request_id=row.request_id,
        error_class=row.error_class,
        since=row.held_at,
        failures=row.failures,
        failed_customer=row.failed_customer,
        probe_at=row.probe_at,
    )


def describe_times(now: datetime) -> dict[str, str]:
    """The times that `STOPS_CALL` compares with."""
    return {"probe_limit": instant_text(now - PROBE_LIMIT), "probe_turn": instant_text(now - PROBE_TURN)}


def active(holds: Iterable[Hold], now: datetime) -> tuple[Hold, ...]:
    """The holds whose time has not come."""
    return tuple(each for each in holds if each.until > now)
