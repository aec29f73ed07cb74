"""Queries of the audit log, page by page: control actions, the partitions they changed, and verdicts.

`LedgerReader` reads the log of a single partition.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_of_table, same_key
from ads_pipeline.ledger.tables import (
    KEY,
    Instant,
    attempts,
    control_action_partitions,
    control_actions,
    partition_state,
)
from ads_pipeline.ledger.values import LoggedAction


def select_actions(after: LoggedAction | None, limit: int) -> sa.Select[Any]:
    """Select actions, newest first, starting with the one logged before `after`."""
    order = control_actions.c.performed_at, control_actions.c.action_id
    statement = sa.select(control_actions).order_by(*(column.desc() for column in order)).limit(limit)
    if after is None:
        return statement
    position = sa.literal(after.performed_at, Instant()), sa.literal(after.action_id, sa.Text())
    return statement.where(sa.tuple_(*order) < sa.tuple_(*position))


def select_action_parts(action_id: str) -> sa.Select[Any]:
    """Select the action with that id and its parts, whose ids continue it after a dot."""
    column = control_actions.c.action_id
    matches = sa.or_(column == action_id, column.startswith(f"{action_id}.", autoescape=True))
    return sa.select(control_actions).where(matches).order_by(control_actions.c.performed_at, column)


def select_changed_partitions(action_ids: Sequence[str], after: PartitionKey | None, limit: int) -> sa.Select[Any]:
    """Select the partitions that these actions changed, in key order, with their earlier status."""
    columns = *key_of_table(control_action_partitions), control_action_partitions.c.status_before
    statement = sa.select(*columns).distinct().where(control_action_partitions.c.action_id.in_(action_ids))
    if after is not None:
        position = sa.tuple_(*_key_literals(after))
        statement = statement.where(sa.tuple_(*key_of_table(control_action_partitions)) > position)
    return statement.order_by(*key_of_table(control_action_partitions)).limit(limit)


def select_attempts(
    conditions: Sequence[sa.ColumnElement[bool]], after: tuple[PartitionKey, int] | None, limit: int
) -> sa.Select[Any]:
    """Select the verdicts on the partitions that match the conditions, in key order and then by attempt number."""
    statement = sa.select(attempts).join_from(attempts, partition_state, same_key(attempts, partition_state))
    if after is not None:
        key, number = after
        position = sa.tuple_(*_key_literals(key), sa.literal(number))
        statement = statement.where(sa.tuple_(*key_of_table(attempts), attempts.c.attempt_no) > position)
    return statement.where(*conditions).order_by(*key_of_table(attempts), attempts.c.attempt_no).limit(limit)


def _key_literals(key: PartitionKey) -> list[sa.ColumnElement[Any]]:
    return [sa.literal(getattr(key, name), KEY_TYPES[name]) for name in KEY]
