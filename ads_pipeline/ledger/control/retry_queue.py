"""The retry queue: schedules retries of failed partitions, and finds the retries and requests that are due.

`retry_policy` decides each retry from the logs of verdicts and failed fetches. A new failure is scheduled again.
Scheduling changes no state; `ControlActions` requeues the partitions that are due.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import date, datetime
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.fetching.outages import UNANSWERED
from ads_pipeline.domain.fetching.quota import QUOTA_EXHAUSTED, Hold
from ads_pipeline.domain.fetching.retry_forecast import (
    UNLIMITED_AGE,
    OpenRequest,
    Parking,
    RetryForecast,
    ScheduledRetry,
    decide_next_retry,
)
from ads_pipeline.domain.fetching.retry_policy import (
    PARKING_SCOPES,
    AttemptEnd,
    Failure,
    Lane,
    Parked,
    RetryAt,
    RetryPolicy,
    Terminal,
    decide_retry,
    last_failure,
    retry_delay,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import Outcome, PartitionState
from ads_pipeline.ledger.control import retry_queue_queries
from ads_pipeline.ledger.control.holds import read_holds
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import KEY, PLAN, Day, instant_text, parkings, retry_queue
from ads_pipeline.ledger.sql.row_mapping import (
    decode_key,
    encode_key,
    encode_key_by_name,
    key_of_table,
    pick_fields,
    read_clock,
)
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Statement, query, select_given, upsert
from ads_pipeline.ledger.write_steps.leases import Leases

T = TypeVar("T")
PARTITIONS_PER_TRANSACTION: Final = 1_000
KEYS_PER_QUERY: Final = 10_000  # all keys of a query are one parameter, and callers may pass a million
_READ_QUEUED: Final = select_given(retry_queue)
# The failed fetches of the given partitions.
READ_FAILED_FETCHES: Final = Statement(
    "failed_fetches",
    KEY_COLUMNS,
    "SELECT failed_fetches.* FROM given JOIN failed_fetches USING (source, customer_id, query_name, logical_date)",
)
# The verdicts on each given partition, beginning with the last accepted one.
_READ_ATTEMPTS: Final = Statement(
    "attempts_since_acceptance",
    KEY_COLUMNS,
    """
    SELECT attempts.* FROM given JOIN attempts USING (source, customer_id, query_name, logical_date)
    WHERE attempt_no >= coalesce((
        SELECT max(attempt_no) FROM attempts AS others
        WHERE (others.source, others.customer_id, others.query_name, others.logical_date) =
            (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date)
            AND outcome = 'accepted'
    ), 0)
    """,
)
_READ_FAILED_REREADS: Final = query(
    """
    SELECT retry_queue.source, retry_queue.customer_id, retry_queue.query_name, retry_queue.logical_date
    FROM retry_queue
    JOIN partition_state
        ON (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date) =
                (retry_queue.source, retry_queue.customer_id, retry_queue.query_name, retry_queue.logical_date)
    WHERE retry_queue.source = :source AND retry_queue.query_name = :query_name
        AND retry_queue.logical_date >= :since AND failed_at IS NOT NULL
        AND status = 'success' AND failed_at > updated_at
    """,
    since=Day(),
)
# A row based on more attempts is kept, because it is newer.
_UPSERT_PLANS: Final = upsert(
    retry_queue, *KEY, *PLAN, newer="coalesce(retry_queue.attempt_no, 0) <= excluded.attempt_no"
)


class RetryQueue:
    """The scheduled retries, open requests, terminal marks and parkings of one ledger."""

    def __init__(self, engine: database.Reading, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine, self._clock = engine, clock
        self._leases = Leases(engine)

    def find_scheduled(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, ScheduledRetry]:
        """The scheduled retry of each partition that has one."""
        return _decode_scheduled(self._read(_READ_QUEUED, keys))

    def list_ended_waits(self, source: str, since: datetime, until: datetime) -> list[PartitionKey]:
        """The partitions whose wait for a quota ended after `since` and until then, and that were not tried again."""
        ended = (
            retry_queue.c.source == source,
            retry_queue.c.error_class == QUOTA_EXHAUSTED,
            retry_queue.c.due_at > since,
            retry_queue.c.due_at <= until,
        )
        statement = sa.select(*key_of_table(retry_queue)).where(*ended)
        return sorted(decode_key(row) for row in self._transact(lambda c: c.execute(statement).all()))

    def list_failed_rereads(self, source: str, query_name: str, since: date) -> list[PartitionKey]:
        """The successes whose last fetch failed after their run was accepted."""
        given = {"source": source, "query_name": query_name, "since": since}
        return [decode_key(row) for row in self._transact(lambda c: c.execute(_READ_FAILED_REREADS, given).all())]

    def find_requests(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, OpenRequest]:
        """The last request for each partition that has one. It may be closed: compare its `attempt_no`."""
        return _decode_requests(self._read(_READ_QUEUED, keys))

    def find_marked(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """The partitions among `keys` that are marked as terminal."""
        return set(map(decode_key, self._read(retry_queue_queries.READ_MARKED, keys)))

    def list_parkings(self, source: str) -> list[Parking]:
        """The parkings of a source, by scope and name."""
        order = parkings.c.scope, parkings.c.name
        statement = sa.select(parkings).where(parkings.c.source == source).order_by(*order)
        rows = self._transact(lambda c: c.execute(statement).all())
        return [Parking(**pick_fields(Parking, row)) for row in rows]

    def forecast(self, states: Sequence[PartitionState], policy: RetryPolicy) -> dict[PartitionKey, RetryForecast]:
        """The forecast of each partition's next run, in the order given, as of the database's clock."""
        if not states:
            return {}
        return database.read_at_once(
            self._engine, lambda engine: RetryQueue(engine, clock=self._clock)._forecast(states, policy)
        )

    def _forecast(self, states: Sequence[PartitionState], policy: RetryPolicy) -> dict[PartitionKey, RetryForecast]:
        keys = [state.key for state in states]
        failures, queued = self.find_failures(keys), self._read(_READ_QUEUED, keys)
        scheduled, requests = _decode_scheduled(queued), _decode_requests(queued)
        marked, holders = self.find_marked(keys), self._leases.holders(keys)
        parkings = [parking for source in {key.source for key in keys} for parking in self.list_parkings(source)]
        now = self._transact(self._now)
        holds = [hold for source in {key.source for key in keys} for hold in self._list_holds(source)]
        forecasts = {}
        for state in states:
            key, request = state.key, requests.get(state.key)
            request = request if request and request.attempt_no == state.attempt_count else None
            forecasts[key] = RetryForecast(
                now=now,
                decision=decide_next_retry(
                    state,
                    policy,
                    failure=failures.get(key),
                    scheduled=scheduled.get(key),
                    request=request,
                    marked=key in marked,
                    is_parked=any(parking.includes(key) for parking in parkings),
                    now=now,
                ),
                request=request,
                parkings=tuple(parking for parking in parkings if parking.includes(key)),
                holds=tuple(hold for hold in holds if hold.source == key.source and hold.covers(key.customer_id)),
                marked=key in marked,
                holder=holders.get(key),
            )
        return forecasts

    def find_due(
        self, policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int = PARTITIONS_PER_TRANSACTION
    ) -> list[ScheduledRetry]:
        """The due retries of failed partitions in a lane, the longest due first.

        Failures that no sensor has scheduled yet are included: their retries are computed here.
        """
        statement = retry_queue_queries.select_due(policy, lane, source=source, today=today, limit=limit)
        due = [_read_scheduled_retry(row) for row in self._execute_now(statement)]
        due += self._compute_due(policy, lane, source, today)
        return sorted(due, key=lambda retry: (retry.due_at, retry.key))[:limit]

    def find_due_requests(
        self, policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int = PARTITIONS_PER_TRANSACTION
    ) -> list[OpenRequest]:
        """The open requests of a lane that can run now, the oldest first."""
        statement = retry_queue_queries.select_due_requests(policy, lane, source=source, today=today, limit=limit)
        return [_read_request(row) for row in self._execute_now(statement)]

    def count_claimed(self, source: str, today: date) -> dict[Lane, int]:
        """The number of partitions in each lane that live runs have claimed."""
        rows = self._execute_now(retry_queue_queries.count_claimed(source, today))
        return dict.fromkeys(Lane, 0) | {Lane(row.lane): row.partitions for row in rows}

    def find_failures(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Failure]:
        """The last failure of each partition whose last attempt failed, with the number of failures in a row."""
        found = dict[PartitionKey, Failure]()
        for batch in _batches(keys):
            failures = self._transact(
                lambda connection, batch=batch: list(self._read_failures(connection, batch))  # type: ignore[misc]
            )
            found |= {failure.key: failure for failure, _attempt_no in failures}
        return found

    def schedule_failures(self, policy: RetryPolicy, *, today: date) -> int:
        """Schedule every failure that has no retry yet, and delete finished rows. Returns the number scheduled."""
        self._transact(
            lambda connection: [connection.execute(delete) for delete in retry_queue_queries.DELETE_FINISHED]
        )
        total = 0
        while scheduled := self._transact(lambda connection: self._schedule_batch(connection, policy, today)):
            total += scheduled
            if scheduled < PARTITIONS_PER_TRANSACTION:
                break
        return total

    def schedule_partitions(
        self, connection: sa.Connection, keys: Sequence[PartitionKey], policy: RetryPolicy, today: date
    ) -> list[ScheduledRetry]:
        """Schedule these partitions in the caller's transaction. Partitions that did not fail are skipped."""
        at = instant_text(self._now(connection))
        scheduled = [
            _schedule(failure, attempt_no, policy, today)
            for failure, attempt_no in self._read_failures(connection, keys)
        ]
        _UPSERT_PLANS.write(connection, (_schedule_fields(retry) | {"planned_at": at} for retry in scheduled))
        return scheduled

    def _list_holds(self, source: str) -> list[Hold]:
        return self._transact(lambda connection: read_holds(connection, source))

    def _compute_due(self, policy: RetryPolicy, lane: Lane, source: str, today: date) -> Iterator[ScheduledRetry]:
        """The due retries among the failures without a schedule, page by page."""
        after = None
        while True:
            statement = retry_queue_queries.select_unscheduled_in_lane(
                policy, lane, source=source, today=today, after=after, limit=PARTITIONS_PER_TRANSACTION
            )
            keys = [decode_key(row) for row in self._execute_now(statement)]
            now, failures = self._transact(
                lambda connection, keys=keys: (self._now(connection), list(self._read_failures(connection, keys)))  # type: ignore[misc]
            )
            for failure, attempt_no in failures:
                decision = decide_retry(failure, policy, marked=False, today=today)
                if isinstance(decision, RetryAt) and decision.at <= now:
                    yield _schedule(failure, attempt_no, policy, today)
            if len(keys) < PARTITIONS_PER_TRANSACTION:
                return
            after = keys[-1]

    def _schedule_batch(self, connection: sa.Connection, policy: RetryPolicy, today: date) -> int:
        limit = {"limit": PARTITIONS_PER_TRANSACTION}
        keys = [decode_key(row) for row in connection.execute(retry_queue_queries.SELECT_UNSCHEDULED, limit)]
        return len(self.schedule_partitions(connection, keys, policy, today)) if keys else 0

    def _read_failures(
        self, connection: sa.Connection, keys: Sequence[PartitionKey]
    ) -> Iterator[tuple[Failure, int]]:
        """The last failure of each partition that has one, with the partition's attempt count."""
        ends, numbers = defaultdict[PartitionKey, list[AttemptEnd]](list), dict.fromkeys(keys, 0)
        for row in _READ_ATTEMPTS.execute(connection, map(encode_key, keys)):
            accepted = row.outcome == Outcome.ACCEPTED
            ends[decode_key(row)].append(AttemptEnd(at=row.judged_at, accepted=accepted, error_class=row.error_class))
            numbers[decode_key(row)] = max(numbers[decode_key(row)], row.attempt_no)
        for key, end in _read_failed_fetches(connection, keys):
            ends[key].append(end)
        for key, number in numbers.items():
            failure = last_failure(key, ends[key])
            if failure is not None:
                yield failure, number

    def _now(self, connection: sa.Connection) -> datetime:
        return self._clock() if self._clock else read_clock(connection)

    def _execute_now(self, statement: sa.Executable) -> Sequence[sa.Row[Any]]:
        """Execute at the database's time. Clocks of other machines must not decide what is due or expired."""
        return self._transact(lambda c: c.execute(statement, {"now": self._now(c)}).all())

    def _read(self, statement: Statement, keys: Iterable[PartitionKey]) -> Sequence[sa.Row[Any]]:
        rows = list[sa.Row[Any]]()
        for batch in _batches(keys):
            rows += self._transact(lambda c, batch=batch: statement.execute(c, map(encode_key, batch)).all())  # type: ignore[misc]
        return rows

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self._engine, work)


def _read_failed_fetches(
    connection: sa.Connection, keys: Sequence[PartitionKey]
) -> Iterator[tuple[PartitionKey, AttemptEnd]]:
    """The failed fetches of partitions. Those before a request, a release or a recovery are forgiven."""
    rows = READ_FAILED_FETCHES.execute(connection, map(encode_key, keys)).all()
    queued = {decode_key(row): row for row in _READ_QUEUED.execute(connection, map(encode_key, keys))} if rows else {}
    for row in rows:
        key = decode_key(row)
        end = AttemptEnd(
            at=row.failed_at,
            error_class=row.error_class,
            wait_until=row.wait_until,
            is_forgiven=_is_forgiven(row, queued.get(key)),
        )
        yield key, end


def _is_forgiven(failed: sa.Row[Any], queued: sa.Row[Any] | None) -> bool:
    """Return true when a failed fetch does not count any more."""
    if queued is None:
        return False
    times = [queued.requested_at, queued.released_at]
    if failed.error_class in UNANSWERED:
        times.append(queued.recovered_at)
    return any(at is not None and failed.failed_at <= at for at in times)


def _batches(keys: Iterable[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    return split_batches(dict.fromkeys(keys), KEYS_PER_QUERY)


def _schedule(failure: Failure, attempt_no: int, policy: RetryPolicy, today: date) -> ScheduledRetry:
    """The retry of a failure, regardless of marks and age: `find_due` checks those, because they change later."""
    decision = decide_retry(failure, replace(policy, max_age=UNLIMITED_AGE), marked=False, today=today)
    at = decision.at if isinstance(decision, RetryAt) else None
    # Due again once the policy allows more attempts, or what is parked is released: until then, that blocks it.
    if isinstance(decision, Terminal) or (isinstance(decision, Parked) and decision.scope in PARKING_SCOPES):
        at = failure.failed_at + retry_delay(max(failure.failures, 1), policy, key=failure.key)
    return ScheduledRetry(
        key=failure.key,
        attempt_no=attempt_no,
        failures=0 if failure.is_forgiven else failure.failures,
        error_class=failure.error_class,
        failed_at=failure.failed_at,
        wait_until=failure.wait_until,
        due_at=at,
        why=printable(decision.explanation, limit=500),
    )


def _read_scheduled_retry(row: sa.Row[Any]) -> ScheduledRetry:
    return ScheduledRetry(key=decode_key(row), **pick_fields(ScheduledRetry, row, "key"))


def _decode_scheduled(rows: Iterable[sa.Row[Any]]) -> dict[PartitionKey, ScheduledRetry]:
    """The scheduled retries among rows of the queue."""
    return {decode_key(row): _read_scheduled_retry(row) for row in rows if row.failed_at is not None}


def _decode_requests(rows: Iterable[sa.Row[Any]]) -> dict[PartitionKey, OpenRequest]:
    """The requests among rows of the queue."""
    return {decode_key(row): _read_request(row) for row in rows if row.requested_at is not None}


def _read_request(row: sa.Row[Any]) -> OpenRequest:
    return OpenRequest(
        key=decode_key(row), attempt_no=row.requested_no, **pick_fields(OpenRequest, row, "key", "attempt_no")
    )


def _schedule_fields(retry: ScheduledRetry) -> dict[str, Any]:
    row = encode_key_by_name(retry.key)
    for field in fields(ScheduledRetry):
        value = getattr(retry, field.name)
        if field.name != "key":
            row[field.name] = instant_text(value) if isinstance(value, datetime) else value
    return row
