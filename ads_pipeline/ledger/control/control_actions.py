"""Control actions on a ledger: execute, park, release, record failed fetches and schedule their retries.

`action_execution` holds the transaction of one action. Holders of a `ControlActions` may requeue a failed partition;
only holders of `Verdicts` can mark one as safe to read.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import ERROR_POLICIES, ErrorPolicy, RetryPolicy
from ads_pipeline.domain.transitions import Action, PartitionState
from ads_pipeline.ledger.control.action_execution import execute_action, is_logged, log_action
from ads_pipeline.ledger.control.retry_queue import Parking, RetryQueue, ScheduledRetry
from ads_pipeline.ledger.row_mapping import decode_key, encode_key
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import ActionRequest, ActionResult, FailedFetch
from ads_pipeline.ledger.write_context import WriteContext
from ads_pipeline.quoting import printable

T = TypeVar("T")
PARKING_SCOPES: Final[Mapping[ErrorPolicy, str]] = {
    ErrorPolicy.PARK_CUSTOMER: "customer",
    ErrorPolicy.PARK_QUERY: "query",
}


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

    def record_failed_fetches(
        self, failures: Sequence[FailedFetch], policy: RetryPolicy, *, today: date
    ) -> list[ScheduledRetry]:
        """Record fetches that returned no run, at most one per partition, and schedule their retries.

        An error of an account or a query parks it in the same transaction. Attempts and states do not change,
        because the validator had nothing to judge.
        """
        return self._context.transact(
            lambda connection: self._record_failed_fetches(connection, failures, policy, today)
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

    def _record_failed_fetches(
        self, connection: sa.Connection, failures: Sequence[FailedFetch], policy: RetryPolicy, today: date
    ) -> list[ScheduledRetry]:
        now = self._context.read_clock(connection)
        keys = sorted_keys(failure.key for failure in failures)
        self._context.insert_pending(connection, keys, now)
        self._context.lock_states(connection, keys)
        earlier = Counter(
            map(
                decode_key,
                self._context.statements.failed_fetches_per_partition.execute(connection, map(encode_key, keys)),
            )
        )
        self._context.statements.insert_failed_fetches.execute(
            connection, (self._fetch_fields(failure, now) for failure in failures)
        )
        parkings = [parking for parking in map(_parking_for, failures) if parking is not None]
        for parking in dict.fromkeys(parkings):
            connection.execute(self._context.statements.insert_parking, asdict(parking) | {"parked_at": now})
        at = instant_text(now)
        events = [
            self._context.event_encoder.encode(
                "FetchFailed", str(failure.key), earlier[failure.key] + 1, _error_fields(failure), emitted_at=at
            )
            for failure in failures
        ]
        self._context.append_events(connection, events, now)
        return self._retry_queue.schedule_partitions(connection, keys, policy, today)

    def _fetch_fields(self, failure: FailedFetch, now: datetime) -> dict[str, Any]:
        wait_until = failure.wait_until
        return (
            encode_key(failure.key)
            | _error_fields(failure)
            | {
                "failed_at": instant_text(now),
                "engine_run_id": self._context.origin.run_id,
                "wait_until": None if wait_until is None else instant_text(wait_until),
            }
        )

    def _park(self, connection: sa.Connection, parking: Parking, request: ActionRequest) -> bool:
        now = self._context.read_clock(connection)
        if is_logged(self._context, connection, "park", request):
            return True
        log_action(self._context, connection, "park", request, (), {}, now)
        inserted = connection.execute(self._context.statements.insert_parking, asdict(parking) | {"parked_at": now})
        return bool(inserted.rowcount)

    def _release(self, connection: sa.Connection, parking: Parking, request: ActionRequest) -> bool:
        now = self._context.read_clock(connection)
        if is_logged(self._context, connection, "release", request):
            return True
        log_action(self._context, connection, "release", request, (), {}, now)
        row = {"parked_source": parking.source, "parked_scope": parking.scope, "parked_name": parking.name}
        return bool(connection.execute(self._context.statements.delete_parking, row).rowcount)


def sorted_keys(keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Each key once, in the order in which every transaction locks state rows."""
    return sorted(set(keys))


def _error_fields(failure: FailedFetch) -> dict[str, Any]:
    return {"error_class": failure.error_class, "error_message": printable(failure.error_message)}


def _parking_for(failure: FailedFetch) -> Parking | None:
    """The account or query that this error class parks, if any."""
    scope = PARKING_SCOPES.get(ERROR_POLICIES.get(failure.error_class, ErrorPolicy.RETRY))
    if scope is None:
        return None
    name = failure.key.customer_id if scope == "customer" else failure.key.query_name
    why = printable(failure.error_message)
    return Parking(source=failure.key.source, scope=scope, name=name, error_class=failure.error_class, why=why)
