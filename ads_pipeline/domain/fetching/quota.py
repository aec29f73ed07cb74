"""The budget of API operations: what a call is for, how many a rolling day may have, and the answer to a request.

Pure values and rules; nothing here reads a clock. `ledger.extraction` counts the operations of all runs.
"""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Final

from ads_pipeline.domain.fetching.outages import SOURCE_UNAVAILABLE
from ads_pipeline.domain.fetching.retry_policy import Lane
from ads_pipeline.domain.partition import validate_name

WINDOW: Final = timedelta(hours=24)  # the source counts the last 24 hours, not a calendar day
DEFAULT_WAIT: Final = timedelta(hours=1)  # when the source refuses a call and names no time
QUOTA_EXHAUSTED: Final = "quota_exhausted"
_MAX_RESERVED: Final = 0.5
_SHARE_OF_ACCOUNTS: Final = 0.05  # what backfills leave to discovery, which would otherwise wait for their end


class OperationKind(StrEnum):
    """The purpose of a call. Each costs one operation."""

    REPORT = "report"
    ACCOUNTS = "accounts"
    LOOKBACK = "lookback"
    CHECK = "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLimits:
    """The most operations of a rolling day; None: any number. Fresh days alone may use the reserved share."""

    daily_operations: int | None = None
    reserved_for_fresh: float = 0.25

    def __post_init__(self) -> None:
        if self.daily_operations is not None and self.daily_operations < 1:
            raise ValueError(f"daily_operations: {self.daily_operations} must be at least 1")
        if not 0 <= self.reserved_for_fresh <= _MAX_RESERVED:
            raise ValueError(f"reserved_for_fresh: {self.reserved_for_fresh} must be at least 0 and at most 0.5")

    def limit_of(self, lane: Lane) -> int | None:
        """The most operations of a rolling day that the lane may use, at least one."""
        shared = self.limit_of_others
        if shared is None or lane is Lane.FRESH:
            return self.daily_operations
        return max(shared - round(self.daily_operations * _SHARE_OF_ACCOUNTS), 1)  # type: ignore[operator]

    @property
    def limit_of_others(self) -> int | None:
        """The most operations of a rolling day for all calls together that fetch no fresh day, at least one."""
        total = self.daily_operations
        return None if total is None else max(total - round(total * self.reserved_for_fresh), 1)

    def limit_for(self, operation: "Operation") -> int | None:
        """The most operations, without those for fresh days, that may have been used before this one; None: all."""
        if operation.is_for_fresh_days:
            return None
        return self.limit_of(Lane.BACKFILL) if operation.lane is Lane.BACKFILL else self.limit_of_others


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One call that is about to be made. A call about accounts names neither query nor days."""

    source: str
    kind: OperationKind = OperationKind.REPORT
    lane: Lane = Lane.FRESH
    customer_id: str | None = None
    query_name: str | None = None
    since: date | None = None
    until: date | None = None

    @property
    def is_for_fresh_days(self) -> bool:
        """True if it may use the share that is reserved. Questions about accounts and queries may not."""
        return self.kind is OperationKind.REPORT and self.lane is Lane.FRESH

    def __post_init__(self) -> None:
        for name in ("source", "customer_id", "query_name"):
            value = getattr(self, name)
            if value is not None:
                validate_name(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The call may be made now. `number` identifies it when its outcome is recorded.

    Others wait for the outcome of a probe, which shows whether a hold can be lifted.
    """

    operation: Operation
    number: int
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The call must wait: the budget is spent, the source asked all callers to wait, or it is away.

    It never costs an attempt. `error_class` is the class of the fetch that could not be made.
    """

    until: datetime
    why: str
    error_class: str = QUOTA_EXHAUSTED


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSince:
    """Runs share their calls since `at`: an operation is not granted while another run calls for some of its days.

    Nor is it after another run's call had one of the `final` outcomes, which a second call would only repeat. That
    holds while the other run lasts and for outcomes after `final_at`; older ones are known from the ledger.
    """

    at: datetime
    final: frozenset[str]
    final_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationOutcome:
    """The end of a granted call: "ok", or the class and the message of its error.

    `consumption` is the source's own measure of cost.
    """

    outcome: str
    error_message: str | None = None
    request_id: str | None = None
    rows: int | None = None
    seconds: float | None = None
    consumption: int | None = None

    def __post_init__(self) -> None:
        validate_name("error_class", self.outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowedRequest:
    """A request that asked for too many days, by its outcome, and the days of a later, narrower one that worked."""

    outcome: str
    at: datetime
    customer_id: str
    query_name: str
    days: int
    worked_days: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCall:
    """The call of another run that stands in the way: it has not ended, or it was refused."""

    engine_run_id: str
    refusal: OperationOutcome | None = None


OK: Final = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """No calls about one customer, or none at all, until a time: the source asked to wait, or it is away.

    After that time one call is granted, the probe. A probe that the source answers lifts the hold, and so does
    `state release`. `failures` counts the unanswered calls in a row for which it was placed, and `failed_customer` is
    the account of the last one. `probe_at` is when a probe was granted that has no outcome yet.
    """

    source: str
    until: datetime
    why: str
    customer_id: str | None = None
    request_id: str | None = None
    error_class: str = field(default=QUOTA_EXHAUSTED, compare=False)
    since: datetime | None = field(default=None, compare=False)
    failures: int = field(default=0, compare=False)
    failed_customer: str | None = field(default=None, compare=False)
    probe_at: datetime | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.until.tzinfo is None:
            raise ValueError("a hold needs a time zone")
        object.__setattr__(self, "until", self.until.astimezone(UTC))

    @property
    def is_outage(self) -> bool:
        """True if the source did not answer. Otherwise it asked to wait."""
        return self.error_class == SOURCE_UNAVAILABLE

    @property
    def scope(self) -> str:
        return "source" if self.customer_id is None else "customer"

    @property
    def name(self) -> str:
        return self.customer_id or self.source

    @property
    def release_command(self) -> str:
        """The command that lifts the hold before its end."""
        return f"ads-pipeline state release --{self.scope} {self.name} --reason TEXT"

    def __str__(self) -> str:
        target = f"account {self.customer_id}" if self.customer_id else f"source {self.source}"
        since = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M:%S}Z"
        until = f"until {self.until:%Y-%m-%d %H:%M:%S}Z, then one call tries it"
        return f"{target} is on hold{since}, {until}: {self.error_class}: {self.why}"

    def covers(self, customer_id: str | None) -> bool:
        return self.customer_id is None or self.customer_id == customer_id


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUsage:
    """The operations of the last 24 hours, and what is left of the limits now.

    `others` are those that fetched no fresh day: of backfills, and questions about accounts and queries.
    """

    limits: QuotaLimits
    fresh: int
    others: int
    holds: tuple[Hold, ...] = ()

    @property
    def used(self) -> int:
        return self.fresh + self.others

    @property
    def reserved(self) -> int | None:
        """The number of operations of a rolling day that only fresh days may use."""
        total, others = self.limits.daily_operations, self.limits.limit_of_others
        return None if total is None or others is None else total - others

    def left(self, lane: Lane) -> int | None:
        """The number of operations that the lane may use now; None: any number."""
        total, own = self.limits.daily_operations, self.limits.limit_of(lane)
        if total is None or own is None:
            return None
        return max(min(total - self.used, own - (self.used if lane is Lane.FRESH else self.others)), 0)
