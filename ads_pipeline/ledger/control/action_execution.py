"""Carries out control acts: on every partition where one is legal, logged with who, how and why, and told as events.

Verdicts and publications are `writer`'s own.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Act, PartitionState, carry_out
from ads_pipeline.errors import ActRepeated, IllegalMove, LedgerError, MarkedTerminal, SeenOtherwise, printable
from ads_pipeline.ledger.row_mapping import key_fields, key_in, state_fields
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import Acted, Order
from ads_pipeline.ledger.write_context import Writing

# What an act on a partition is told as.
EVENTS: Final[Mapping[Act, str]] = {
    Act.ENQUEUE: "PartitionEnqueued",
    Act.REQUEUE: "PartitionRequeued",
    Act.WITHDRAW: "PartitionWithdrawn",
    Act.REPROCESS: "ReprocessRequested",
    Act.MARK_TERMINAL: "TerminalMarked",
    Act.CLEAR_TERMINAL: "TerminalCleared",
}
# The acts by which a run is asked for, and what for.
KINDS: Final[Mapping[Act, str]] = {Act.REQUEUE: "retry", Act.ENQUEUE: "backfill", Act.REPROCESS: "reprocess"}


def act_on(
    writing: Writing,
    connection: sa.Connection,
    act: Act,
    keys: Sequence[PartitionKey],
    order: Order,
    seen: Mapping[PartitionKey, PartitionState],
) -> Acted:
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
    writing: Writing,
    connection: sa.Connection,
    act: str,
    order: Order,
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


def is_logged(writing: Writing, connection: sa.Connection, act: str, order: Order) -> bool:
    """Whether this very act is in the log; ActRepeated when another one is under its id."""
    done = connection.execute(writing.sql.read_act, {"act_id": order.act_id}).one_or_none()
    if done is not None and (done.act, done.operator) != (act.lower(), printable(order.operator)):
        raise ActRepeated(order.act_id)
    return done is not None


def _write(
    writing: Writing,
    connection: sa.Connection,
    act: Act,
    order: Order,
    acted: Acted,
    before: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    at = instant_text(now)
    changed = [state.key for state in acted.changed]
    moved = [state for state in acted.changed if state.key in before and state != before[state.key]]
    writing.sql.update_states.run(connection, map(state_fields, moved))
    writing.insert_pending(connection, [key for key in changed if key not in before], now)
    if act is Act.WITHDRAW:
        writing.withdraw_pointers(connection, changed)
    if act in KINDS:
        wanted = {"kind": KINDS[act], "act_id": order.act_id, "requested_at": at}
        rows = (key_fields(each.key) | {"attempt_no": each.attempt_count} | wanted for each in acted.changed)
        writing.sql.put_requests.run(connection, rows)
    if act is Act.MARK_TERMINAL:
        mark = {"act_id": order.act_id, "marked_at": at}
        writing.sql.insert_marks.run(connection, (key_fields(key) | mark for key in changed))
    if act is Act.CLEAR_TERMINAL:
        writing.sql.clear_marks.run(connection, map(key_fields, changed))


def _tell(writing: Writing, connection: sa.Connection, act: Act, order: Order, acted: Acted, now: datetime) -> None:
    """The attempt that an event names is the next one, which is what the act is for; a mark's is its number."""
    data = {"operator": printable(order.operator), "reason": printable(order.reason)}
    numbers: Mapping[PartitionKey, int] = {state.key: state.attempt_count + 1 for state in acted.changed}
    if act in {Act.MARK_TERMINAL, Act.CLEAR_TERMINAL}:
        rows = writing.sql.acts_of.run(connection, map(key_fields, numbers))
        numbers = Counter(map(key_in, rows))
    at = instant_text(now)
    events: list[dict[str, Any]] = [
        writing.own.fields(EVENTS[act], str(key), number, data, at=at, signal=order.act_id)
        for key, number in numbers.items()
    ]
    writing.tell(connection, events, now)


def _done_before(
    writing: Writing,
    connection: sa.Connection,
    order: Order,
    keys: Sequence[PartitionKey],
    states: Mapping[PartitionKey, PartitionState],
) -> Acted:
    """The answer to an act that is sent again, as when its first answer was lost."""
    acted = set(map(key_in, connection.execute(writing.sql.read_acted, {"act_id": order.act_id})))
    return Acted(
        changed=tuple(states[key] for key in keys if key in acted),
        unchanged=tuple(key for key in keys if key not in acted),
        refused=(),
    )


def _noted(
    writing: Writing, connection: sa.Connection, act: Act, keys: Sequence[PartitionKey]
) -> Collection[PartitionKey]:
    """The partitions of which the control plane has noted already what the act is about."""
    if act is Act.REPROCESS:
        return set(map(key_in, writing.sql.open_requests_of.run(connection, map(key_fields, keys))))
    if act in {Act.REQUEUE, Act.MARK_TERMINAL, Act.CLEAR_TERMINAL}:
        return set(map(key_in, writing.sql.marks_of.run(connection, map(key_fields, keys))))
    return ()


def _decide(
    act: Act,
    states: Iterable[PartitionState],
    seen: Mapping[PartitionKey, PartitionState],
    noted: Collection[PartitionKey],
    now: datetime,
) -> Acted:
    changed: list[PartitionState] = []
    unchanged: list[PartitionKey] = []
    refused: list[LedgerError] = []
    for before in states:
        try:
            after = _after(act, before, seen.get(before.key, before), is_noted=before.key in noted, now=now)
        except (IllegalMove, MarkedTerminal, SeenOtherwise) as error:
            refused.append(error)
        else:
            if after is None:
                unchanged.append(before.key)
            else:
                changed.append(after)
    return Acted(changed=tuple(changed), unchanged=tuple(unchanged), refused=tuple(refused))


def _after(
    act: Act, before: PartitionState, seen: PartitionState, *, is_noted: bool, now: datetime
) -> PartitionState | None:
    """The state that the act leads to; None where there is nothing for it to do."""
    if before != seen:
        raise SeenOtherwise(str(before.key), _told(seen), _told(before))
    after = carry_out(before, act, now=now)
    match act:
        case Act.REPROCESS | Act.MARK_TERMINAL:
            return None if is_noted else after
        case Act.CLEAR_TERMINAL:
            return after if is_noted else None
        case Act.REQUEUE if is_noted and after is not before:
            raise MarkedTerminal(str(before.key))
    return None if after is before else after


def _told(state: PartitionState) -> str:
    attempts = "1 attempt" if state.attempt_count == 1 else f"{state.attempt_count} attempts"
    return f"{state.recorded or 'absent'} after {attempts}"
