"""Says how current partitions are: what to show for each asset and, where it is stale, why; computed when asked.

The rules are `freshness`'s and the rows are the ledger's; here they meet the query file's policies. Whether a
partition is safe to read is another question, which only its state answers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Final

from ads_pipeline.domain.freshness import (
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
    display,
    staleness,
)
from ads_pipeline.domain.partition import PartitionKey, parse_date
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.status.status_table import StatusTable

AT_ONCE: Final = 2_000
_NO_POLICY: Final = FreshnessPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetStatus:
    """One asset's partition as it is shown, beside what was last tried."""

    status: PartitionStatus | None
    stale: Staleness | None

    @property
    def display(self) -> DisplayStatus:
        return display(self.status, self.stale)

    @property
    def last_attempt(self) -> AttemptOutcome | None:
        return self.status.last_attempt_outcome if self.status else None

    @property
    def reasons(self) -> tuple[StaleReason, ...]:
        return self.stale.reasons if self.stale else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStaleness:
    """A partition in both assets of its query: what was judged, and what readers get."""

    raw: AssetStatus
    warehouse: AssetStatus

    @property
    def telling(self) -> AssetStatus:
        """The one to show where there is room for one: the first of the two that is not simply current."""
        return next((look for look in (self.raw, self.warehouse) if look.display != _GOOD), self.warehouse)


_GOOD: Final = DisplayStatus.MATERIALIZED


class StalenessCalculator:
    """Answers for the queries of one query file, as of a moment."""

    def __init__(self, policies: Mapping[str, FreshnessPolicy], versions: Mapping[str, CodeVersion]) -> None:
        self._policies, self._versions = policies, versions

    def of(
        self, ledger: LedgerReader, keys: Iterable[PartitionKey], *, now: datetime
    ) -> dict[PartitionKey, PartitionStaleness]:
        """How current each of the partitions is, in the order asked."""
        asked = list(dict.fromkeys(keys))
        raw, loaded = ledger.statuses(RAW, asked), ledger.statuses(WAREHOUSE, asked)
        return {
            key: PartitionStaleness(
                raw=AssetStatus(status=raw[key], stale=self._stale(raw[key], None, now)),
                warehouse=AssetStatus(status=loaded[key], stale=self._stale(loaded[key], _made_at(raw[key]), now)),
            )
            for key in asked
        }

    def sweep(self, book: StatusTable, *, now: datetime) -> int:
        """Keep the answers in the rows where they differ from what is kept; how many rows that were.

        It is for readers of the table alone: whoever asks here gets the answer of the moment.
        """
        made = {each.place: _made_at(each) for each in book.every() if each.asset_key.startswith(f"{RAW}/")}
        seen = ((each, self._stale(each, made.get(_upstream(each)), now)) for each in book.every())
        changes = ((each, stale) for each, stale in seen if _kept(each) != _answer(stale))
        kept = 0
        while some := list(islice(changes, AT_ONCE)):
            kept += book.keep_staleness(some)
        return kept

    def _stale(self, status: PartitionStatus | None, upstream_at: datetime | None, now: datetime) -> Staleness | None:
        if status is None:
            return None
        asset, _, query_name = status.asset_key.partition("/")
        return staleness(
            status,
            day=parse_date(status.partition_values["date"]),
            # Reporting again is what makes the raw asset fresh; the warehouse follows what was reported.
            policy=self._policies.get(query_name, _NO_POLICY) if asset == RAW else _NO_POLICY,
            upstream_at=upstream_at,
            code=self._versions.get(status.asset_key),
            now=now,
        )


def _made_at(status: PartitionStatus | None) -> datetime | None:
    return status.last_materialization_at if status else None


def _upstream(status: PartitionStatus) -> AssetPartition:
    """What a row is made from: the warehouse's from the raw one, which is made from nothing of ours but itself."""
    return replace(status.place, asset_key=f"{RAW}/{status.asset_key.partition('/')[2]}")


def _kept(status: PartitionStatus) -> tuple[datetime, StaleReason] | None:
    if status.stale_since is None or status.stale_reason_code is None:
        return None
    return status.stale_since, status.stale_reason_code


def _answer(stale: Staleness | None) -> tuple[datetime, StaleReason] | None:
    return None if stale is None else (stale.since, stale.reason)


def versions_of(queries: Mapping[str, str]) -> dict[str, str]:
    """The version of each asset's definition, from each query's."""
    return {f"{asset}/{name}": version for name, version in queries.items() for asset in (RAW, WAREHOUSE)}
