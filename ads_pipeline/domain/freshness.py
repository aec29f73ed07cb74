"""Folds finished attempts into ADR-026's rows, and says from a row what is stale and what to show.

Plain values in, plain values out; nothing here reads a clock. Who mints versions under the row's lock and stores the
rows is `ledger`'s business; whether a partition is safe to read is `transitions`', and nothing here changes that.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from itertools import pairwise
from typing import Any

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.errors import BadName

RAW, WAREHOUSE = "raw", "warehouse"  # the two assets of a query


class AttemptOutcome(StrEnum):
    """How an attempt ended. One that was skipped is no attempt, so it has no word here."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class StaleReason(StrEnum):
    """Why a partition is stale. Where several hold, the one that stands first here decides."""

    FRESHNESS_POLICY = "FRESHNESS_POLICY"
    UPSTREAM_CHANGED = "UPSTREAM_CHANGED"
    CODE_CHANGED = "CODE_CHANGED"


class DisplayStatus(StrEnum):
    """What a person is shown of a partition. It tells how current the data are, not whether they may be read."""

    NEVER_MATERIALIZED = "NeverMaterialized"
    MATERIALIZED = "Materialized"
    STALE = "Stale"
    LAST_ATTEMPT_FAILED = "MaterializedButLastAttemptFailed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Whose rows these are, where several installations or sources keep theirs together."""

    tenant_id: str = "default"
    workspace_id: str | None = None

    def workspace_of(self, source: str) -> str:
        """The workspace, or the source where none is named: queries of two sources may have the same name."""
        return self.workspace_id or source


_HERE = Tenancy()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class AssetPartition:
    """What one row is about."""

    tenant_id: str
    workspace_id: str
    asset_key: str
    partition_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedAttempt:
    """One finished attempt at one asset partition, as the store stamped it.

    A code version is given exactly when something was materialized: a success may have found nothing to make.
    """

    run_id: str
    at: datetime
    outcome: AttemptOutcome
    version: str
    code_version: str | None = None

    def __post_init__(self) -> None:
        if self.at.tzinfo is None:
            raise ValueError(f"run {self.run_id}: an attempt finishes at an instant; this time has no zone")
        if self.code_version is not None and self.outcome is not AttemptOutcome.SUCCEEDED:
            raise ValueError(f"run {self.run_id}: {self.outcome} materializes nothing, so it has no code version")
        version_number(self.version)
        # Two times of one zone are compared by their wall clocks, which repeat an hour each autumn.
        object.__setattr__(self, "at", self.at.astimezone(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """ADR-026's columns in its order: what was last made, what was last tried, and what a sweep found stale."""

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
    def place(self) -> AssetPartition:
        return AssetPartition(
            tenant_id=self.tenant_id,
            workspace_id=self.workspace_id,
            asset_key=self.asset_key,
            partition_key=self.partition_key,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessPolicy:
    """How many days after a day has ended it should be reported again: Google restates days for weeks.

    A day ends at midnight UTC, the same moment for every account; the days that policies count in do not need better.
    """

    reread_after_days: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        days = self.reread_after_days
        whole = all(type(each) is int for each in days)
        if not whole or any(earlier >= later for earlier, later in pairwise((0, *days))):
            raise ValueError(f"reread_after_days: {days} is refused: whole days, each more than the one before")

    def deadline(self, day: date, materialized_at: datetime) -> datetime | None:
        """The first of its moments that what was materialized then does not satisfy; None when all are past."""
        start = datetime.combine(day, time.min, UTC)
        for days in self.reread_after_days:
            if days >= (date.max - day).days:  # the calendar ends before the deadline
                return None
            moment = start + timedelta(days=1 + days)
            if moment > materialized_at:
                return moment
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The version of the definitions, and when it was first seen: a stored time, so that it stands still."""

    version: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Every reason that holds, in the order that decides; `reason` is the first, and `since` is when it began."""

    since: datetime
    reason: StaleReason
    reasons: tuple[StaleReason, ...]


def asset_partition(asset: str, key: PartitionKey, space: Tenancy = _HERE) -> AssetPartition:
    """What the row of a partition in one of its query's assets is about, in Dagster's spelling."""
    return AssetPartition(
        tenant_id=space.tenant_id,
        workspace_id=space.workspace_of(key.source),
        asset_key=f"{asset}/{key.query_name}",
        partition_key=key.dagster_key,
    )


def partition_values(key: PartitionKey) -> dict[str, str]:
    """The key's two dimensions by Dagster's names for them."""
    return {"customer": key.customer_id, "date": key.logical_date.isoformat()}


def fold(
    before: PartitionStatus | None, finish: FinishedAttempt, *, place: AssetPartition, values: Mapping[str, str]
) -> PartitionStatus:
    """The row after a finish, whichever finishes were heard before it and how often.

    What was made and what was tried have a guard each. One guard for both would lose a success that is heard after a
    newer failure: the row would say for ever that the data are older than they are.

    A guard is what the row shows of its group, the time first, so no column needs to be hidden. The store stamps the
    times of a row in the order of its versions, so the newest finish wins; the rest of a guard only makes the order
    total, so that whatever finishes arrive leave one row, in whatever order they do.
    """
    row = before or _blank(place, values, finish.version)
    if row.place != place:
        raise ValueError(f"a finish at {place} does not belong to the row of {row.place}")
    changes: dict[str, Any] = {"row_version": max(row.row_version, finish.version)}
    tried = (row.last_attempt_at, row.last_attempt_run_id, row.last_attempt_outcome)
    if tried[0] is None or (finish.at, finish.run_id, finish.outcome) > tried:
        changes |= {
            "last_attempt_at": finish.at,
            "last_attempt_run_id": finish.run_id,
            "last_attempt_outcome": finish.outcome,
        }
    if finish.code_version is not None:
        made = (row.last_materialization_at, row.last_materialization_run_id, row.last_materialization_code_version)
        if made[0] is None or (finish.at, finish.run_id, finish.code_version) > made:
            changes |= {
                "last_materialization_at": finish.at,
                "last_materialization_run_id": finish.run_id,
                "last_materialization_code_version": finish.code_version,
                "stale_since": None,  # what a sweep wrote was about the older data
                "stale_reason_code": None,
            }
    return replace(row, **changes)


def staleness(
    status: PartitionStatus | None,
    *,
    day: date,
    policy: FreshnessPolicy,
    upstream_at: datetime | None,
    code: CodeVersion | None,
    now: datetime,
) -> Staleness | None:
    """Why and since when a partition is stale; None when it is current, or was never made and so cannot age.

    The row's own two columns have no say: they are where a sweep keeps an earlier answer.
    """
    made_at = status.last_materialization_at if status else None
    if status is None or made_at is None:
        return None
    since: dict[StaleReason, datetime] = {}
    deadline = policy.deadline(day, made_at)
    if deadline is not None and now > deadline:
        since[StaleReason.FRESHNESS_POLICY] = deadline
    if upstream_at is not None and upstream_at > made_at:
        since[StaleReason.UPSTREAM_CHANGED] = upstream_at
    if code is not None and code.version != status.last_materialization_code_version:
        since[StaleReason.CODE_CHANGED] = max(code.since, made_at)
    if not since:
        return None
    reason = next(iter(since))
    return Staleness(since=since[reason], reason=reason, reasons=tuple(since))


def display(status: PartitionStatus | None, stale: Staleness | None) -> DisplayStatus:
    """The one word to show. A last attempt that failed since the data were made hides that they are stale."""
    if status is None or status.last_materialization_at is None:
        return DisplayStatus.NEVER_MATERIALIZED
    tried_since = status.last_attempt_at is not None and status.last_attempt_at > status.last_materialization_at
    if tried_since and status.last_attempt_outcome is AttemptOutcome.FAILED:
        return DisplayStatus.LAST_ATTEMPT_FAILED
    return DisplayStatus.STALE if stale else DisplayStatus.MATERIALIZED


# A version is a ULID: 48 bits of milliseconds, then 80 random ones, as 26 characters that sort as their number does.
_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = tuple(one + other for one in _DIGITS for other in _DIGITS)  # thousands are minted in a transaction
_SHIFTS = tuple(range(120, -1, -10))
_TO_PYTHONS_DIGITS = str.maketrans(_DIGITS, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_VERSION = re.compile(rf"[0-7][{_DIGITS}]{{25}}")
_VERSION_RULE = f"a ULID: 26 of {_DIGITS}, the first at most 7"
_RANDOM_BITS, _ALL_BITS = 80, 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def mint(now: datetime, *, after: str | None, randomness: int) -> str:
    """The version of a write that is made now, greater than the version before it whatever the clock says.

    Only who holds the row's lock knows the version before; between rows and machines the order is the clocks'.
    """
    if not 0 <= randomness < 1 << _RANDOM_BITS:
        raise ValueError(f"a version has {_RANDOM_BITS} random bits; {randomness:#x} does not fit")
    number = max((now - _EPOCH) // _MILLISECOND, 0) << _RANDOM_BITS | randomness
    if after is not None:
        number = max(number, version_number(after) + 1)
    if number >> _ALL_BITS:
        raise OverflowError(f"row_version: {after} is the last ULID there is; no write can come after it")
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])


def version_number(text: str) -> int:
    """The number that a version spells; any other spelling of it is refused."""
    if _VERSION.fullmatch(text) is None:
        raise BadName("row_version", text, _VERSION_RULE)
    return int(text.translate(_TO_PYTHONS_DIGITS), 32)


def _blank(place: AssetPartition, values: Mapping[str, str], version: str) -> PartitionStatus:
    return PartitionStatus(
        tenant_id=place.tenant_id,
        workspace_id=place.workspace_id,
        asset_key=place.asset_key,
        partition_key=place.partition_key,
        partition_values=values,
        row_version=version,
    )
