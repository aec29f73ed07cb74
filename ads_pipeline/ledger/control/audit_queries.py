"""Builds the questions about what was done: operators' acts, and the verdicts on many partitions, in pages.

What was done to one partition is asked of `reader`.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_of, same_key
from ads_pipeline.ledger.tables import KEY, Instant, acted_partitions, attempts, operator_acts, partition_state
from ads_pipeline.ledger.values import LoggedAction


def acts(after: LoggedAction | None, limit: int) -> sa.Select[Any]:
    """The acts from just before one of them, newest first."""
    place = operator_acts.c.acted_at, operator_acts.c.act_id
    statement = sa.select(operator_acts).order_by(*(column.desc() for column in place)).limit(limit)
    if after is None:
        return statement
    at = sa.literal(after.acted_at, Instant()), sa.literal(after.act_id, sa.Text())
    return statement.where(sa.tuple_(*place) < sa.tuple_(*at))


def parts(act_id: str) -> sa.Select[Any]:
    """The act of that id, and the parts that it is logged in; theirs have more behind a dot."""
    column = operator_acts.c.act_id
    own = sa.or_(column == act_id, column.startswith(f"{act_id}.", autoescape=True))
    return sa.select(operator_acts).where(own).order_by(operator_acts.c.acted_at, column)


def acted(act_ids: Sequence[str], after: PartitionKey | None, limit: int) -> sa.Select[Any]:
    """The partitions that these acts changed, in key order, with what each was before."""
    columns = *key_of(acted_partitions), acted_partitions.c.status_before
    statement = sa.select(*columns).distinct().where(acted_partitions.c.act_id.in_(act_ids))
    return statement.where(*_behind(acted_partitions, after)).order_by(*key_of(acted_partitions)).limit(limit)


def attempts_on(
    conditions: Sequence[sa.ColumnElement[bool]], after: tuple[PartitionKey, int] | None, limit: int
) -> sa.Select[Any]:
    """The verdicts on the partitions for which the conditions hold, in key order and then as they were recorded."""
    statement = sa.select(attempts).join_from(attempts, partition_state, same_key(attempts, partition_state))
    if after is not None:
        key, number = after
        place = [*(sa.literal(getattr(key, name), KEY_TYPES[name]) for name in KEY), sa.literal(number)]
        statement = statement.where(sa.tuple_(*key_of(attempts), attempts.c.attempt_no) > sa.tuple_(*place))
    return statement.where(*conditions).order_by(*key_of(attempts), attempts.c.attempt_no).limit(limit)


def _behind(table: sa.Table, after: PartitionKey | None) -> list[sa.ColumnElement[bool]]:
    if after is None:
        return []
    place = sa.tuple_(*(sa.literal(getattr(after, name), KEY_TYPES[name]) for name in KEY))
    return [sa.tuple_(*key_of(table)) > place]
