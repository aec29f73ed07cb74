"""Reads the log of control actions, whole or of one partition."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.row_mapping import decode_key, has_key, key_literals, key_of_table, pick_fields
from ads_pipeline.ledger.tables import Instant, control_action_partitions, control_actions
from ads_pipeline.ledger.values import LoggedAction, PartitionAction


class AuditLog:
    """The logged control actions and the partitions that they changed."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def of_partition(self, key: PartitionKey) -> list[PartitionAction]:
        """Return the control actions that changed a partition, oldest first."""
        changed = control_action_partitions
        statement = (
            sa.select(control_actions, changed.c.status_before)
            .join(changed, changed.c.action_id == control_actions.c.action_id)
            .where(*has_key(changed, key))
            .order_by(control_actions.c.performed_at, control_actions.c.action_id)
        )
        return [
            PartitionAction(status_before=_status_before(row), **pick_fields(PartitionAction, row, "status_before"))
            for row in database.fetch(self._engine, statement)
        ]

    def parts(self, action_id: str) -> list[LoggedAction]:
        """Return all logged parts of an action, whose ids continue its id after a dot. Empty for an unknown id."""
        column = control_actions.c.action_id
        matches = sa.or_(column == action_id, column.startswith(f"{action_id}.", autoescape=True))
        return self._select(
            sa.select(control_actions).where(matches).order_by(control_actions.c.performed_at, column)
        )

    def page(self, *, after: LoggedAction | None = None, limit: int = 1000) -> list[LoggedAction]:
        """Return one page of all logged actions, newest first, starting after one of them."""
        order = control_actions.c.performed_at, control_actions.c.action_id
        statement = sa.select(control_actions).order_by(*(column.desc() for column in order)).limit(limit)
        if after is not None:
            position = sa.literal(after.performed_at, Instant()), sa.literal(after.action_id, sa.Text())
            statement = statement.where(sa.tuple_(*order) < sa.tuple_(*position))
        return self._select(statement)

    def page_of_partitions(
        self, action_ids: Sequence[str], *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[tuple[PartitionKey, Status | None]]:
        """Return one page of the partitions that these actions changed, in key order, and their earlier status."""
        changed = control_action_partitions
        key = key_of_table(changed)
        statement = sa.select(*key, changed.c.status_before).distinct().where(changed.c.action_id.in_(action_ids))
        if after is not None:
            statement = statement.where(sa.tuple_(*key) > sa.tuple_(*key_literals(after)))
        rows = database.fetch(self._engine, statement.order_by(*key).limit(limit))
        return [(decode_key(row), _status_before(row)) for row in rows]

    def _select(self, statement: sa.Select[Any]) -> list[LoggedAction]:
        return [LoggedAction(**pick_fields(LoggedAction, row)) for row in database.fetch(self._engine, statement)]


def _status_before(row: sa.Row[Any]) -> Status | None:
    return None if row.status_before is None else Status(row.status_before)
