"""Writes the log of control actions, and reads it, whole or of one partition."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.errors import ActionIdReused
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Instant, control_action_partitions, control_actions
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, LoggedAction, PartitionAction
from ads_pipeline.ledger.sql.row_mapping import (
    decode_key,
    encode_key_by_name,
    has_key,
    key_literals,
    key_of_table,
    pick_fields,
)
from ads_pipeline.ledger.sql.statements import insert
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction

_INSERT_PARTITIONS: Final = insert(control_action_partitions)


class AuditLog:
    """The logged control actions and the partitions that they changed."""

    def __init__(self, engine: database.Reading) -> None:
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

    def count_since(self, moment: datetime) -> int:
        """Return how many actions were logged at or after the moment."""
        since = control_actions.c.performed_at >= sa.literal(moment, Instant())
        return int(database.fetch(self._engine, sa.select(sa.func.count()).where(since))[0][0])

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


def log_action(
    transaction: LedgerTransaction,
    action: str,
    request: ActionRequest,
    changed: Sequence[PartitionState],
    before: Mapping[PartitionKey, PartitionState],
) -> None:
    """Log the request, and for each changed partition its earlier status and its attempt number."""
    log_request(transaction.connection, action, request, changed=len(changed), at=transaction.now)
    rows = (
        encode_key_by_name(state.key)
        | {"action_id": request.action_id, "attempt_no": state.attempt_count}
        | {"status_before": before[state.key].status if state.key in before else None}
        for state in changed
    )
    _INSERT_PARTITIONS.write(transaction.connection, rows)


def log_request(
    connection: sa.Connection, action: str, request: ActionRequest, *, changed: int, at: datetime
) -> None:
    """Log the request alone: what was done, by whom and why."""
    row = {
        "action_id": request.action_id,
        "action": action.lower(),
        "operator": printable(request.operator),
        "command": printable(request.command),
        "filters": printable(request.filters),
        "reason": printable(request.reason),
        "partitions_changed": changed,
        "performed_at": at,
    }
    connection.execute(sa.insert(control_actions), row)


def is_logged(transaction: LedgerTransaction, action: str, request: ActionRequest) -> bool:
    """Return true when this request was executed before. Raises ActionIdReused when its id names another action."""
    logged = sa.select(control_actions).where(control_actions.c.action_id == request.action_id)
    row = transaction.connection.execute(logged).one_or_none()
    if row is not None and (row.action, row.operator) != (action.lower(), printable(request.operator)):
        raise ActionIdReused(request.action_id)
    return row is not None
