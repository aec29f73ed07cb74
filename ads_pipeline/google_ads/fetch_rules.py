"""`FetchRules`: whether a partition is fetched now, and through which login.

`google_ads_source` fetches what they allow. The limits of an account's days are in `domain.days.settlement`.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ads_pipeline.domain.days.settlement import DayLimits, find_skip
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import SkippedFetch
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.google_ads.faults.fault_reading import Fault
from ads_pipeline.google_ads.requests.ranges import WIDEST, KnownWidths
from ads_pipeline.settings.query_file import Query


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRules:
    """The facts that decide whether and how a partition is fetched: accounts, parkings, queries and limits of days.

    `find_parking` returns why a partition's account, query or source is parked, or None. `find_refusal` returns the
    fault for which it was parked at a time or later. `lookback_days` returns after how many days a report of this
    account and query is final. `find_extracted` returns the partitions whose newest registered run was extracted at
    a time or later.
    """

    queries: Mapping[str, Query]
    accounts: Mapping[str, Account]
    find_parking: Callable[[PartitionKey], str | None]
    find_refusal: Callable[[PartitionKey, datetime], Fault | None]
    lookback_days: Callable[[str, str], int]
    find_extracted: Callable[[Collection[PartitionKey], datetime], Collection[PartitionKey]]
    default_login: str | None
    known_widths: KnownWidths = WIDEST
    logins: Mapping[str, str] = field(default_factory=dict)
    limits: DayLimits = field(default_factory=DayLimits)

    def find_account(self, key: PartitionKey) -> Account:
        """The account as discovery found it, or one of which nothing is known."""
        known = self.accounts.get(key.customer_id)
        return known or Account(source=key.source, customer_id=key.customer_id, status="UNKNOWN")

    def find_login(self, key: PartitionKey) -> str | None:
        """The login id: configured for the customer, or found by discovery, or the configured default."""
        found = self.find_account(key).login_customer_id
        return self.logins.get(key.customer_id) or found or self.default_login

    def find_skip(self, key: PartitionKey, now: datetime) -> SkippedFetch | None:
        """The reason why the partition is not fetched now; None when it is."""
        if parking := self.find_parking(key):
            return SkippedFetch(key=key, reason=parking)
        account = self.find_account(key)
        if account.is_manager:
            return SkippedFetch(key=key, reason="a manager account has no metrics; delete its customer partition")
        return find_skip(key, account.time_zone, self.limits, now)
