"""Plans what becomes of failures, and answers what is due: failed partitions, and runs that somebody asked for.

Derived from the logs of verdicts and failed fetches by `retry`, and planned anew whenever a partition fails again.
Planning changes no state; who acts on what is due does so at the desk.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date, datetime, timedelta
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import (
    AttemptEnd,
    Failure,
    Lane,
    RetryAt,
    RetryPolicy,
    Terminal,
    decide,
    delay,
    failure_of,
)
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.errors import printable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control import retry_queue_queries
from ads_pipeline.ledger.control.tables import failed_fetches, parkings, requests, retry_schedule, terminal_marks
from ads_pipeline.ledger.row_mapping import (
    KEY_TYPES,
    clock_of,
    fields_for,
    insert_into,
    key_fields,
    key_in,
    key_of,
    same_key,
)
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.tables import KEY, attempts, instant_text

T = TypeVar("T")
AT_ONCE: Final = 1_000  # partitions planned in one transaction
ASKED_AT_ONCE: Final = 10_000
_PLANNED: Final[Mapping[str, Any]] = {column.name: column.type for column in retry_schedule.c}
ANY_AGE: Final = timedelta(days=365_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRetry:
    """What was made of a partition's last failure. Without `due_at` only an order brings another attempt.

    `attempt_no` is how many attempts it had when it was planned: with more of them it no longer holds.
    """

    key: PartitionKey
    attempt_no: int
    failures: int
    error_class: str | None
    failed_at: datetime
    wait_until: datetime | None
    due_at: datetime | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRequest:
    """A run that somebody asked for, and that no verdict has answered yet."""

    key: PartitionKey
    kind: str
    act_id: str
    attempt_no: int
    requested_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """An account or a query for which nothing is fetched until somebody has mended it."""

    source: str
    scope: str
    name: str
    error_class: str
    why: str
    parked_at: datetime | None = None


class RetryQueue:
    """What is planned for the partitions of one ledger."""

    def __init__(self, engine: sa.Engine, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine, self._clock = engine, clock
        dialect = engine.dialect.name
        self._read_clock = sa.select(clock_of(dialect))
        self._planned = _lookup(retry_schedule, dialect)
        self._requested = _lookup(requests, dialect)
        self._marked = _lookup(terminal_marks, dialect)
        self._attempts = RowStatement("attempts_since", dialect, _attempts_since)
        self._fetches = _lookup(failed_fetches, dialect)
        self._put = RowStatement("put_schedule", dialect, lambda rowset: _put(dialect, rowset))

    def of(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, ScheduledRetry]:
        """What is planned for those partitions that failed last."""
        return {key_in(row): _planned_of(row) for row in self._read(self._planned, keys)}

    def requested(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, OpenRequest]:
        """What was asked for last of those partitions of which a run was ever asked for; it may be answered."""
        return {key_in(row): _wanted_of(row) for row in self._read(self._requested, keys)}

    def marked(self, keys: Iterable[PartitionKey]) -> set[PartitionKey]:
        """Those of the partitions that are marked as terminal."""
        return set(map(key_in, self._read(self._marked, keys)))

    def parkings(self, source: str) -> list[Parking]:
        """The accounts and queries that are parked, by scope and name."""
        order = parkings.c.scope, parkings.c.name
        statement = sa.select(parkings).where(parkings.c.source == source).order_by(*order)
        rows = self._transact(lambda c: c.execute(statement).all())
        return [Parking(**fields_for(Parking, row)) for row in rows]

    def due(
        self, policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int = AT_ONCE
    ) -> list[PartitionKey]:
        """The failed partitions of a lane that may be tried again now, longest due first."""
        statement = retry_queue_queries.due(policy, lane, source=source, today=today, limit=limit)
        return [key_in(row) for row in self._asked_now(statement)]

    def wanted(
        self, policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int = AT_ONCE
    ) -> list[OpenRequest]:
        """The open requests of a lane that nothing holds back now, oldest first."""
        statement = retry_queue_queries.wanted(policy, lane, source=source, today=today, limit=limit)
        return [_wanted_of(row) for row in self._asked_now(statement)]

    def at_work(self, source: str, today: date) -> dict[Lane, int]:
        """How many partitions live runs are working on, by lane."""
        counted = {
            Lane(row.lane): row.partitions for row in self._asked_now(retry_queue_queries.at_work(source, today))
        }
        return dict.fromkeys(Lane, 0) | counted

    def failures(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, Failure]:
        """The last failure of those partitions whose last attempt was one, with how many there were in a row."""
        found = dict[PartitionKey, Failure]()
        for some in _portions(keys):
            failures = self._transact(lambda connection, some=some: list(self._failures(connection, some)))  # type: ignore[misc]
            found |= {failure.key: failure for failure, _number in failures}
        return found

    def plan(self, policy: RetryPolicy, *, today: date) -> int:
        """Plan the failures that nothing is planned for, and drop what was answered; how many were planned."""
        self._transact(lambda connection: [connection.execute(drop) for drop in retry_queue_queries.answered()])
        planned = 0
        while some := self._transact(lambda connection: self._plan(connection, policy, today)):
            planned += some
            if some < AT_ONCE:
                break
        return planned

    def plan_these(
        self, connection: sa.Connection, keys: Sequence[PartitionKey], policy: RetryPolicy, today: date
    ) -> list[ScheduledRetry]:
        """The same for some partitions, in the caller's transaction. What never failed gets no plan."""
        at = instant_text(self._now(connection))
        planned = [_plan_of(failure, number, policy, today) for failure, number in self._failures(connection, keys)]
        self._put.run(connection, (_planned_fields(each) | {"planned_at": at} for each in planned))
        return planned

    def _plan(self, connection: sa.Connection, policy: RetryPolicy, today: date) -> int:
        keys = [key_in(row) for row in connection.execute(retry_queue_queries.unplanned(AT_ONCE))]
        return len(self.plan_these(connection, keys, policy, today)) if keys else 0

    def _failures(self, connection: sa.Connection, keys: Sequence[PartitionKey]) -> Iterator[tuple[Failure, int]]:
        """The last failure of each partition, with how many attempts there were."""
        ends, numbers = defaultdict[PartitionKey, list[AttemptEnd]](list), dict.fromkeys(keys, 0)
        for row in self._attempts.run(connection, map(key_fields, keys)):
            accepted = row.outcome == Outcome.ACCEPTED
            ends[key_in(row)].append(AttemptEnd(at=row.judged_at, accepted=accepted, error_class=row.error_class))
            numbers[key_in(row)] = max(numbers[key_in(row)], row.attempt_no)
        for row in self._fetches.run(connection, map(key_fields, keys)):
            end = AttemptEnd(at=row.failed_at, error_class=row.error_class, wait_until=row.wait_until)
            ends[key_in(row)].append(end)
        for key, number in numbers.items():
            failure = failure_of(key, ends[key])
            if failure is not None:
                yield failure, number

    def _now(self, connection: sa.Connection) -> datetime:
        return self._clock() if self._clock else connection.scalars(self._read_clock).one()

    def _asked_now(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """The rows as of the store's own time: no other clock decides what is due, or whose lease has run out."""
        return self._transact(lambda c: c.execute(statement, {"now": self._now(c)}).all())

    def _read(self, statement: RowStatement, keys: Iterable[PartitionKey]) -> Sequence[sa.Row[Any]]:
        rows = list[sa.Row[Any]]()
        for some in _portions(keys):
            rows += self._transact(lambda c, some=some: statement.run(c, map(key_fields, some)).all())  # type: ignore[misc]
        return rows

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self._engine, work)


def _portions(keys: Iterable[PartitionKey]) -> Iterator[Sequence[PartitionKey]]:
    """Each key once, as many together as one parameter should carry: an act may be on a million."""
    asked = list(dict.fromkeys(keys))
    return (asked[start : start + ASKED_AT_ONCE] for start in range(0, len(asked), ASKED_AT_ONCE))


def _plan_of(failure: Failure, attempt_no: int, policy: RetryPolicy, today: date) -> ScheduledRetry:
    """Marks and ages are looked at when it is due, so what is planned here is what holds without them."""
    answer = decide(failure, replace(policy, max_age=ANY_AGE), marked=False, today=today)
    at = answer.at if isinstance(answer, RetryAt) else None
    if isinstance(answer, Terminal):  # it comes back when the policy allows more attempts
        at = failure.failed_at + delay(failure.failures, policy, key=failure.key)
    return ScheduledRetry(
        key=failure.key,
        attempt_no=attempt_no,
        failures=failure.failures,
        error_class=failure.error_class,
        failed_at=failure.failed_at,
        wait_until=failure.wait_until,
        due_at=at,
        why=printable(answer.why, limit=500),
    )


def _planned_of(row: sa.Row[Any]) -> ScheduledRetry:
    return ScheduledRetry(key=key_in(row), **fields_for(ScheduledRetry, row, "key"))


def _wanted_of(row: sa.Row[Any]) -> OpenRequest:
    return OpenRequest(key=key_in(row), **fields_for(OpenRequest, row, "key"))


def _planned_fields(planned: ScheduledRetry) -> dict[str, Any]:
    row = key_fields(planned.key)
    for field in fields(ScheduledRetry):
        value = getattr(planned, field.name)
        if field.name != "key":
            row[field.name] = instant_text(value) if isinstance(value, datetime) else value
    return row


def _lookup(table: sa.Table, dialect: str) -> RowStatement:
    def build(rowset: Rowset) -> sa.Select[Any]:
        asked = rowset(KEY_TYPES)
        return sa.select(table).join_from(asked, table, same_key(table, asked))

    return RowStatement(f"{table.name}_planned", dialect, build)


def _attempts_since(rowset: Rowset) -> sa.Select[Any]:
    """The verdicts on each asked partition from the last acceptance on."""
    asked, others = rowset(KEY_TYPES), attempts.alias("others")
    accepted = others.c.outcome == sa.literal_column(f"'{Outcome.ACCEPTED}'")
    last = sa.select(sa.func.max(others.c.attempt_no)).where(same_key(others, attempts), accepted).scalar_subquery()
    since = attempts.c.attempt_no >= sa.func.coalesce(last, sa.literal_column("0"))
    return sa.select(attempts).join_from(asked, attempts, same_key(attempts, asked)).where(since)


def _put(dialect: str, rowset: Rowset) -> sa.Insert:
    """A plan that was made of more attempts stays: it was made by somebody who knew more."""
    asked, names = rowset(_PLANNED), tuple(_PLANNED)
    rows = sa.select(*(asked.c[name] for name in names)).where(sa.true())  # else SQLite takes ON for a join's
    insert = insert_into(dialect, retry_schedule).from_select(names, rows.order_by(*key_of(asked)))
    new = insert.excluded
    changed = {name: new[name] for name in names if name not in KEY}
    knew_less = retry_schedule.c.attempt_no <= new.attempt_no
    return insert.on_conflict_do_update(index_elements=list(KEY), set_=changed, where=knew_less)
