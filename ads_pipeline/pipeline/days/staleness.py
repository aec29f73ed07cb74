"""Computes the staleness of both assets of a partition from their status rows and the query file's policies.

The rules are in `materialization_status`. Whether a partition is safe to read
depends on its state, not on its staleness.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Self

from ads_pipeline.domain.days.materialization_status import (
    RAW,
    WAREHOUSE,
    AssetPartition,
    AttemptOutcome,
    CodeVersion,
    DisplayStatus,
    FreshnessPolicy,
    PartitionStatus,
    Staleness,
    StaleReason,
    display_status,
    find_staleness,
)
from ads_pipeline.domain.partition import PartitionKey, parse_date
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.settings.query_file import GoogleApis

ROWS_PER_UPDATE: Final = 2_000
_UNRECORDED: Final = datetime.min.replace(tzinfo=UTC)  # the last materialization is later
_NO_POLICY: Final = FreshnessPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetStatus:
    """The status row of one asset's partition and its staleness."""

    status: PartitionStatus | None
    stale: Staleness | None

    @property
    def display(self) -> DisplayStatus:
        return display_status(self.status, self.stale)

    @property
    def last_attempt(self) -> AttemptOutcome | None:
        return self.status.last_attempt_outcome if self.status else None

    @property
    def reasons(self) -> tuple[StaleReason, ...]:
        return self.stale.reasons if self.stale else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStaleness:
    """The status of a partition in both assets of its query."""

    raw: AssetStatus
    warehouse: AssetStatus

    @property
    def summary(self) -> AssetStatus:
        """The status to show alone: the raw asset's unless it is plainly materialized, else the warehouse's."""
        return self.warehouse if self.raw.display is DisplayStatus.MATERIALIZED else self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStatuses:
    """The number of rows that were written, and how many of them had changed since the last time."""

    rows: int
    changed: int


class StalenessCalculator:
    """Computes staleness by the policies and the code versions of one query file.

    With `days`, the days of known accounts end in their own zones, and are read again until they are settled.
    """

    def __init__(
        self,
        policies: Mapping[str, FreshnessPolicy],
        versions: Mapping[str, CodeVersion],
        *,
        days: AccountDays | None = None,
    ) -> None:
        self._policies, self._versions, self._days = policies, versions, days

    @classmethod
    def of_ledger(cls, ledger: LedgerReader, apis: GoogleApis, *, now: datetime) -> Self:
        """The calculator of a deployment, with the accounts that discovery has found.

        The code versions are those of the query file. After a deployment, one that no run has recorded yet counts
        from the last materialization on.
        """
        policies = {name: query.freshness_policy for name, query in apis.queries.items()}
        days = AccountDays.read(ledger, apis, now=now)
        present = asset_code_versions({name: query.schema_version for name, query in apis.queries.items()})
        versions = ledger.statuses.get_code_versions(apis.source)
        for asset_key, version in present.items():
            if asset_key in versions and versions[asset_key].version != version:
                versions[asset_key] = CodeVersion(version=version, since=_UNRECORDED)
        return cls(policies, versions, days=days)

    def calculate(
        self, table: StatusTable, keys: Iterable[PartitionKey], *, now: datetime
    ) -> dict[PartitionKey, PartitionStaleness]:
        """Compute the staleness of each partition, in the order of the keys."""
        distinct = list(dict.fromkeys(keys))
        raw = table.get_many(RAW, distinct)
        warehouse = table.get_many(WAREHOUSE, distinct)
        return {
            key: PartitionStaleness(
                raw=self._describe(raw[key], None, now),
                warehouse=self._describe(warehouse[key], _materialized_at(raw[key]), now),
            )
            for key in distinct
        }

    def store_changes(self, table: StatusTable, *, now: datetime) -> int:
        """Update the stored staleness of rows where it has changed; return the number of updated rows.

        Stored values serve readers of the table. `calculate` does not use them.
        """
        materialized_at = {
            row.asset_partition: _materialized_at(row)
            for row in table.read_all()
            if row.asset_key.startswith(f"{RAW}/")
        }
        computed = ((row, self._find(row, materialized_at.get(_upstream(row)), now)) for row in table.read_all())
        changes = ((row, stale) for row, stale in computed if _stored(row) != (stale and (stale.since, stale.reason)))
        updated = 0
        while batch := list(islice(changes, ROWS_PER_UPDATE)):
            updated += table.store_staleness(batch)
        return updated

    def publish(self, table: StatusTable, location: str, *, now: datetime) -> PublishedStatuses:
        """Update the stored staleness, and write all rows to the Parquet file at the location.

        Raises StatusFileUnavailable when the file cannot be written; the previous one stays.
        """
        from ads_pipeline.ledger.status.status_file import write_status_file  # noqa: PLC0415 - it loads PyArrow

        changed = self.store_changes(table, now=now)
        return PublishedStatuses(rows=write_status_file(table.read_all(), location), changed=changed)

    def _describe(self, status: PartitionStatus | None, upstream_at: datetime | None, now: datetime) -> AssetStatus:
        return AssetStatus(status=status, stale=self._find(status, upstream_at, now))

    def _find(self, status: PartitionStatus | None, upstream_at: datetime | None, now: datetime) -> Staleness | None:
        if status is None:
            return None
        asset, _, query_name = status.asset_key.partition("/")
        customer, day = status.partition_values["customer"], parse_date(status.partition_values["date"])
        # Freshness policies apply to the raw asset; the warehouse is stale when its raw asset is newer.
        policy, day_end = self._policies.get(query_name, _NO_POLICY) if asset == RAW else _NO_POLICY, None
        if asset == RAW and self._days is not None and customer in self._days.accounts:
            policy = policy.settling_after(self._days.find_lookback(customer, query_name))
            day_end = self._days.day_end(customer, day)
        return find_staleness(
            status,
            day=day,
            policy=policy,
            day_end=day_end,
            upstream_at=upstream_at,
            code=self._versions.get(status.asset_key),
            now=now,
        )


def calculate_staleness(
    ledger: LedgerReader, apis: GoogleApis, keys: Iterable[PartitionKey], *, now: datetime
) -> dict[PartitionKey, PartitionStaleness]:
    """Compute the staleness of each partition of a deployment, in the order of the keys."""
    return StalenessCalculator.of_ledger(ledger, apis, now=now).calculate(ledger.statuses, keys, now=now)


def publish_statuses(ledger: LedgerReader, apis: GoogleApis, location: str, *, now: datetime) -> PublishedStatuses:
    """Update the stored staleness of a deployment, and write `partition_status.parquet`, as `publish` does."""
    return StalenessCalculator.of_ledger(ledger, apis, now=now).publish(ledger.statuses, location, now=now)


def _materialized_at(status: PartitionStatus | None) -> datetime | None:
    return status.last_materialization_at if status else None


def _upstream(status: PartitionStatus) -> AssetPartition:
    """The raw asset's partition; of a raw row this is the row itself."""
    return status.asset_partition._replace(asset_key=f"{RAW}/{status.asset_key.partition('/')[2]}")


def _stored(status: PartitionStatus) -> tuple[datetime, StaleReason] | None:
    if status.stale_since is None or status.stale_reason_code is None:
        return None
    return status.stale_since, status.stale_reason_code


def asset_code_versions(queries: Mapping[str, str]) -> dict[str, str]:
    """Map each asset key to the version of its query."""
    return {f"{asset}/{name}": version for name, version in queries.items() for asset in (RAW, WAREHOUSE)}
