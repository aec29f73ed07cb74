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
from ads_pipeline.errors import ActionIdReused, MarkedTerminal, PartitionRefused, StateChanged
from ads_pipeline.ledger.control.tables import requests, terminal_marks
from ads_pipeline.ledger.row_mapping import decode_key, encode_key, encode_state, key_of_table
from ads_pipeline.ledger.statements import KEY_COLUMNS, Statement, columns_of, insert, select_given, upsert
from ads_pipeline.ledger.tables import control_action_partitions, control_actions, instant_text, partition_state
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


_INSERT_ACTION: Final = sa.insert(control_actions)
_INSERT_ACTION_PARTITIONS: Final = insert(control_action_partitions)
_READ_ACTION: Final = sa.select(control_actions).where(control_actions.c.action_id == sa.bindparam("action_id"))
_READ_ACTION_PARTITIONS: Final = sa.select(*key_of_table(control_action_partitions)).where(
    control_action_partitions.c.action_id == sa.bindparam("action_id")
)
# The key of each given partition, once per logged action on it.
_ACTIONS_PER_PARTITION: Final = Statement(
    "actions_per_partition", KEY_COLUMNS, "SELECT {key} FROM {given} JOIN control_action_partitions USING ({key})"
)
_UPDATE_STATES: Final = Statement(
    "update_states",
    columns_of(partition_state),
    """
    UPDATE partition_state
    SET status = given.status, current_run_id = given.current_run_id, schema_version = given.schema_version,
        record_count = given.record_count, updated_at = given.updated_at, error_message = given.error_message,
        attempt_count = given.attempt_count
    FROM {given} WHERE ({partition_state.key}) = ({given.key})
    """,
)
_UPSERT_REQUESTS: Final = upsert(requests)
# The given partitions with an open request for a new run. The next verdict closes it.
_READ_OPEN_REQUESTS: Final = Statement(
    "read_open_requests",
    KEY_COLUMNS,
    """
    SELECT {key} FROM {given} JOIN requests USING ({key}) JOIN partition_state USING ({key})
    WHERE attempt_count = attempt_no
    """,
)
_INSERT_MARKS: Final = insert(terminal_marks)
_READ_MARKS: Final = select_given(terminal_marks)
_DELETE_MARKS: Final = Statement(
    "delete_terminal_marks", KEY_COLUMNS, "DELETE FROM terminal_marks WHERE ({key}) IN (SELECT {key} FROM {given})"
)


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
    now = context.read_clock(connection)
    before = context.lock_states(connection, keys)
    if is_logged(connection, action.name, request):
        return _read_earlier_result(connection, request, keys, before)
    states = [before.get(key) or PartitionState.absent(key) for key in keys]
    result = _decide(action, states, expected, _find_recorded(connection, action, keys), now)
    log_action(connection, action.name, request, result.changed, before, now)
    _write_changes(context, connection, action, request, result.changed, before, now)
    _emit_events(context, connection, action, request, result.changed, now)
    return result


def log_action(
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
    connection.execute(_INSERT_ACTION, row)
    rows = (
        encode_key(state.key)
        | {"action_id": request.action_id, "attempt_no": state.attempt_count}
        | {"status_before": before[state.key].status if state.key in before else None}
        for state in changed
    )
    _INSERT_ACTION_PARTITIONS.execute(connection, rows)


def is_logged(connection: sa.Connection, action: str, request: ActionRequest) -> bool:
    """Whether this request was executed before. Raises ActionIdReused when its id names another action."""
    row = connection.execute(_READ_ACTION, {"action_id": request.action_id}).one_or_none()
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
    _UPDATE_STATES.execute(connection, map(encode_state, updated))
    context.insert_pending(connection, [key for key in keys if key not in before], now)
    if action is Action.WITHDRAW:
        context.withdraw_pointers(connection, keys)
    if action in REQUEST_KINDS:
        opened = {"kind": REQUEST_KINDS[action], "action_id": request.action_id, "requested_at": at}
        rows = (encode_key(state.key) | {"attempt_no": state.attempt_count} | opened for state in changed)
        _UPSERT_REQUESTS.execute(connection, rows)
    if action is Action.MARK_TERMINAL:
        mark = {"action_id": request.action_id, "marked_at": at}
        _INSERT_MARKS.execute(connection, (encode_key(key) | mark for key in keys))
    if action is Action.CLEAR_TERMINAL:
        _DELETE_MARKS.execute(connection, map(encode_key, keys))


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
        rows = _ACTIONS_PER_PARTITION.execute(connection, map(encode_key, numbers))
        numbers = Counter(map(decode_key, rows))
    at = instant_text(now)
    events: list[dict[str, Any]] = [
        context.event_encoder.encode(
            EVENT_TYPES[action], str(key), number, data, emitted_at=at, caused_by=request.action_id
        )
        for key, number in numbers.items()
    ]
    context.append_events(connection, events, now)


def _read_earlier_result(
    connection: sa.Connection,
    request: ActionRequest,
    keys: Sequence[PartitionKey],
    states: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    rows = connection.execute(_READ_ACTION_PARTITIONS, {"action_id": request.action_id})
    changed = set(map(decode_key, rows))
    return ActionResult(
        changed=tuple(states[key] for key in keys if key in changed),
        unchanged=tuple(key for key in keys if key not in changed),
    )


def _find_recorded(
    connection: sa.Connection, action: Action, keys: Sequence[PartitionKey]
) -> Collection[PartitionKey]:
    """The partitions that already have the open request or the terminal mark that this action concerns."""
    if action is Action.REPROCESS:
        return set(map(decode_key, _READ_OPEN_REQUESTS.execute(connection, map(encode_key, keys))))
    if action in {Action.REQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL}:
        return set(map(decode_key, _READ_MARKS.execute(connection, map(encode_key, keys))))
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
    refused: dict[PartitionKey, PartitionRefused] = {}
    for before in states:
        key = before.key
        try:
            after = _apply(action, before, expected.get(key, before), is_recorded=key in recorded, now=now)
        except PartitionRefused as error:
            refused[key] = error
        else:
            if after is None:
                unchanged.append(key)
            else:
                changed.append(after)
    return ActionResult(changed=tuple(changed), unchanged=tuple(unchanged), refused=refused)


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
