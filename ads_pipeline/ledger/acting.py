"""Carries out control acts: on every partition where one is legal, logged with who, how and why, and told as events.

Verdicts and publications are `writer`'s own.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from ads_pipeline.errors import ActRepeated, IllegalMove, printable
from ads_pipeline.ledger.records import Acted, Order
from ads_pipeline.ledger.rows import key_fields, key_in, state_fields
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.writing import Writing
from ads_pipeline.partition import PartitionKey
from ads_pipeline.transitions import Act, PartitionState, carry_out

# What an act that changes a partition is told as.
EVENTS: Final[Mapping[Act, str]] = {
    Act.ENQUEUE: "PartitionEnqueued",
    Act.REQUEUE: "PartitionRequeued",
    Act.WITHDRAW: "PartitionWithdrawn",
}


def act_on(writing: Writing, connection: sa.Connection, act: Act, keys: list[PartitionKey], order: Order) -> Acted:
    """What the act made of each partition; what it made before, when it is sent again."""
    now = writing.now(connection)
    before = writing.lock(connection, keys)
    if _is_done(writing, connection, act, order):
        return _done_before(writing, connection, order, keys, before)
    acted = _decide(act, [before.get(key) or PartitionState.absent(key) for key in keys], now)
    _log(writing, connection, act, order, acted, before, now)
    present = [state for state in acted.changed if state.key in before]
    absent = [state.key for state in acted.changed if state.key not in before]
    writing.sql.update_states.run(connection, map(state_fields, present))
    writing.insert_pending(connection, absent, now)
    if act is Act.WITHDRAW:
        writing.withdraw_pointers(connection, [state.key for state in acted.changed])
    _tell(writing, connection, act, order, acted, now)
    return acted


def _log(
    writing: Writing,
    connection: sa.Connection,
    act: Act,
    order: Order,
    acted: Acted,
    before: Mapping[PartitionKey, PartitionState],
    now: datetime,
) -> None:
    words = {
        "act_id": order.act_id,
        "act": act.name.lower(),
        "operator": printable(order.operator),
        "command": printable(order.command),
        "filters": printable(order.filters),
        "reason": printable(order.reason),
        "partitions_changed": len(acted.changed),
        "acted_at": now,
    }
    connection.execute(writing.sql.insert_act, words)
    rows = (
        key_fields(state.key)
        | {"act_id": order.act_id, "status_before": before[state.key].status if state.key in before else None}
        for state in acted.changed
    )
    writing.sql.insert_acted.run(connection, rows)


def _tell(writing: Writing, connection: sa.Connection, act: Act, order: Order, acted: Acted, now: datetime) -> None:
    """The attempt that an event names is the next one, which is what the act is for."""
    data = {"operator": printable(order.operator), "reason": printable(order.reason)}
    at = instant_text(now)
    writing.tell(
        connection,
        [
            writing.own.fields(EVENTS[act], str(state.key), state.attempt_count + 1, data, at=at, signal=order.act_id)
            for state in acted.changed
        ],
        now,
    )


def _is_done(writing: Writing, connection: sa.Connection, act: Act, order: Order) -> bool:
    done = connection.execute(writing.sql.read_act, {"act_id": order.act_id}).one_or_none()
    if done is not None and (done.act, done.operator) != (act.name.lower(), printable(order.operator)):
        raise ActRepeated(order.act_id)
    return done is not None


def _done_before(
    writing: Writing,
    connection: sa.Connection,
    order: Order,
    keys: list[PartitionKey],
    states: Mapping[PartitionKey, PartitionState],
) -> Acted:
    """The answer to an act that is sent again, as when its first answer was lost."""
    acted = set(map(key_in, connection.execute(writing.sql.read_acted, {"act_id": order.act_id})))
    return Acted(
        changed=tuple(states[key] for key in keys if key in acted),
        unchanged=tuple(key for key in keys if key not in acted),
        refused=(),
    )


def _decide(act: Act, states: Iterable[PartitionState], now: datetime) -> Acted:
    changed: list[PartitionState] = []
    unchanged: list[PartitionKey] = []
    refused: list[IllegalMove] = []
    for before in states:
        try:
            after = carry_out(before, act, now=now)
        except IllegalMove as error:
            refused.append(error)
        else:
            if after is before:
                unchanged.append(before.key)
            else:
                changed.append(after)
    return Acted(changed=tuple(changed), unchanged=tuple(unchanged), refused=tuple(refused))
