"""Carries out control acts: what may be done to partitions without a verdict, and what is noted beside them.

For the control plane. Who holds this can requeue a failed partition and cannot say that one is safe to read; that is
`writer`'s.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import date, datetime
from typing import Any, Final, Self, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import TREATMENTS, ErrorPolicy, RetryPolicy
from ads_pipeline.domain.run_events import Origin
from ads_pipeline.domain.transitions import Action, PartitionState
from ads_pipeline.errors import printable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.action_execution import act_on, is_logged, log
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.control.retry_queue import Parking, RetryQueue, ScheduledRetry
from ads_pipeline.ledger.events.event_log import EventLog, closing_run, own_origin
from ads_pipeline.ledger.reader import HERE, LedgerReader
from ads_pipeline.ledger.row_mapping import key_fields, key_in
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import ActionRequest, ActionResult, FailedFetch
from ads_pipeline.ledger.write_context import Clock, WriteContext

T = TypeVar("T")
SCOPES: Final[Mapping[ErrorPolicy, str]] = {ErrorPolicy.PARK_CUSTOMER: "customer", ErrorPolicy.PARK_QUERY: "query"}


class ControlActions(LedgerReader):
    """Read access to one ledger, and the acts of operators and of the retry policy.

    A `clock` replaces the database's own, for those who choose the time. Every change is told as events of the
    `origin`, the run that makes it. With its `lease`, the run writes only of what it has claimed; acts need no claim.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None = None,
        origin: Origin | None = None,
        space: Tenancy = HERE,
        lease: Lease | None = None,
    ) -> None:
        super().__init__(engine, space=space)
        self.origin = origin or own_origin()
        self._writing = WriteContext(engine.dialect.name, clock=clock, origin=self.origin, space=space, lease=lease)
        self._sql = self._writing.sql

    @classmethod
    @contextmanager
    def opened(
        cls,
        url: str,
        *,
        clock: Clock | None = None,
        origin: Origin | None = None,
        space: Tenancy = HERE,
        lease: Lease | None = None,
    ) -> Iterator[Self]:
        """Opened for a run that somebody else starts and ends; without one, for a run of its own."""
        with database.opened(url) as engine:
            opened = cls(engine, clock=clock, origin=origin, space=space, lease=lease)
            if origin is not None:
                yield opened
                return
            with closing_run(EventLog(engine, clock=clock), opened.origin):
                yield opened

    @property
    def schedule(self) -> RetryQueue:
        """What is planned for failures, and what is due."""
        return RetryQueue(self._engine, clock=self._writing.clock)

    def carry_out(
        self, act: Action, keys: Iterable[PartitionKey], order: ActionRequest, *, seen: Iterable[PartitionState] = ()
    ) -> ActionResult:
        """Carry out a control act on each partition it is legal for, and log it in the same transaction.

        With the states that were seen when the act was ordered, a partition that has changed since is refused.
        """
        wanted, known = in_order(keys), {state.key: state for state in seen}
        return self._transact(lambda connection: act_on(self._writing, connection, act, wanted, order, known))

    def record_failed_fetches(
        self, failed: Sequence[FailedFetch], policy: RetryPolicy, *, today: date
    ) -> list[ScheduledRetry]:
        """Record fetches that brought nothing, one a partition, and what becomes of each.

        A fault of an account or of a query parks it in the same transaction. No attempt is counted and no state
        changes: the validator had nothing to judge.
        """
        return self._transact(lambda connection: self._fail_fetches(connection, failed, policy, today))

    def park(self, parking: Parking, order: ActionRequest) -> bool:
        """Have nothing fetched for an account or a query until it is released; whether it was not parked before."""
        return self._transact(lambda connection: self._park(connection, parking, order))

    def release(self, parking: Parking, order: ActionRequest) -> bool:
        """Let what was parked be fetched again; whether it was parked."""
        return self._transact(lambda connection: self._release(connection, parking, order))

    def _fail_fetches(
        self, connection: sa.Connection, failed: Sequence[FailedFetch], policy: RetryPolicy, today: date
    ) -> list[ScheduledRetry]:
        now = self._writing.now(connection)
        keys = in_order(each.key for each in failed)
        self._writing.insert_pending(connection, keys, now)
        self._writing.lock(connection, keys)
        earlier = Counter(map(key_in, self._sql.fetches_of.run(connection, map(key_fields, keys))))
        self._sql.insert_fetches.run(connection, (self._fetch_fields(each, now) for each in failed))
        parked = [parking for parking in map(_parking_for, failed) if parking is not None]
        for parking in dict.fromkeys(parked):
            connection.execute(self._sql.insert_parking, asdict(parking) | {"parked_at": now})
        at = instant_text(now)
        events = [
            self._writing.own.fields("FetchFailed", str(each.key), earlier[each.key] + 1, _told(each), at=at)
            for each in failed
        ]
        self._writing.tell(connection, events, now)
        return self.schedule.plan_these(connection, keys, policy, today)

    def _fetch_fields(self, failed: FailedFetch, now: datetime) -> dict[str, Any]:
        wait_until = failed.wait_until
        return (
            key_fields(failed.key)
            | _told(failed)
            | {
                "failed_at": instant_text(now),
                "engine_run_id": self.origin.run_id,
                "wait_until": None if wait_until is None else instant_text(wait_until),
            }
        )

    def _park(self, connection: sa.Connection, parking: Parking, order: ActionRequest) -> bool:
        now = self._writing.now(connection)
        if is_logged(self._writing, connection, "park", order):
            return True
        log(self._writing, connection, "park", order, (), {}, now)
        put = connection.execute(self._sql.insert_parking, asdict(parking) | {"parked_at": now})
        return bool(put.rowcount)

    def _release(self, connection: sa.Connection, parking: Parking, order: ActionRequest) -> bool:
        now = self._writing.now(connection)
        if is_logged(self._writing, connection, "release", order):
            return True
        log(self._writing, connection, "release", order, (), {}, now)
        here = {"its_source": parking.source, "its_scope": parking.scope, "its_name": parking.name}
        return bool(connection.execute(self._sql.delete_parking, here).rowcount)

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self._engine, work)


def in_order(keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Each key once, in the order in which every verb takes its locks."""
    return sorted(set(keys))


def _told(failed: FailedFetch) -> dict[str, Any]:
    return {"error_class": failed.error_class, "error_message": printable(failed.error_message)}


def _parking_for(failed: FailedFetch) -> Parking | None:
    """What its class of error parks, if it parks anything."""
    scope = SCOPES.get(TREATMENTS.get(failed.error_class, ErrorPolicy.RETRY))
    if scope is None:
        return None
    name = failed.key.customer_id if scope == "customer" else failed.key.query_name
    why = printable(failed.error_message)
    return Parking(source=failed.key.source, scope=scope, name=name, error_class=failed.error_class, why=why)
