"""The retry policy: whether and when a failed partition is retried, which failures are terminal, and retry slots.

Pure functions; nothing here reads a clock or draws a random number. `ledger.control` counts failures and stores the
retry queue. State changes after a verdict are in `transitions`.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Final

from ads_pipeline.domain.fetching.error_texts import describe_error
from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE, TRANSIENT
from ads_pipeline.domain.partition import PartitionKey, validate_name
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.reason import DEMOTED
from ads_pipeline.domain.transitions import Status


class ErrorPolicy(StrEnum):
    """The handling of an error class."""

    RETRY = "retry"  # another attempt may succeed
    WAIT = "wait"  # the attempt came too early; it does not count as a failure
    PARK_CUSTOMER = "park_customer"  # no attempt succeeds until somebody fixes the account's access
    PARK_QUERY = "park_query"  # no attempt succeeds until somebody fixes the query
    PARK_SOURCE = "park_source"  # no attempt at any partition succeeds until somebody fixes credentials or version
    HOLD = "hold"  # fetching again would return the same data: the run was demoted, or the day is out of reach


RUN_TOO_LONG: Final = "run_too_long"  # a run reached its time limit before it came to the day
OUT_OF_REACH: Final = "out_of_reach"  # the source no longer has the figures of the day

# An unlisted class is retried: one attempt too many costs less than a lost day.
ERROR_POLICIES: Mapping[str, ErrorPolicy] = {
    # From the validator. Each concerns the bytes of one run, and a new attempt fetches new bytes.
    "damaged": ErrorPolicy.RETRY,
    "count_mismatch": ErrorPolicy.RETRY,
    "unreadable_line": ErrorPolicy.RETRY,
    "wrong_type": ErrorPolicy.RETRY,
    "contract": ErrorPolicy.RETRY,
    # From Google Ads.
    "quota_exhausted": ErrorPolicy.WAIT,
    SOURCE_UNAVAILABLE: ErrorPolicy.WAIT,
    RUN_TOO_LONG: ErrorPolicy.WAIT,
    "credentials_refused": ErrorPolicy.PARK_SOURCE,
    "version_ended": ErrorPolicy.PARK_SOURCE,
    "customer_not_enabled": ErrorPolicy.PARK_CUSTOMER,
    "permission_denied": ErrorPolicy.PARK_CUSTOMER,
    "manager_account": ErrorPolicy.PARK_CUSTOMER,
    "unrecognized_field": ErrorPolicy.PARK_QUERY,
    "query_refused": ErrorPolicy.PARK_QUERY,
    OUT_OF_REACH: ErrorPolicy.HOLD,
    TRANSIENT: ErrorPolicy.RETRY,
    "timed_out": ErrorPolicy.RETRY,
    "google_ads_error": ErrorPolicy.RETRY,
    "rows_refused": ErrorPolicy.RETRY,
    # From an operator.
    DEMOTED: ErrorPolicy.HOLD,
}

_REMEDIES = {
    ErrorPolicy.PARK_CUSTOMER: "fix the account's access, then release it",
    ErrorPolicy.PARK_QUERY: "fix the query, then release it",
    ErrorPolicy.PARK_SOURCE: "fix the credentials or the API version, then release it",
}
UNRECOVERABLE: Final = "unrecoverable, the source no longer reports the figures of this day"
# The scope in which a failure of each policy stops all fetches.
PARKING_SCOPES: Final[Mapping[ErrorPolicy, str]] = {
    ErrorPolicy.PARK_CUSTOMER: "customer",
    ErrorPolicy.PARK_QUERY: "query",
    ErrorPolicy.PARK_SOURCE: "source",
}
WAITING_CLASSES: Final = frozenset(name for name, policy in ERROR_POLICIES.items() if policy is ErrorPolicy.WAIT)
# What is pending because of these was never fetched, and is due again whatever its age when the cause is gone.
PENDING_CLASSES: Final = WAITING_CLASSES | {
    name for name, policy in ERROR_POLICIES.items() if policy in PARKING_SCOPES
}


class TerminalReason(StrEnum):
    """The reasons why a failed partition is terminal. When several hold, the first in this order is given."""

    MARKED = "marked"
    TOO_MANY_ATTEMPTS = "too_many_attempts"
    TOO_OLD = "too_old"


class Lane(StrEnum):
    """The two lanes of the retry queue. Each has slots of its own, so that neither blocks the other."""

    FRESH = "fresh"
    BACKFILL = "backfill"


FRESH_DAYS: Final = 3
RETRY_POLICY: Final = "retry policy"  # the operator of its requests in the log of actions
_MAX_RESERVED_SHARE = 0.5  # each of the two lanes reserves the share
_MAX_DELAY = timedelta(days=366)  # keeps every retry time within the calendar


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The delay after each consecutive failure, and the limits of retrying. The last delay repeats.

    Jitter lengthens a delay by at most this fraction; it never shortens one.
    """

    delays: tuple[timedelta, ...] = (timedelta(minutes=5), timedelta(minutes=30), timedelta(hours=2))
    jitter: float = 0.2
    max_attempts: int = 6
    max_age: timedelta = timedelta(days=90)

    def __post_init__(self) -> None:
        ascending = all(earlier < later for earlier, later in pairwise((timedelta(0), *self.delays)))
        if not self.delays or not ascending or self.delays[-1] > _MAX_DELAY:
            raise ValueError(f"delays: {self.delays} must be one or more ascending delays of up to a year")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter: {self.jitter} must be at least 0 and less than 1")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts: {self.max_attempts} must be at least 1")
        if self.max_age <= timedelta(0):
            raise ValueError(f"max_age: {self.max_age} must be longer than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last failure of a partition, and the number of consecutive failures since the last accepted verdict.

    Failures whose class has the policy WAIT are not counted, for example an exhausted quota. So the count is 0 when
    the partition has only waited. `wait_until` is the time that the failure itself named. Forgiven failures are not
    counted either; `is_forgiven` says that the last one is.
    """

    key: PartitionKey
    failures: int
    failed_at: datetime
    error_class: str | None
    wait_until: datetime | None = None
    is_forgiven: bool = False

    def __post_init__(self) -> None:
        if self.error_class is not None:
            validate_name("error_class", self.error_class)
        minimum = 0 if self.error_policy is ErrorPolicy.WAIT or self.is_forgiven else 1
        if self.failures < minimum:
            raise ValueError(f"{self.key}: the number of failures is {self.failures}, must be at least {minimum}")
        for field in ("failed_at", "wait_until"):
            at = getattr(self, field)
            if at is None:
                continue
            if at.tzinfo is None:
                raise ValueError(f"{self.key}: {field} needs a time zone")
            # A delay added to a local time would be wrong by an hour when clocks change.
            object.__setattr__(self, field, at.astimezone(UTC))

    @property
    def error_policy(self) -> ErrorPolicy:
        return ERROR_POLICIES.get(self.error_class or "", ErrorPolicy.RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """The end of one attempt at a partition: a verdict or a failed fetch.

    A failed fetch `is_forgiven` when it was before a request, a release, or the end of an outage of the source.
    """

    at: datetime
    accepted: bool = False
    error_class: str | None = None
    wait_until: datetime | None = None
    is_forgiven: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryAt:
    """Retry, no earlier than `at`."""

    at: datetime
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """Do not retry until an operator acts; `scope` says on what: the account, the query, the source or the data."""

    scope: ErrorPolicy
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """Do not fetch a day that has no rejected run, unless an operator requests it or the source was away."""

    reason: TerminalReason
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Do not retry a failed partition, unless an operator requests it."""

    reason: TerminalReason
    explanation: str


RetryDecision = RetryAt | Parked | Terminal | GivenUp


def last_failure(key: PartitionKey, ends: Iterable[AttemptEnd]) -> Failure | None:
    """The last failure since the last accepted verdict; None when there is none."""
    failed: list[AttemptEnd] = []
    for end in sorted(ends, key=lambda end: end.at):
        failed = [] if end.accepted else [*failed, end]
    if not failed:
        return None
    last = failed[-1]
    return Failure(
        key=key,
        failures=sum(end.error_class not in WAITING_CLASSES and not end.is_forgiven for end in failed),
        failed_at=last.at,
        error_class=last.error_class,
        wait_until=last.wait_until,
        is_forgiven=last.is_forgiven,
    )


def decide_retry(failure: Failure, policy: RetryPolicy, *, marked: bool, today: date) -> RetryDecision:
    """Decide whether and when to retry a partition after its last failure.

    A terminal partition is not parked as well. Waiting does not count as a failure, so only the terminal mark and the
    partition's age end it. The status is not considered: see `terminal_reason` for an earlier success.
    """
    error_policy, day = failure.error_policy, failure.key.logical_date
    failures = 0 if error_policy is ErrorPolicy.WAIT or failure.is_forgiven else failure.failures
    reason = terminal_reason(Status.FAILED, failures=failures, day=day, policy=policy, marked=marked, today=today)
    if reason is not None:
        return Terminal(reason=reason, explanation=_explain_terminal(reason, failure, policy, today))
    cause = describe_error(failure.error_class)
    match error_policy:
        case ErrorPolicy.PARK_CUSTOMER | ErrorPolicy.PARK_QUERY | ErrorPolicy.PARK_SOURCE | ErrorPolicy.HOLD:
            return Parked(scope=error_policy, explanation=_explain_parked(failure, cause))
        case ErrorPolicy.WAIT:
            return RetryAt(
                at=_end_of_wait(failure, policy),
                explanation=f"{cause}; this wait does not count as a failure",
            )
    if failure.is_forgiven:
        return RetryAt(at=failure.failed_at, explanation=f"{cause}; the count of failures starts again")
    at = failure.failed_at + retry_delay(failure.failures, policy, key=failure.key)
    return RetryAt(
        at=max(at, failure.wait_until or at),
        explanation=f"{cause}; attempt {failure.failures + 1} of {policy.max_attempts}",
    )


def terminal_reason(
    status: Status, *, failures: int, day: date, policy: RetryPolicy, marked: bool, today: date
) -> TerminalReason | None:
    """The reason why a partition is terminal; None when it is not. Only a failed partition can be terminal.

    `failures` counts consecutive failures since the last accepted verdict. It is not the attempt count, which never
    falls and grows with every restatement.
    """
    if status is not Status.FAILED:
        return None
    if marked:
        return TerminalReason.MARKED
    if failures >= policy.max_attempts:
        return TerminalReason.TOO_MANY_ATTEMPTS
    return TerminalReason.TOO_OLD if today - day >= policy.max_age else None


def newest_expired_day(policy: RetryPolicy, today: date) -> date:
    """The newest day that is too old to be retried."""
    days = math.ceil(policy.max_age / timedelta(days=1))
    return today - timedelta(days=days) if days < today.toordinal() else date.min


def retry_delay(failures: int, policy: RetryPolicy, *, key: PartitionKey) -> timedelta:
    """The delay after this many consecutive failures. It is deterministic per key.

    It never shrinks as failures of a key go on: jitter ends where the next step begins, and is constant on the last.
    """
    if failures < 1:
        raise ValueError(f"{key}: the number of failures is {failures}, must be at least 1")
    index = min(failures, len(policy.delays)) - 1
    step = policy.delays[index]
    max_jitter = step * policy.jitter
    if index + 1 < len(policy.delays):
        max_jitter = min(max_jitter, policy.delays[index + 1] - step)
    return step + _jitter(max_jitter, seed=f"{key} {index}")


def lane_for(key: PartitionKey, today: date, fresh_days: int = FRESH_DAYS) -> Lane:
    """FRESH for today and the `fresh_days` days before it, BACKFILL for older days."""
    return Lane.FRESH if (today - key.logical_date).days <= fresh_days else Lane.BACKFILL


def allocate_slots(
    due: Mapping[Lane, Sequence[PartitionKey]],
    slots: int,
    reserved_share: float = 0.25,
    *,
    running: Mapping[Lane, int] | None = None,
) -> list[PartitionKey]:
    """The partitions to start: fresh ones first, each lane in the order given, at most `slots` in all.

    Each lane has `reserved_share` of all slots, at least one when there are two or more. A lane may use the slots
    that the other leaves free. All slots are the free ones and those of `running` partitions. Pass `running` when
    slots become free one at a time: otherwise the fresh lane would take each of them. A single slot belongs to the
    fresh lane.
    """
    if not 0 <= reserved_share <= _MAX_RESERVED_SHARE:
        raise ValueError(f"reserved_share: {reserved_share} must be at least 0 and at most 0.5")
    fresh, backfill = due.get(Lane.FRESH, ()), due.get(Lane.BACKFILL, ())
    used = running or {}
    free, total = max(slots, 0), max(slots, 0) + sum(used.values())
    # At most half, rounded down: both halves of an odd number cannot be rounded up.
    reserved = min(max(math.ceil(total * reserved_share), 1), total // 2)
    for_backfill = min(max(reserved - used.get(Lane.BACKFILL, 0), 0), len(backfill), free)
    first = list(fresh[: free - for_backfill])
    return first + list(backfill[: free - len(first)])


def _end_of_wait(failure: Failure, policy: RetryPolicy) -> datetime:
    """The time that the failure named, if it is later than the failure; otherwise a retry would be due at once."""
    if failure.wait_until is not None and failure.wait_until > failure.failed_at:
        return failure.wait_until
    return failure.failed_at + retry_delay(1, policy, key=failure.key)


def _explain_parked(failure: Failure, cause: str) -> str:
    """Say why no attempt is made, and what an operator can do."""
    if failure.error_class == OUT_OF_REACH:
        return UNRECOVERABLE
    if failure.error_policy is ErrorPolicy.HOLD:
        retry = f"ads-pipeline state retry {failure.key.short_name} --reason TEXT"
        return f"{cause}; to fetch the day again: {retry}"
    return f"{cause}; {_REMEDIES[failure.error_policy]}"


def _explain_terminal(reason: TerminalReason, failure: Failure, policy: RetryPolicy, today: date) -> str:
    match reason:
        case TerminalReason.MARKED:
            return "marked as terminal; clear the mark to retry"
        case TerminalReason.TOO_MANY_ATTEMPTS:
            return f"{failure.failures} failures in a row, {policy.max_attempts} are allowed; find the cause"
    age = (today - failure.key.logical_date).days
    limit = math.ceil(policy.max_age / timedelta(days=1))
    return f"the day is {count_of(age, 'day')} old; after {count_of(limit, 'day')} nothing is retried"


def _jitter(maximum: timedelta, *, seed: str) -> timedelta:
    """Between 0 and the maximum, derived from the seed. It spreads out partitions that failed together."""
    tick = timedelta(microseconds=1)
    digest = hashlib.sha256(seed.encode()).digest()
    return (maximum // tick * int.from_bytes(digest[:8]) >> 64) * tick
