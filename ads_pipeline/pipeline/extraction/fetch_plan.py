"""The plan of a backfill: how many operations it costs, what the budget has left, and how long it takes.

Nothing is called or changed. The ranges are cut by the same code that fetches them.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.quota import QuotaUsage
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import Lane, lane_for
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.google_ads.requests.ranges import FetchRange, cut_ranges
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.pipeline.days.account_days import LOOKBACK_AGE, AccountDays
from ads_pipeline.pipeline.extraction.due_days import days_to_reread, fetched_together
from ads_pipeline.pipeline.extraction.range_widths import read_known_widths

PARTITIONS_PER_QUERY: Final = 50_000  # of the ledger, to bound memory


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPlan:
    """The fetches of a planned backfill. `skipped` counts the left-out partitions by reason.

    `daily_operations` is what the accounts and queries need each day anyway: for yesterday, for days that are read
    again, and for discovery.
    """

    partitions: int
    ranges: tuple[FetchRange, ...]
    skipped: Mapping[str, int]
    usage: QuotaUsage
    daily_operations: Mapping[Lane, int]
    today: date

    @property
    def operations(self) -> Mapping[Lane, int]:
        lanes = Counter(lane_for(each.keys[-1], self.today) for each in self.ranges)
        return {lane: lanes[lane] for lane in Lane}

    @property
    def days_to_finish(self) -> int | None:
        """In how many days the last operation is possible, 0 for now; None when the budget never has room for it."""
        return max((self._days_of(lane) for lane in Lane), key=lambda days: math.inf if days is None else days)

    def _days_of(self, lane: Lane) -> int | None:
        left, limit = self.usage.left(lane), self.usage.limits.limit_of(lane)
        if left is None or limit is None or self.operations[lane] <= left:
            return 0
        free = limit - self.daily_operations[lane]
        return math.ceil((self.operations[lane] - left) / free) if free > 0 else None


def plan_fetches(
    ledger: LedgerReader,
    days: AccountDays,
    keys: Iterable[PartitionKey],
    *,
    again: bool = False,
) -> FetchPlan:
    """The plan for these partitions. Without `again`, those that are accepted already are left out."""
    due, skipped = list[PartitionKey](), Counter[str]()
    source = days.apis.source
    parkings = ledger.retry_queue.list_parkings(source)
    for key in _without_accepted(ledger, keys, skipped, again=again):
        parking = next((each for each in parkings if each.includes(key)), None)
        obstacle = f"parked: {parking.target}" if parking else days.find_obstacle(key)
        if obstacle is None:
            due.append(key)
        else:
            skipped[obstacle] += 1
    yesterday = days.now.date() - timedelta(days=1)
    return FetchPlan(
        partitions=len(due),
        ranges=tuple(cut_ranges(due, read_known_widths(ledger, source, days.now).find)),
        skipped=skipped,
        usage=ledger.quota.usage(source, days.apis.google_ads.quota),
        daily_operations=_count_daily(ledger, days, yesterday),
        today=days.now.date(),
    )


def _without_accepted(
    ledger: LedgerReader, keys: Iterable[PartitionKey], skipped: Counter[str], *, again: bool
) -> Iterable[PartitionKey]:
    for batch in split_batches(list(keys), PARTITIONS_PER_QUERY):
        states = {} if again else ledger.states.get_many(batch)
        for key in batch:
            if not again and states[key].status is Status.SUCCESS:
                skipped["accepted already"] += 1
            else:
                yield key


def _count_daily(ledger: LedgerReader, days: AccountDays, yesterday: date) -> dict[Lane, int]:
    """The operations that one day needs: yesterday, the days that are read again with it, and discovery."""
    parkings = ledger.retry_queue.list_parkings(days.apis.source)
    accounts = [each for each in days.accounts.values() if not each.is_manager and each.gone_at is None]
    counts = Counter[Lane]()
    for account in accounts:
        for name, query in days.apis.queries.items():
            if any(parking.covers(account.customer_id, name) for parking in parkings):
                continue
            policy = query.freshness_policy.settling_after(days.find_lookback(account.customer_id, name))
            keys = [
                PartitionKey(
                    source=account.source, customer_id=account.customer_id, query_name=name, logical_date=day
                )
                for day in (yesterday, *days_to_reread(yesterday, policy))
            ]
            counts.update(lane_for(max(each), days.now.date()) for each in fetched_together(keys))
    counts[Lane.BACKFILL] += _count_discovery(days, accounts, parkings)  # it may not use the share of fresh days
    return {lane: counts[lane] for lane in Lane}


def _count_discovery(days: AccountDays, accounts: Sequence[Account], parkings: Sequence[Parking]) -> int:
    """One operation a login, one for the list of logins where none is set, and a share of the conversion windows."""
    logins = {each.login_customer_id for each in days.accounts.values() if each.login_customer_id}
    parked = {each.name for each in parkings if each.scope == "customer"}
    asked = sum(each.customer_id not in parked for each in accounts)
    listed = 0 if days.apis.google_ads.login_customer_ids or not days.accounts else 1
    return len(logins) + listed + math.ceil(asked / LOOKBACK_AGE.days)
