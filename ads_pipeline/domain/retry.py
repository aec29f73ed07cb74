"""Answers whether and when a failure earns another attempt, and what is terminal.

Plain values in, plain values out: nothing here reads a clock, draws a random number or keeps an answer. Where room is
short, it also says whose turn it is. What a verdict makes of a partition is `transitions`' business; counting the
failures, keeping the moments and carrying the answers out is the control plane's.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, checked_name
from ads_pipeline.domain.transitions import Status


class ErrorPolicy(StrEnum):
    """What a class of error asks for."""

    RETRY = "retry"  # another attempt may end otherwise
    WAIT = "wait"  # nothing is wrong with the partition; it came too early
    PARK_CUSTOMER = "park_customer"  # no attempt at this account can succeed until somebody mends its access
    PARK_QUERY = "park_query"  # no attempt with this query can succeed until somebody mends its text
    HOLD = "hold"  # somebody took the data back; fetched again they would be the same


DEMOTED: Final = "demoted"

# A class that is not listed is retried: an attempt too many costs less than a day that is lost.
TREATMENTS: Mapping[str, ErrorPolicy] = {
    # The validator's own. Each is about the bytes of one run, and another attempt brings other bytes.
    "damaged": ErrorPolicy.RETRY,
    "count_mismatch": ErrorPolicy.RETRY,
    "unreadable_line": ErrorPolicy.RETRY,
    "wrong_type": ErrorPolicy.RETRY,
    "contract": ErrorPolicy.RETRY,
    # Google Ads'.
    "quota_exhausted": ErrorPolicy.WAIT,
    "customer_not_enabled": ErrorPolicy.PARK_CUSTOMER,
    "permission_denied": ErrorPolicy.PARK_CUSTOMER,
    "unrecognized_field": ErrorPolicy.PARK_QUERY,
    "query_refused": ErrorPolicy.PARK_QUERY,
    # An operator's.
    DEMOTED: ErrorPolicy.HOLD,
}

_TO_MEND = {
    ErrorPolicy.PARK_CUSTOMER: "mend the account's access",
    ErrorPolicy.PARK_QUERY: "mend the query",
    ErrorPolicy.HOLD: "see that it would end otherwise",
}
PARKS: Final = frozenset(_TO_MEND)
WAITS: Final = frozenset(name for name, treatment in TREATMENTS.items() if treatment is ErrorPolicy.WAIT)


class TerminalReason(StrEnum):
    """Why a failed partition is terminal. Where several hold, the one that stands first here decides."""

    MARKED = "marked"
    TOO_MANY_ATTEMPTS = "too_many_attempts"
    TOO_OLD = "too_old"


class Lane(StrEnum):
    """The two queues of what is due, so that neither stands in the other's way."""

    FRESH = "fresh"
    BACKFILL = "backfill"


FRESH_DAYS: Final = 3
_HALF = 0.5  # two lanes cannot both count on more
_LONGEST_DELAY = timedelta(days=366)  # keeps every moment within the calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to wait after each failure in a row, the last delay from then on, and when to stop.

    Jitter is the part of a delay that may be added to it at most; it never shortens one.
    """

    delays: tuple[timedelta, ...] = (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
    jitter: float = 0.2
    max_attempts: int = 6
    max_age: timedelta = timedelta(days=90)

    def __post_init__(self) -> None:
        ascending = all(shorter < longer for shorter, longer in pairwise((timedelta(0), *self.delays)))
        if not self.delays or not ascending or self.delays[-1] > _LONGEST_DELAY:
            raise ValueError(f"delays: {self.delays} is refused: one or more, ascending, up to a year")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter: {self.jitter} is refused: at least 0 and less than 1")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts: {self.max_attempts} is refused: at least 1")
        if self.max_age <= timedelta(0):
            raise ValueError(f"max_age: {self.max_age} is refused: longer than nothing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a partition, and how many there were in a row since a verdict last accepted a run of it.

    Whoever counts leaves out the failures whose class asks to wait: a quota that is used up costs no attempt. So the
    count is 0 where the partition has done nothing but wait. `wait_until` is the moment the failure itself named.
    """

    key: PartitionKey
    failures: int
    failed_at: datetime
    error_class: str | None
    wait_until: datetime | None = None

    def __post_init__(self) -> None:
        if self.error_class is not None:
            checked_name("error_class", self.error_class)
        least = 0 if self.treatment is ErrorPolicy.WAIT else 1
        if self.failures < least:
            raise ValueError(f"{self.key}: {self.failures} failures are refused: at least {least}")
        for field in ("failed_at", "wait_until"):
            at = getattr(self, field)
            if at is None:
                continue
            if at.tzinfo is None:
                raise ValueError(f"{self.key}: {field} is an instant; this time has no zone")
            # A delay added to a local time would be an hour out when clocks change.
            object.__setattr__(self, field, at.astimezone(UTC))

    @property
    def treatment(self) -> ErrorPolicy:
        return ErrorPolicy.RETRY if self.error_class is None else TREATMENTS.get(self.error_class, ErrorPolicy.RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How one attempt at a partition ended: a verdict, or a fetch that brought nothing."""

    at: datetime
    accepted: bool = False
    error_class: str | None = None
    wait_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt:
    """Another attempt, no sooner than this."""

    at: datetime
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """No attempt until somebody has acted; `scope` says what is at fault: account, query, or its own data."""

    scope: ErrorPolicy
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """No attempt, unless an operator orders one."""

    reason: TerminalReason
    why: str


RetryDecision = RetryAt | Parked | Terminal


def failure_of(key: PartitionKey, ends: Iterable[AttemptEnd]) -> Failure | None:
    """The last failure since a run was last accepted, and how many there were; None when there is none."""
    since: list[AttemptEnd] = []
    for end in sorted(ends, key=lambda each: each.at):
        since = [] if end.accepted else [*since, end]
    if not since:
        return None
    last = since[-1]
    return Failure(
        key=key,
        failures=sum(end.error_class not in WAITS for end in since),
        failed_at=last.at,
        error_class=last.error_class,
        wait_until=last.wait_until,
    )


def decide(failure: Failure, policy: RetryPolicy, *, marked: bool, today: date) -> RetryDecision:
    """What becomes of a partition after its last failure.

    What is terminal is not parked as well. A wait is no attempt, so the limit of attempts does not end it; only the
    marker and the partition's age do. The answer is about the attempts; an earlier success stays one, see `terminal`.
    """
    treatment, day = failure.treatment, failure.key.logical_date
    counted = 0 if treatment is ErrorPolicy.WAIT else failure.failures
    reason = terminal(Status.FAILED, failures=counted, day=day, policy=policy, marked=marked, today=today)
    if reason is not None:
        return Terminal(reason=reason, why=_why_terminal(reason, failure, policy, today))
    told = failure.error_class or "unknown error"
    match treatment:
        case ErrorPolicy.PARK_CUSTOMER | ErrorPolicy.PARK_QUERY | ErrorPolicy.HOLD:
            return Parked(scope=treatment, why=f"{told}: no attempt cures it; {_TO_MEND[treatment]}, then requeue")
        case ErrorPolicy.WAIT:
            return RetryAt(at=_after_waiting(failure, policy), why=f"{told}: waits, which costs no attempt")
    at = failure.failed_at + delay(failure.failures, policy, key=failure.key)
    return RetryAt(
        at=max(at, failure.wait_until or at), why=f"{told}: failure {failure.failures} of {policy.max_attempts}"
    )


def terminal(
    status: Status, *, failures: int, day: date, policy: RetryPolicy, marked: bool, today: date
) -> TerminalReason | None:
    """Why a partition gets no more attempts; None when it may. Only a failed one can be terminal.

    `failures` are those in a row since the last accepted verdict, not the attempt count, which never falls: a
    partition that was restated every day for a month has all its attempts before it.
    """
    if status is not Status.FAILED:
        return None
    if marked:
        return TerminalReason.MARKED
    if failures >= policy.max_attempts:
        return TerminalReason.TOO_MANY_ATTEMPTS
    return TerminalReason.TOO_OLD if today - day >= policy.max_age else None


def oldest_day(policy: RetryPolicy, today: date) -> date:
    """The youngest of the days that are too old: what lies after it may be retried."""
    days = math.ceil(policy.max_age / timedelta(days=1))
    return today - timedelta(days=days) if days < today.toordinal() else date.min


def delay(failures: int, policy: RetryPolicy, *, key: PartitionKey) -> timedelta:
    """How long to wait after so many failures in a row: the same answer whenever it is asked.

    Never shorter than after fewer failures of the same key, because what is added to a step ends where the next one
    begins, and is the same every time on the last.
    """
    if failures < 1:
        raise ValueError(f"{key}: a delay follows a failure; {failures} were counted")
    place = min(failures, len(policy.delays)) - 1
    step = policy.delays[place]
    room = step * policy.jitter
    if place + 1 < len(policy.delays):
        room = min(room, policy.delays[place + 1] - step)
    return step + _part_of(room, seed=f"{key} {place}")


def lane_of(key: PartitionKey, today: date, fresh_days: int = FRESH_DAYS) -> Lane:
    """Fresh are today and the so many days before it; what is older is backfill, whoever asked for it."""
    return Lane.FRESH if (today - key.logical_date).days <= fresh_days else Lane.BACKFILL


def shares(
    due: Mapping[Lane, Sequence[PartitionKey]],
    room: int,
    floor: float = 0.25,
    *,
    running: Mapping[Lane, int] | None = None,
) -> list[PartitionKey]:
    """Whose turn it is: fresh partitions first, each lane in the order given, and at most as many as there is room.

    Each lane can count on `floor` of the whole, on one place at least where there are two; what one lane leaves, the
    other gets. The whole is the room and what is `running`. Say what is running where places fall free one by one: of
    a single place there is no part to keep, and the fresh lane would take it every time. A whole of one place is
    always the fresh lane's.
    """
    if not 0 <= floor <= _HALF:
        raise ValueError(f"floor: {floor} is refused: at least 0 and at most a half")
    fresh, backfill = due.get(Lane.FRESH, ()), due.get(Lane.BACKFILL, ())
    taken = running or {}
    free, whole = max(room, 0), max(room, 0) + sum(taken.values())
    # No more than half: of an odd number both halves cannot be rounded up.
    counted_on = min(max(math.ceil(whole * floor), 1), whole // 2)
    kept = min(max(counted_on - taken.get(Lane.BACKFILL, 0), 0), len(backfill), free)
    first = list(fresh[: free - kept])
    return first + list(backfill[: free - len(first)])


def _after_waiting(failure: Failure, policy: RetryPolicy) -> datetime:
    """The moment that was named, if it lies ahead: one that does not would be asked for again at once, for ever."""
    if failure.wait_until is not None and failure.wait_until > failure.failed_at:
        return failure.wait_until
    return failure.failed_at + delay(1, policy, key=failure.key)


def _why_terminal(reason: TerminalReason, failure: Failure, policy: RetryPolicy, today: date) -> str:
    match reason:
        case TerminalReason.MARKED:
            return "marked as terminal; clear the marker to try again"
        case TerminalReason.TOO_MANY_ATTEMPTS:
            return f"{failure.failures} failures in a row, {policy.max_attempts} are allowed; find the cause"
    age = (today - failure.key.logical_date).days
    limit = math.ceil(policy.max_age / timedelta(days=1))
    return f"{age} days old, and from {limit} days on nothing is retried"


def _part_of(room: timedelta, *, seed: str) -> timedelta:
    """Between nothing and all of the room, as the seed has it: partitions that failed together come back apart."""
    tick = timedelta(microseconds=1)
    digest = hashlib.sha256(seed.encode()).digest()
    return (room // tick * int.from_bytes(digest[:8]) >> 64) * tick
