"""Carries out control acts: on every partition where one is legal, logged with who, how and why, and told as events.

Verdicts and publications are `writer`'s own.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, PartitionState, carry_out
from ads_pipeline.errors import (
    ActionIdReused,
    IllegalTransition,
    LedgerError,
    MarkedTerminal,
    StateChanged,
    printable,
)
from ads_pipeline.ledger.row_mapping import key_fields, key_in, state_fields
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import ActionRequest, ActionResult
from ads_pipeline.ledger.write_context import WriteContext

# What an act on a partition is told as.
EVENTS: Final[Mapping[Action, str]] = {
    Action.ENQUEUE: "PartitionEnqueued",
    Action.REQUEUE: "PartitionRequeued",
    Action.WITHDRAW: "PartitionWithdrawn",
    Action.REPROCESS: "ReprocessRequested",
    Action.MARK_TERMINAL: "TerminalMarked",
    Action.CLEAR_TERMINAL: "TerminalCleared",
}
# The acts by which a run is asked for, and what for.
KINDS: Final[Mapping[Action, str]] = {
    Action.REQUEUE: "retry",
    Action.ENQUEUE: "backfill",
    Action.REPROCESS: "reprocess",
}


def act_on(
    writing: WriteContext,
    connection: sa.Connection,
    act: Action,
    keys: Sequence[PartitionKey],
    order: ActionRequest,
    seen: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    """What the act made of each partition; what it made before, when it is sent again.

    A partition that is no longer as it was `seen` is refused: whoever ordered the act did not mean what it is now.
    """
    now = writing.now(connection)
    before = writing.lock(connection, keys)
    if is_logged(writing, connection, act.name, order):
        return _done_before(writing, connection, order, keys, before)
    states = [before.get(key) or PartitionState.absent(key) for key in keys]
    acted = _decide(act, states, seen, _noted(writing, connection, act, keys), now)
    log(writing, connection, act.name, order, acted.changed, before, now)
    _write(writing, connection, act, order, acted, before, now)
    _tell(writing, connection, act, order, acted, now)
    return acted


def log(
    writing: WriteContext,
    connection: sa.Connection,
    act: str,
    order: ActionRequest,
    changed: Sequence[PartitionState],
    before: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    """Keep who acted, how and why, what each partition was before it, and behind which attempt that was."""
    words = {
        "act_id": order.act_id,
        "act": act.lower(),
        "operator": printable(order.operator),
        "command": printable(order.command),
        "filters": printable(order.filters),
        "reason": printable(order.reason),
        "partitions_changed": len(changed),
        "acted_at": now,
    }
    connection.execute(writing.sql.insert_act, words)
    rows = (
        key_fields(state.key)
        | {"act_id": order.act_id, "attempt_no": state.attempt_count}
        | {"status_before": before[state.key].status if state.key in before else None}
        for state in changed
    )
    writing.sql.insert_acted.run(connection, rows)


def is_logged(writing: WriteContext, connection: sa.Connection, act: str, order: ActionRequest) -> bool:
    """Whether this very act is in the log; ActRepeated when another one is under its id."""
    done = connection.execute(writing.sql.read_act, {"act_id": order.act_id}).one_or_none()
    if done is not None and (done.act, done.operator) != (act.lower(), printable(order.operator)):
        raise ActionIdReused(order.act_id)
    return done is not None


def _write(
    writing: WriteContext,
    connection: sa.Connection,
    act: Action,
    order: ActionRequest,
    acted: ActionResult,
    before: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    at = instant_text(now)
    changed = [state.key for state in acted.changed]
    moved = [state for state in acted.changed if state.key in before and state != before[state.key]]
    writing.sql.update_states.run(connection, map(state_fields, moved))
    writing.insert_pending(connection, [key for key in changed if key not in before], now)
    if act is Action.WITHDRAW:
        writing.withdraw_pointers(connection, changed)
    if act in KINDS:
        wanted = {"kind": KINDS[act], "act_id": order.act_id, "requested_at": at}
        rows = (key_fields(each.key) | {"attempt_no": each.attempt_count} | wanted for each in acted.changed)
        writing.sql.put_requests.run(connection, rows)
    if act is Action.MARK_TERMINAL:
        mark = {"act_id": order.act_id, "marked_at": at}
        writing.sql.insert_marks.run(connection, (key_fields(key) | mark for key in changed))
    if act is Action.CLEAR_TERMINAL:
        writing.sql.clear_marks.run(connection, map(key_fields, changed))


def _tell(
    writing: WriteContext,
    connection: sa.Connection,
    act: Action,
    order: ActionRequest,
    acted: ActionResult,
    now: datetime,
) -> None:
    """The attempt that an event names is the next one, which is what the act is for; a mark's is its number."""
    data = {"operator": printable(order.operator), "reason": printable(order.reason)}
    numbers: Mapping[PartitionKey, int] = {state.key: state.attempt_count + 1 for state in acted.changed}
    if act in {Action.MARK_TERMINAL, Action.CLEAR_TERMINAL}:
        rows = writing.sql.acts_of.run(connection, map(key_fields, numbers))
        numbers = Counter(map(key_in, rows))
    at = instant_text(now)
    events: list[dict[str, Any]] = [
        writing.own.fields(EVENTS[act], str(key), number, data, at=at, signal=order.act_id)
        for key, number in numbers.items()
    ]
    writing.tell(connection, events, now)


def _done_before(
    writing: WriteContext,
    connection: sa.Connection,
    order: ActionRequest,
    keys: Sequence[PartitionKey],
    states: Mapping[PartitionKey, PartitionState],
) -> ActionResult:
    """The answer to an act that is sent again, as when its first answer was lost."""
    acted = set(map(key_in, connection.execute(writing.sql.read_acted, {"act_id": order.act_id})))
    return ActionResult(
        changed=tuple(states[key] for key in keys if key in acted),
        unchanged=tuple(key for key in keys if key not in acted),
        refused=(),
    )


def _noted(
    writing: WriteContext, connection: sa.Connection, act: Action, keys: Sequence[PartitionKey]
) -> Collection[PartitionKey]:
    """The partitions of which the control plane has noted already what the act is about."""
    if act is Action.REPROCESS:
        return set(map(key_in, writing.sql.open_requests_of.run(connection, map(key_fields, keys))))
    if act in {Action.REQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL}:
        return set(map(key_in, writing.sql.marks_of.run(connection, map(key_fields, keys))))
    return ()


def _decide(
    act: Action,
    states: Iterable[PartitionState],
    seen: Mapping[PartitionKey, PartitionState],
    noted: Collection[PartitionKey],
    now: datetime,
) -> ActionResult:
    changed: list[PartitionState] = []
    unchanged: list[PartitionKey] = []
    refused: list[LedgerError] = []
    for before in states:
        try:
            after = _after(act, before, seen.get(before.key, before), is_noted=before.key in noted, now=now)
        except (IllegalTransition, MarkedTerminal, StateChanged) as error:
            refused.append(error)
        else:
            if after is None:
                unchanged.append(before.key)
            else:
                changed.append(after)
    return ActionResult(changed=tuple(changed), unchanged=tuple(unchanged), refused=tuple(refused))


def _after(
    act: Action, before: PartitionState, seen: PartitionState, *, is_noted: bool, now: datetime
) -> PartitionState | None:
    """The state that the act leads to; None where there is nothing for it to do."""
    if before != seen:
        raise StateChanged(str(before.key), _told(seen), _told(before))
    after = carry_out(before, act, now=now)
    match act:
        case Action.REPROCESS | Action.MARK_TERMINAL:
            return None if is_noted else after
        case Action.CLEAR_TERMINAL:
            return after if is_noted else None
        case Action.REQUEUE if is_noted and after is not before:
            raise MarkedTerminal(str(before.key))
    return None if after is before else after


def _told(state: PartitionState) -> str:
    attempts = "1 attempt" if state.attempt_count == 1 else f"{state.attempt_count} attempts"
    return f"{state.recorded or 'absent'} after {attempts}"
