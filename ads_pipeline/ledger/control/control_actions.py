"""Control actions on a ledger: decide per partition, write states, log and emit events; park, release, schedule.

Holders of a `ControlActions` may requeue a failed partition; only holders of `Verdicts` can mark one as safe to read.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import MarkedTerminal, PartitionRefused, StateChanged
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.run_events import idempotency_key
from ads_pipeline.domain.transitions import Action, PartitionState, apply_control_action
from ads_pipeline.ledger.control.holds import lift_hold, lock_source
from ads_pipeline.ledger.control.retry_queue import RetryQueue
from ads_pipeline.ledger.control.retry_queue_queries import READ_MARKED
from ads_pipeline.ledger.control.retry_resets import reset_retries
from ads_pipeline.ledger.sql.ledger_tables import (
    KEY,
    control_action_partitions,
    parkings,
    retry_queue,
)
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, ActionResult
from ads_pipeline.ledger.sql.row_mapping import (
    decode_key,
    encode_key,
    encode_key_by_name,
    encode_state,
    key_of_table,
)
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Statement, insert, upsert
from ads_pipeline.ledger.write_steps.audit_log import is_logged, log_action
from ads_pipeline.ledger.write_steps.transactions import UPDATE_STATES, LedgerTransaction, LedgerWriter

_LOG: Final = logging.getLogger(__name__)

EVENT_TYPES: Final[Mapping[Action, str]] = {
    Action.ENQUEUE: "PartitionEnqueued",
    Action.REQUEUE: "PartitionRequeued",
    Action.WITHDRAW: "PartitionWithdrawn",
    Action.REPROCESS: "ReprocessRequested",
    Action.MARK_TERMINAL: "TerminalMarked",
    Action.CLEAR_TERMINAL: "TerminalCleared",
    Action.ACKNOWLEDGE: "DayAcknowledged",
}
# The actions that open a request for a new run, and the kind of that request.
REQUEST_KINDS: Final[Mapping[Action, str]] = {
    Action.REQUEUE: "retry",
    Action.ENQUEUE: "backfill",
    Action.REPROCESS: "reprocess",
}
# The key of each given partition, once per logged action on it.
_ACTIONS_PER_PARTITION: Final = Statement(
    "actions_per_partition",
    KEY_COLUMNS,
    """
    SELECT source, customer_id, query_name, logical_date
    FROM given JOIN control_action_partitions USING (source, customer_id, query_name, logical_date)
    """,
)
_UPSERT_REQUESTS: Final = upsert(retry_queue, *KEY, "kind", "action_id", "requested_no", "requested_at")
# The given partitions with an open request for a new run whose fetch has not failed. The next verdict closes it.
_READ_OPEN_REQUESTS: Final = Statement(
    "read_open_requests",
    KEY_COLUMNS,
    """
    SELECT source, customer_id, query_name, logical_date
    FROM given
    JOIN retry_queue USING (source, customer_id, query_name, logical_date)
    JOIN partition_state USING (source, customer_id, query_name, logical_date)
    WHERE attempt_count = requested_no AND (attempt_no = requested_no AND failed_at > requested_at) IS NOT TRUE
    """,
)
# The given pending partitions whose last fetch failed, if that was after their open request.
_READ_FAILED_FETCHES: Final = Statement(
    "read_failed_fetches_of_pending",
    KEY_COLUMNS,
    """
    SELECT source, customer_id, query_name, logical_date
    FROM given
    JOIN partition_state USING (source, customer_id, query_name, logical_date)
    JOIN retry_queue USING (source, customer_id, query_name, logical_date)
    WHERE status = 'pending' AND attempt_no = attempt_count
        AND (requested_no = attempt_count AND requested_at >= failed_at) IS NOT TRUE
    """,
)
_READ_PRESENT_EVENTS: Final = Statement(
    "read_present_events",
    {"engine_run_id": "text", "idempotency_key": "text"},
    "SELECT idempotency_key FROM given JOIN run_events USING (engine_run_id, idempotency_key)",
)
INSERT_PARKINGS: Final = insert(parkings, skip_present=True)


class ControlActions:
    """The control actions of operators and of the retry policy. They need no claim."""

    def __init__(self, writer: LedgerWriter, retry_queue: RetryQueue) -> None:
        self._writer, self._retry_queue = writer, retry_queue

    def execute(
        self,
        action: Action,
        keys: Iterable[PartitionKey],
        request: ActionRequest,
        *,
        expected: Iterable[PartitionState] = (),
    ) -> ActionResult:
        """Execute a control action on each partition that permits it, and log it in the same transaction.

        With `expected` states, as a preview showed them, a partition that has changed since is refused.
        """
        requested, states = sorted(set(keys)), {state.key: state for state in expected}
        result = self._writer.transact(
            lambda transaction: execute_action(transaction, action, requested, request, states)
        )
        log_executed(action, request, result)
        return result

    def schedule_failures(self, policy: RetryPolicy, *, today: date) -> int:
        """Schedule every failure that has no retry yet, and delete finished rows. Returns the number scheduled."""
        return self._retry_queue.schedule_failures(policy, today=today)

    def park(self, parking: Parking, request: ActionRequest) -> bool:
        """Stop fetching an account, a query or the source until it is released. False when it was parked already."""

        def work(transaction: LedgerTransaction) -> bool:
            if is_logged(transaction, "park", request):
                return True
            log_action(transaction, "park", request, (), {})
            row = asdict(parking) | {"parked_at": transaction.at}
            return bool(INSERT_PARKINGS.write(transaction.connection, [row]))

        return self._writer.transact(work)

    def release(self, parking: Parking, request: ActionRequest) -> bool:
        """Resume fetching an account, query or source: end its parking and its hold. False when it had neither.

        Its failed fetches do not count any more, and are due now.
        """

        def work(transaction: LedgerTransaction) -> bool:
            if is_logged(transaction, "release", request):
                return True
            log_action(transaction, "release", request, (), {})
            is_parking = (parkings.c[name] == getattr(parking, name) for name in ("source", "scope", "name"))
            was_parked = bool(transaction.connection.execute(sa.delete(parkings).where(*is_parking)).rowcount)
            return _lift(transaction, parking) or was_parked

        return self._writer.transact(work)


def _lift(transaction: LedgerTransaction, released: Parking) -> bool:
    """Lift the hold of a source or customer, and make the failed fetches of what was released due."""
    source, is_source = released.source, released.scope == "source"
    now = lock_source(transaction, source)
    reset_retries(transaction, source=source, scope=released.scope, name=released.name, at=now)
    if released.scope == "query":
        return False
    return lift_hold(transaction, source, None if is_source else released.name, now)


def log_executed(action: Action, request: ActionRequest, result: ActionResult) -> None:
    """Log a line about an action that was executed."""
    log_event(
        _LOG,
        LogEvent.ACTION_EXECUTED,
        action=action.name.lower(),
        action_id=request.action_id,
        operator=request.operator,
        changed=len(result.changed),
        refused=len(result.refused),
    )


def execute_action(
    transaction: LedgerTransaction,
    action: Action,
    keys: Sequence[PartitionKey],
    request: ActionRequest,
    expected: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    """Execute the action on each partition, or return the first result when the request was executed before.

    A partition that differs from its `expected` state is refused.
    """
    before = transaction.lock_states(keys)
    now = transaction.now  # after the locks, so that the actions of a partition have the order of their times
    if is_logged(transaction, action.name, request):
        return read_earlier_result(transaction, request, keys, before)
    states = [before.get(key) or PartitionState.absent(key) for key in keys]
    recorded, failed = _find_recorded(transaction, action, keys), _find_failed_fetches(transaction, action, keys)
    result = decide_action(action, states, expected, recorded, failed, now)
    log_action(transaction, action.name, request, result.changed, before)
    _write_changes(transaction, action, request, result.changed, before)
    _emit_events(transaction, action, request, result.changed)
    return result


def _write_changes(
    transaction: LedgerTransaction,
    action: Action,
    request: ActionRequest,
    changed: Sequence[PartitionState],
    before: Mapping[PartitionKey, PartitionState],
) -> None:
    connection, keys = transaction.connection, [state.key for state in changed]
    updated = [state for state in changed if state.key in before and state != before[state.key]]
    UPDATE_STATES.write(connection, map(encode_state, updated))
    transaction.insert_pending(
        [state.key for state in changed if state.key not in before and state.recorded_status is not None]
    )
    if action is Action.WITHDRAW:
        transaction.withdraw_pointers(keys)
    if action in REQUEST_KINDS:
        opened = {
            "kind": REQUEST_KINDS[action],
            "action_id": request.action_id,
            "requested_at": transaction.at,
        }
        rows = (encode_key_by_name(state.key) | {"requested_no": state.attempt_count} | opened for state in changed)
        _UPSERT_REQUESTS.write(connection, rows)


def _emit_events(
    transaction: LedgerTransaction, action: Action, request: ActionRequest, changed: Sequence[PartitionState]
) -> None:
    """Emit one event per changed partition. Its attempt is the coming one.

    Terminal marks and acknowledgements belong to no attempt: they are numbered by the partition's logged actions.
    """
    data = {"operator": printable(request.operator), "reason": printable(request.reason)}
    numbers: Mapping[PartitionKey, int] = {state.key: state.attempt_count + 1 for state in changed}
    if action in {Action.MARK_TERMINAL, Action.CLEAR_TERMINAL, Action.ACKNOWLEDGE}:
        rows = _ACTIONS_PER_PARTITION.execute(transaction.connection, map(encode_key, numbers))
        numbers = Counter(map(decode_key, rows))
    present = _find_present_events(transaction, action, numbers)
    for key, number in numbers.items():
        if key not in present:
            transaction.emit(EVENT_TYPES[action], key, number, data, caused_by=request.action_id)


def _find_present_events(
    transaction: LedgerTransaction, action: Action, numbers: Mapping[PartitionKey, int]
) -> set[PartitionKey]:
    """The partitions that this engine run has requested before their coming attempt, and whose fetches failed since.

    Only their requests may be repeated before that attempt. The log of actions has each of them.
    """
    if action not in REQUEST_KINDS:
        return set()
    origin, event_type = transaction.writer.origin, EVENT_TYPES[action]
    keys = {
        idempotency_key(
            engine_run_id=origin.engine_run_id,
            step_id=str(key),
            logical_attempt_id=number,
            event_type=event_type,
            plan_version=origin.plan_version,
        ): key
        for key, number in numbers.items()
    }
    rows = _READ_PRESENT_EVENTS.execute(transaction.connection, ((origin.engine_run_id, each) for each in keys))
    return {keys[row.idempotency_key] for row in rows}


def read_earlier_result(
    transaction: LedgerTransaction,
    request: ActionRequest,
    keys: Sequence[PartitionKey],
    states: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    logged = control_action_partitions
    rows = transaction.connection.execute(
        sa.select(*key_of_table(logged)).where(logged.c.action_id == request.action_id)
    )
    changed = set(map(decode_key, rows))
    return ActionResult(
        changed=tuple(states.get(key) or PartitionState.absent(key) for key in keys if key in changed),
        unchanged=tuple(key for key in keys if key not in changed),
    )


def _find_recorded(
    transaction: LedgerTransaction, action: Action, keys: Sequence[PartitionKey]
) -> Collection[PartitionKey]:
    """The partitions that already have the open request or the terminal mark that this action concerns."""
    if action is Action.REPROCESS:
        return set(map(decode_key, _READ_OPEN_REQUESTS.execute(transaction.connection, map(encode_key, keys))))
    if action in {Action.REQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL}:
        return set(map(decode_key, READ_MARKED.execute(transaction.connection, map(encode_key, keys))))
    return ()


def _find_failed_fetches(
    transaction: LedgerTransaction, action: Action, keys: Sequence[PartitionKey]
) -> Collection[PartitionKey]:
    """The pending partitions whose last fetch failed: requeueing one requests another run of it."""
    if action is not Action.REQUEUE:
        return ()
    return set(map(decode_key, _READ_FAILED_FETCHES.execute(transaction.connection, map(encode_key, keys))))


def decide_action(
    action: Action,
    states: Iterable[PartitionState],
    expected: Mapping[PartitionKey, PartitionState],
    recorded: Collection[PartitionKey],
    failed: Collection[PartitionKey],
    now: datetime,
) -> ActionResult:
    changed: list[PartitionState] = []
    unchanged: list[PartitionKey] = []
    refused: dict[PartitionKey, PartitionRefused] = {}
    for before in states:
        key = before.key
        try:
            flags = {"is_recorded": key in recorded, "has_failed": key in failed}
            after = _apply(action, before, expected.get(key, before), now=now, **flags)
        except PartitionRefused as error:
            refused[key] = error
        else:
            if after is None:
                unchanged.append(key)
            else:
                changed.append(after)
    return ActionResult(changed=tuple(changed), unchanged=tuple(unchanged), refused=refused)


def _apply(
    action: Action,
    before: PartitionState,
    expected: PartitionState,
    *,
    is_recorded: bool,
    has_failed: bool,
    now: datetime,
) -> PartitionState | None:
    """The state after the action, or None when the action has nothing to change."""
    if before != expected:
        raise StateChanged(str(before.key), _describe(expected), _describe(before))
    after = apply_control_action(before, action, now=now)
    match action:
        case Action.REPROCESS | Action.MARK_TERMINAL | Action.ACKNOWLEDGE:
            return None if is_recorded else after
        case Action.CLEAR_TERMINAL:
            return after if is_recorded else None
        case Action.REQUEUE if is_recorded and (has_failed or after is not before):
            raise MarkedTerminal(str(before.key))
        case Action.REQUEUE if has_failed:
            return after
    return None if after is before else after


def _describe(state: PartitionState) -> str:
    attempts = "1 attempt" if state.attempt_count == 1 else f"{state.attempt_count} attempts"
    return f"{state.recorded_status or 'absent'} after {attempts}"
