"""Materialization and attempt status after ADR-026: folding attempts into rows, staleness, the status to display.

Pure functions; nothing here reads a clock. `ledger.status` locks and stores the rows. Whether a partition is safe to
read is decided in `transitions`, independently of this module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey

RAW, WAREHOUSE = "raw", "warehouse"  # the two assets of a query


class AttemptOutcome(StrEnum):
    """The end of an attempt. A skipped step is not an attempt."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StaleReason(StrEnum):
    """The reasons why a partition is stale. When several hold, the first in this order is shown."""

    FRESHNESS_POLICY = "FRESHNESS_POLICY"
    UPSTREAM_CHANGED = "UPSTREAM_CHANGED"
    CODE_CHANGED = "CODE_CHANGED"


class DisplayStatus(StrEnum):
    """The status to display for an asset partition: how current the data are, not whether they are safe to read."""

    NEVER_MATERIALIZED = "NeverMaterialized"
    MATERIALIZED = "Materialized"
    STALE = "Stale"
    LAST_ATTEMPT_FAILED = "MaterializedButLastAttemptFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """The tenant and workspace of status rows, for databases that several installations share."""

    tenant_id: str = "default"
    workspace_id: str | None = None

    def workspace_for(self, source: str) -> str:
        """The workspace, by default the source: two sources may have queries of the same name."""
        return self.workspace_id or source


DEFAULT_TENANCY: Final = Tenancy()


class AssetPartition(NamedTuple):
    """The key of one status row. A tuple, because thousands are made and compared per transaction."""

    tenant_id: str
    workspace_id: str
    asset_key: str
    partition_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """One finished attempt at one asset partition, with the time and version that the store gave it.

    `code_version` is set exactly when the attempt materialized data; a success may have had nothing to do.
    """

    run_id: str
    at: datetime
    outcome: AttemptOutcome
    version: str
    code_version: str | None = None

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError(f"run {self.run_id}: the time of an attempt needs a time zone")
        if self.code_version is not None and self.outcome is not AttemptOutcome.SUCCEEDED:
            raise ValueError(f"run {self.run_id}: an attempt that ended as {self.outcome} has no code version")
        row_version_to_int(self.version)
        # Python compares two times of one zone by wall clock, and the wall clock repeats an hour each autumn.
        object.__setattr__(self, "at", self.at.astimezone(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One row of `partition_status`, in ADR-026's column order."""

    tenant_id: str
    workspace_id: str
    asset_key: str
    partition_key: str
    last_materialization_run_id: str | None = None
    last_materialization_at: datetime | None = None
    last_materialization_code_version: str | None = None
    last_attempt_run_id: str | None = None
    last_attempt_at: datetime | None = None
    last_attempt_outcome: AttemptOutcome | None = None
    stale_since: datetime | None = None
    stale_reason_code: StaleReason | None = None
    partition_values: Mapping[str, str]
    row_version: str

    @property
    def asset_partition(self) -> AssetPartition:
        return AssetPartition(self.tenant_id, self.workspace_id, self.asset_key, self.partition_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessPolicy:
    """After how many days a day's report should be fetched again, because Google restates reports for weeks.

    They count from the end of the day: that of the account's own zone where it is known, else midnight UTC.
    """

    reread_after_days: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        days = self.reread_after_days
        all_int = all(type(number) is int for number in days)
        if not all_int or any(earlier >= later for earlier, later in pairwise((0, *days))):
            raise ValueError(f"reread_after_days: {days} must be whole days in ascending order, each at least 1")

    def settling_after(self, lookback_days: int) -> "FreshnessPolicy":
        """The policy with a last reread once a report is settled, unless it has one that late already.

        A report is settled a day after the conversion window. A reread on the window's last day would repeat it.
        """
        days, last = self.reread_after_days, lookback_days + 1
        if days and days[-1] >= last:
            return self
        return FreshnessPolicy(reread_after_days=(*(each for each in days if each < lookback_days), last))

    def deadline(self, day: date, materialized_at: datetime, *, day_end: datetime | None = None) -> datetime | None:
        """The first deadline after the materialization; None when there is none left."""
        for days in self.reread_after_days:
            if days >= (date.max - day).days:  # the deadline would exceed date.max
                return None
            deadline = (day_end or datetime.combine(day + timedelta(days=1), time.min, UTC)) + timedelta(days=days)
            if deadline > materialized_at:
                return deadline
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The version of an asset's definition, and when the ledger first saw it."""

    version: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """The reasons why a partition is stale. `reason` is the first of `reasons`; `since` is when it began."""

    since: datetime
    reason: StaleReason
    reasons: tuple[StaleReason, ...]


def make_asset_partition(asset: str, key: PartitionKey, tenancy: Tenancy = DEFAULT_TENANCY) -> AssetPartition:
    """The status key of a partition in the `raw` or `warehouse` asset of its query."""
    return AssetPartition(
        tenant_id=tenancy.tenant_id,
        workspace_id=tenancy.workspace_for(key.source),
        asset_key=f"{asset}/{key.query_name}",
        partition_key=key.dagster_key,
    )


def partition_values(key: PartitionKey) -> dict[str, str]:
    """The key's values by Dagster dimension name."""
    return {"customer": key.customer_id, "date": key.logical_date.isoformat()}


def fold_attempt(
    before: PartitionStatus | None,
    attempt: FinishedAttempt,
    *,
    asset_partition: AssetPartition,
    values: Mapping[str, str],
) -> PartitionStatus:
    """The row after this attempt. The result does not depend on the order of attempts or on repetitions.

    The columns of the last materialization and of the last attempt are compared and replaced separately. With one
    comparison for both, a success that arrives after a newer failure would be lost.

    Each group is compared by its own columns, time first. The other columns only break ties, which makes the order
    total.
    """
    attempted: tuple[Any, ...] = (None, None, None)
    materialized: tuple[Any, ...] = (None, None, None)
    stale: tuple[Any, ...] = (None, None)
    if before is not None:
        if before.asset_partition != asset_partition:
            raise ValueError(f"an attempt at {asset_partition} cannot change the row of {before.asset_partition}")
        attempted = before.last_attempt_at, before.last_attempt_run_id, before.last_attempt_outcome
        run_id, version = before.last_materialization_run_id, before.last_materialization_code_version
        materialized = before.last_materialization_at, run_id, version
        stale = before.stale_since, before.stale_reason_code
    this_attempt = attempt.at, attempt.run_id, attempt.outcome
    if attempted[0] is None or this_attempt > attempted:
        attempted = this_attempt
    this_materialization = attempt.at, attempt.run_id, attempt.code_version
    if attempt.code_version is not None and (materialized[0] is None or this_materialization > materialized):
        materialized, stale = this_materialization, (None, None)  # the sweep looked at the older data
    return PartitionStatus(
        tenant_id=asset_partition.tenant_id,
        workspace_id=asset_partition.workspace_id,
        asset_key=asset_partition.asset_key,
        partition_key=asset_partition.partition_key,
        last_materialization_run_id=materialized[1],
        last_materialization_at=materialized[0],
        last_materialization_code_version=materialized[2],
        last_attempt_run_id=attempted[1],
        last_attempt_at=attempted[0],
        last_attempt_outcome=attempted[2],
        stale_since=stale[0],
        stale_reason_code=stale[1],
        partition_values=before.partition_values if before else values,
        row_version=max(before.row_version, attempt.version) if before else attempt.version,
    )


def find_staleness(
    status: PartitionStatus | None,
    *,
    day: date,
    policy: FreshnessPolicy,
    day_end: datetime | None = None,
    upstream_at: datetime | None,
    code: CodeVersion | None,
    now: datetime,
) -> Staleness | None:
    """Find why and since when a partition is stale; None when it is current or was never materialized.

    The row's `stale_since` and `stale_reason_code` are ignored: they hold the result of an earlier sweep.
    """
    materialized_at = status.last_materialization_at if status else None
    if status is None or materialized_at is None:
        return None
    since: dict[StaleReason, datetime] = {}
    deadline = policy.deadline(day, materialized_at, day_end=day_end)
    if deadline is not None and now > deadline:
        since[StaleReason.FRESHNESS_POLICY] = deadline
    if upstream_at is not None and upstream_at > materialized_at:
        since[StaleReason.UPSTREAM_CHANGED] = upstream_at
    if code is not None and code.version != status.last_materialization_code_version:
        since[StaleReason.CODE_CHANGED] = max(code.since, materialized_at)
    if not since:
        return None
    reason = next(iter(since))
    return Staleness(since=since[reason], reason=reason, reasons=tuple(since))


def display_status(status: PartitionStatus | None, stale: Staleness | None) -> DisplayStatus:
    """The status to display. A failed attempt after the last materialization takes precedence over staleness."""
    if status is None or status.last_materialization_at is None:
        return DisplayStatus.NEVER_MATERIALIZED
    attempted_since = status.last_attempt_at is not None and status.last_attempt_at > status.last_materialization_at
    if attempted_since and status.last_attempt_outcome is AttemptOutcome.FAILED:
        return DisplayStatus.LAST_ATTEMPT_FAILED
    return DisplayStatus.STALE if stale else DisplayStatus.MATERIALIZED


# A row version is a ULID: 48 bits of milliseconds and 80 random bits, as 26 characters that sort in numeric order.
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(one + other for one in _DIGITS for other in _DIGITS)  # for speed: thousands per transaction
_LENGTH = 26
_TO_PYTHON_DIGITS = str.maketrans(_DIGITS, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_VERSION = re.compile(rf"[0-7][{_DIGITS}]{{25}}")
_VERSION_RULE = f"a ULID: 26 of {_DIGITS}, the first at most 7"
_RANDOM_BITS, _ALL_BITS = 80, 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def new_row_version(now: datetime, *, after: str | None, randomness: int) -> str:
    """A version for a write made now. It is greater than `after`, even when the clock went back.

    The caller must hold the row's lock to know `after`. Versions of different rows are ordered only by the clock.
    """
    if not 0 <= randomness < 1 << _RANDOM_BITS:
        raise ValueError(f"randomness {randomness:#x} does not fit {_RANDOM_BITS} bits")
    number = max((now - _EPOCH) // _MILLISECOND, 0) << _RANDOM_BITS | randomness
    if after is not None:
        number = max(number, row_version_to_int(after) + 1)
    if number >> _ALL_BITS:
        raise OverflowError(f"row_version: no ULID is greater than {after}")
    return encode_digits(number, _LENGTH)


def encode_digits(number: int, length: int) -> str:
    """The number as an even number of digits of a row version."""
    return "".join([_PAIRS[number >> shift & 1023] for shift in range(5 * length - 10, -1, -10)])


def row_version_to_int(text: str) -> int:
    """The number that a version encodes; BadName unless it is the canonical ULID text."""
    if _VERSION.fullmatch(text) is None:
        raise BadName("row_version", text, _VERSION_RULE)
    return int(text.translate(_TO_PYTHON_DIGITS), 32)
