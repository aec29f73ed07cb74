"""The transaction of one control action: decide per partition, write states, log and emit events.

`ControlActions` is the interface that opens the transaction and calls these functions.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, PartitionState, apply_control_action
from ads_pipeline.errors import ActionIdReused, IllegalTransition, LedgerError, MarkedTerminal, StateChanged
from ads_pipeline.ledger.row_mapping import key_fields, key_in, state_fields
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import ActionRequest, ActionResult
from ads_pipeline.ledger.write_context import WriteContext
from ads_pipeline.quoting import printable

EVENT_TYPES: Final[Mapping[Action, str]] = {
    Action.ENQUEUE: "PartitionEnqueued",
    Action.REQUEUE: "PartitionRequeued",
    Action.WITHDRAW: "PartitionWithdrawn",
    Action.REPROCESS: "ReprocessRequested",
    Action.MARK_TERMINAL: "TerminalMarked",
    Action.CLEAR_TERMINAL: "TerminalCleared",
}
# The actions that open a request for a new run, and the kind of that request.
REQUEST_KINDS: Final[Mapping[Action, str]] = {
    Action.REQUEUE: "retry",
    Action.ENQUEUE: "backfill",
    Action.REPROCESS: "reprocess",
}


def execute_action(
    context: WriteContext,
    connection: sa.Connection,
    action: Action,
    keys: Sequence[PartitionKey],
    request: ActionRequest,
    expected: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    """Execute the action on each partition, or return the first result when the request was executed before.

    A partition that differs from its `expected` state is refused.
    """
    now = context.now(connection)
    before = context.lock(connection, keys)
    if is_logged(context, connection, action.name, request):
        return _read_earlier_result(context, connection, request, keys, before)
    states = [before.get(key) or PartitionState.absent(key) for key in keys]
    result = _decide(action, states, expected, _find_recorded(context, connection, action, keys), now)
    log_action(context, connection, action.name, request, result.changed, before, now)
    _write_changes(context, connection, action, request, result.changed, before, now)
    _emit_events(context, connection, action, request, result.changed, now)
    return result


def log_action(
    context: WriteContext,
    connection: sa.Connection,
    action: str,
    request: ActionRequest,
    changed: Sequence[PartitionState],
    before: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    """Log the request, and for each changed partition its earlier status and its attempt number."""
    row = {
        "action_id": request.action_id,
        "action": action.lower(),
        "operator": printable(request.operator),
        "command": printable(request.command),
        "filters": printable(request.filters),
        "reason": printable(request.reason),
        "partitions_changed": len(changed),
        "performed_at": now,
    }
    connection.execute(context.sql.insert_action, row)
    rows = (
        key_fields(state.key)
        | {"action_id": request.action_id, "attempt_no": state.attempt_count}
        | {"status_before": before[state.key].status if state.key in before else None}
        for state in changed
    )
    context.sql.insert_action_partitions.run(connection, rows)


def is_logged(context: WriteContext, connection: sa.Connection, action: str, request: ActionRequest) -> bool:
    """Whether this request was executed before. Raises ActionIdReused when its id names another action."""
    row = connection.execute(context.sql.read_action, {"action_id": request.action_id}).one_or_none()
    if row is not None and (row.action, row.operator) != (action.lower(), printable(request.operator)):
        raise ActionIdReused(request.action_id)
    return row is not None


def _write_changes(
    context: WriteContext,
    connection: sa.Connection,
    action: Action,
    request: ActionRequest,
    changed: Sequence[PartitionState],
    before: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    at, keys = instant_text(now), [state.key for state in changed]
    updated = [state for state in changed if state.key in before and state != before[state.key]]
    context.sql.update_states.run(connection, map(state_fields, updated))
    context.insert_pending(connection, [key for key in keys if key not in before], now)
    if action is Action.WITHDRAW:
        context.withdraw_pointers(connection, keys)
    if action in REQUEST_KINDS:
        opened = {"kind": REQUEST_KINDS[action], "action_id": request.action_id, "requested_at": at}
        rows = (key_fields(state.key) | {"attempt_no": state.attempt_count} | opened for state in changed)
        context.sql.upsert_requests.run(connection, rows)
    if action is Action.MARK_TERMINAL:
        mark = {"action_id": request.action_id, "marked_at": at}
        context.sql.insert_terminal_marks.run(connection, (key_fields(key) | mark for key in keys))
    if action is Action.CLEAR_TERMINAL:
        context.sql.delete_terminal_marks.run(connection, map(key_fields, keys))


def _emit_events(
    context: WriteContext,
    connection: sa.Connection,
    action: Action,
    request: ActionRequest,
    changed: Sequence[PartitionState],
    now: datetime,
) -> None:
    """Emit one event per changed partition. Its attempt is the coming one.

    A terminal mark belongs to no attempt, so its events are numbered by the partition's logged actions.
    """
    data = {"operator": printable(request.operator), "reason": printable(request.reason)}
    numbers: Mapping[PartitionKey, int] = {state.key: state.attempt_count + 1 for state in changed}
    if action in {Action.MARK_TERMINAL, Action.CLEAR_TERMINAL}:
        rows = context.sql.actions_per_partition.run(connection, map(key_fields, numbers))
        numbers = Counter(map(key_in, rows))
    at = instant_text(now)
    events: list[dict[str, Any]] = [
        context.own.encode(EVENT_TYPES[action], str(key), number, data, emitted_at=at, caused_by=request.action_id)
        for key, number in numbers.items()
    ]
    context.tell(connection, events, now)


def _read_earlier_result(
    context: WriteContext,
    connection: sa.Connection,
    request: ActionRequest,
    keys: Sequence[PartitionKey],
    states: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    rows = connection.execute(context.sql.read_action_partitions, {"action_id": request.action_id})
    changed = set(map(key_in, rows))
    return ActionResult(
        changed=tuple(states[key] for key in keys if key in changed),
        unchanged=tuple(key for key in keys if key not in changed),
        refused=(),
    )


def _find_recorded(
    context: WriteContext, connection: sa.Connection, action: Action, keys: Sequence[PartitionKey]
) -> Collection[PartitionKey]:
    """The partitions that already have the open request or the terminal mark that this action concerns."""
    if action is Action.REPROCESS:
        return set(map(key_in, context.sql.read_open_requests.run(connection, map(key_fields, keys))))
    if action in {Action.REQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL}:
        return set(map(key_in, context.sql.read_terminal_marks.run(connection, map(key_fields, keys))))
    return ()


def _decide(
    action: Action,
    states: Iterable[PartitionState],
    expected: Mapping[PartitionKey, PartitionState],
    recorded: Collection[PartitionKey],
    now: datetime,
) -> ActionResult:
    changed: list[PartitionState] = []
    unchanged: list[PartitionKey] = []
    refused: list[LedgerError] = []
    for before in states:
        key = before.key
        try:
            after = _apply(action, before, expected.get(key, before), is_recorded=key in recorded, now=now)
        except (IllegalTransition, MarkedTerminal, StateChanged) as error:
            refused.append(error)
        else:
            if after is None:
                unchanged.append(key)
            else:
                changed.append(after)
    return ActionResult(changed=tuple(changed), unchanged=tuple(unchanged), refused=tuple(refused))


def _apply(
    action: Action, before: PartitionState, expected: PartitionState, *, is_recorded: bool, now: datetime
) -> PartitionState | None:
    """The state after the action, or None when the action has nothing to change."""
    if before != expected:
        raise StateChanged(str(before.key), _describe(expected), _describe(before))
    after = apply_control_action(before, action, now=now)
    match action:
        case Action.REPROCESS | Action.MARK_TERMINAL:
            return None if is_recorded else after
        case Action.CLEAR_TERMINAL:
            return after if is_recorded else None
        case Action.REQUEUE if is_recorded and after is not before:
            raise MarkedTerminal(str(before.key))
    return None if after is before else after


def _describe(state: PartitionState) -> str:
    attempts = "1 attempt" if state.attempt_count == 1 else f"{state.attempt_count} attempts"
    return f"{state.recorded_status or 'absent'} after {attempts}"
