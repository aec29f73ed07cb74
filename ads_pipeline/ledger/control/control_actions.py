"""Control actions on a ledger: execute, park, release, and schedule retries.

`action_execution` holds the transaction of one action. Holders of a `ControlActions` may requeue a failed partition;
only holders of `Verdicts` can mark one as safe to read.
"""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import date
from typing import Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import RetryPolicy
from ads_pipeline.domain.transitions import Action, PartitionState
from ads_pipeline.ledger.control.action_execution import execute_action, is_logged, log_action
from ads_pipeline.ledger.control.retries import Parking
from ads_pipeline.ledger.control.retry_queue import RetryQueue
from ads_pipeline.ledger.control.tables import parkings
from ads_pipeline.ledger.statements import insert
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import ActionRequest, ActionResult
from ads_pipeline.ledger.write_context import WriteContext

T = TypeVar("T")


INSERT_PARKINGS: Final = insert(parkings, skip_present=True)


class ControlActions:
    """The control actions of operators and of the retry policy. They need no claim."""

    def __init__(self, context: WriteContext, retry_queue: RetryQueue) -> None:
        self._context, self._retry_queue = context, retry_queue

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
        requested, states = sorted_keys(keys), {state.key: state for state in expected}
        return self._context.transact(
            lambda connection: execute_action(self._context, connection, action, requested, request, states)
        )

    def schedule_failures(self, policy: RetryPolicy, *, today: date) -> int:
        """Schedule every failure that has no retry yet, and delete finished rows. Returns the number scheduled."""
        return self._retry_queue.schedule_failures(policy, today=today)

    def park(self, parking: Parking, request: ActionRequest) -> bool:
        """Stop fetching an account or a query until it is released. False when it was parked already."""
        return self._context.transact(lambda connection: self._park(connection, parking, request))

    def release(self, parking: Parking, request: ActionRequest) -> bool:
        """Resume fetching a parked account or query. False when it was not parked."""
        return self._context.transact(lambda connection: self._release(connection, parking, request))

    def _park(self, connection: sa.Connection, parking: Parking, request: ActionRequest) -> bool:
        now = self._context.read_clock(connection)
        if is_logged(connection, "park", request):
            return True
        log_action(connection, "park", request, (), {}, now)
        row = asdict(parking) | {"parked_at": instant_text(now)}
        return bool(INSERT_PARKINGS.execute(connection, [row]).rowcount)

    def _release(self, connection: sa.Connection, parking: Parking, request: ActionRequest) -> bool:
        now = self._context.read_clock(connection)
        if is_logged(connection, "release", request):
            return True
        log_action(connection, "release", request, (), {}, now)
        is_parking = (parkings.c[name] == getattr(parking, name) for name in ("source", "scope", "name"))
        return bool(connection.execute(sa.delete(parkings).where(*is_parking)).rowcount)


def sorted_keys(keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Each key once, in the order in which every transaction locks state rows."""
    return sorted(set(keys))
