"""Forecasts the next run of a partition: the known facts, and the one rule that says when it is due.

`RetryQueue` reads these values. Its SQL lists what is due for many partitions at once; a property test holds the SQL
to `RetryForecast.is_due`.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from ads_pipeline.domain.fetching.error_texts import describe_error
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_policy import (
    PARKING_SCOPES,
    PENDING_CLASSES,
    Failure,
    GivenUp,
    Parked,
    RetryAt,
    RetryDecision,
    RetryPolicy,
    Terminal,
    TerminalReason,
    decide_retry,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import PartitionState, Status

UNLIMITED_AGE: Final = timedelta(days=365_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRetry:
    """The retry that follows a partition's last failure. Without `due_at`, only a control action retries it.

    `attempt_no` is the partition's attempt count when it was scheduled. A later attempt makes the row obsolete.
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
    """A request for a new run of a partition. The next verdict closes it."""

    key: PartitionKey
    kind: str
    action_id: str
    attempt_no: int
    requested_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Parking:
    """An account, a query or a whole source that is not fetched until it is released.

    The reason and the time are known once it is parked.
    """

    source: str
    scope: str
    name: str
    error_class: str = ""
    why: str = ""
    parked_at: datetime | None = None

    def __str__(self) -> str:
        return f"{self.target}{self.details}"

    @property
    def details(self) -> str:
        """The time and the reason of the parking."""
        since = "" if self.parked_at is None else f" since {self.parked_at:%Y-%m-%d %H:%M:%S}Z"
        return f"{since}: {self.error_class}: {self.why}"

    @property
    def target(self) -> str:
        return f"{'account' if self.scope == 'customer' else self.scope} {self.name}"

    def includes(self, key: PartitionKey) -> bool:
        return self.source == key.source and self.covers(key.customer_id, key.query_name)

    def covers(self, customer_id: str, query_name: str) -> bool:
        """True if it stops this customer's days of this query of its source."""
        return self.scope == "source" or self.name == (customer_id if self.scope == "customer" else query_name)


def names_by_scope(key: PartitionKey) -> dict[str, str]:
    """The name of what a parking stops for a partition, by the scope of the parking."""
    return {"customer": key.customer_id, "query": key.query_name, "source": key.source}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The run that has claimed a partition. Each heartbeat of the run extends its lease.

    The fence grows whenever another run claims the partition.
    """

    engine_run_id: str
    fence: int
    claimed_at: datetime
    expires_at: datetime

    def __str__(self) -> str:
        return f"run {self.engine_run_id} holds it, at least until {self.expires_at:%Y-%m-%d %H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryForecast:
    """The retry decision for a partition, its open request, its parkings and holds, its mark and its lease holder."""

    now: datetime
    decision: RetryDecision | None = None
    request: OpenRequest | None = None
    parkings: tuple[Parking, ...] = ()
    holds: tuple[Hold, ...] = ()
    marked: bool = False
    holder: LeaseHolder | None = None

    @property
    def terminal(self) -> Terminal | None:
        return self.decision if isinstance(self.decision, Terminal) else None

    @property
    def given_up(self) -> GivenUp | None:
        return self.decision if isinstance(self.decision, GivenUp) else None

    @property
    def next_at(self) -> datetime | None:
        """The time at which the partition needs its next run; None when it needs none without a control action."""
        if self.parkings or self.marked:
            return None
        if isinstance(self.decision, RetryAt):
            return self.decision.at
        return self.request.requested_at if self.request and self.decision is None else None

    @property
    def is_due(self) -> bool:
        """True if the partition needs a run now. One that a live run holds is being produced already."""
        return self.next_at is not None and self.next_at <= self.now and self.holder is None


def decide_next_retry(
    state: PartitionState,
    policy: RetryPolicy,
    *,
    failure: Failure | None,
    scheduled: ScheduledRetry | None,
    request: OpenRequest | None,
    marked: bool,
    is_parked: bool,
    now: datetime,
) -> RetryDecision | None:
    """The retry decision for a failed partition, and for a failed fetch of a pending or a requested one.

    A request has no age limit, because somebody asked for that day. Neither has a day that was never fetched because
    it had to wait or was parked: the quota may end in the middle of a backfill of years. A parked day is due again
    once it is released. A scheduled time stays valid when the delays of the policy change.
    """
    if scheduled is not None and scheduled.attempt_no != state.attempt_count:
        scheduled = None
    if failure is None or not _counts(state, failure, scheduled, request):
        return None
    is_unlimited = request is not None or failure.error_class in PENDING_CLASSES or failure.is_forgiven
    if is_unlimited and state.status is not Status.FAILED:
        policy = replace(policy, max_age=UNLIMITED_AGE)
    decision = decide_retry(failure, policy, marked=marked, today=now.date())
    if isinstance(decision, Terminal) and state.status is not Status.FAILED:
        is_marked = decision.reason is TerminalReason.MARKED
        return decision if is_marked else GivenUp(reason=decision.reason, explanation=decision.explanation)
    if scheduled is None or scheduled.due_at is None:
        return decision
    if isinstance(decision, Parked) and decision.scope in PARKING_SCOPES and not is_parked:
        return RetryAt(at=scheduled.due_at, explanation=f"{describe_error(failure.error_class)}; released since")
    if isinstance(decision, RetryAt):
        return RetryAt(at=scheduled.due_at, explanation=decision.explanation)
    return decision


def _counts(
    state: PartitionState, failure: Failure, scheduled: ScheduledRetry | None, request: OpenRequest | None
) -> bool:
    """True if the failure decides about the next run: not when a request, a success or a withdrawal came after it."""
    if state.status is Status.FAILED:
        return True
    if request is not None:
        return failure.failed_at > request.requested_at
    return state.status is Status.PENDING and scheduled is not None
