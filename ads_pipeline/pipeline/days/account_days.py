"""Computes the times of the days of an account: when each closes, when it is settled, and which are out of reach.

Days are those of the account's own zone. Everything is derived from the account, the settings and the time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from ads_pipeline.domain.days.settlement import (
    DayLimits,
    ReportState,
    closes_at,
    day_end,
    find_skip,
    find_zone,
    first_day_in_reach,
    settles_at,
)
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.settings.query_file import GoogleApis

LOOKBACK_AGE: Final = timedelta(days=7)  # discovery reads conversion windows again after a week


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountDays:
    """The accounts of a source and the limits of its days, as of one time."""

    apis: GoogleApis
    accounts: Mapping[str, Account]
    now: datetime

    @classmethod
    def read(cls, ledger: LedgerReader, apis: GoogleApis, *, now: datetime) -> "AccountDays":
        return cls(apis=apis, accounts=ledger.accounts.by_id(apis.source), now=now)

    @property
    def limits(self) -> DayLimits:
        section = self.apis.google_ads
        return DayLimits(close_lag=section.close_lag, reach_days=section.reach_days)

    def closes_at(self, customer_id: str, day: date) -> datetime:
        """The time from which on the day's report is complete enough to be fetched."""
        return closes_at(day, find_zone(self._zone_name(customer_id)), self.limits)

    def day_end(self, customer_id: str, day: date) -> datetime:
        """The end of the account's day, in UTC; at the latest when the day has ended everywhere."""
        return day_end(day, find_zone(self._zone_name(customer_id)))

    def find_lookback(self, customer_id: str, query_name: str) -> int:
        """After how many days a report of this customer and query is final."""
        query, account = self.apis.queries.get(query_name), self.accounts.get(customer_id)
        return self.apis.google_ads.find_lookback(
            customer_id,
            query_name,
            of_query=None if query is None else query.lookback_days,
            of_account=None if account is None else account.lookback_days,
        )

    def settles_at(self, key: PartitionKey) -> datetime:
        """The time from which on an extracted report of the day is settled. One extracted before is provisional."""
        return self.settlement_of(key.customer_id, key.query_name)(key.logical_date)

    def settlement_of(self, customer_id: str, query_name: str) -> Callable[[date], datetime]:
        """A function that gives for a day from when on its report is final."""
        zone, lookback = find_zone(self._zone_name(customer_id)), self.find_lookback(customer_id, query_name)
        return lambda day: settles_at(day, zone, lookback)

    def find_first_in_reach(self, customer_id: str) -> date:
        """The oldest day that the source still serves; the first day of all for an account that is not known."""
        if customer_id not in self.accounts:
            return date.min
        return first_day_in_reach(find_zone(self._zone_name(customer_id)), self.limits, self.now)

    def find_obstacle(self, key: PartitionKey) -> str | None:
        """The reason why the day cannot be fetched now, whatever the account's parking says; None when it can."""
        skip = find_skip(key, self._zone_name(key.customer_id), self.limits, self.now)
        return None if skip is None else skip.reason

    def describe_day(self, key: PartitionKey, report: ReportState | None) -> str:
        """Say whether the accepted report of the day may still change, or why the day cannot be fetched."""
        settled = self.settles_at(key)
        if report is not None:
            is_missed = report is ReportState.PROVISIONAL and self.now >= settled
            missed = "; the reread since then is missing, and is requested again" if is_missed else ""
            return f"{report}; reports extracted from {settled:%Y-%m-%d %H:%M} UTC on are final{missed}"
        return self.find_obstacle(key) or "closed"

    def _zone_name(self, customer_id: str) -> str | None:
        account = self.accounts.get(customer_id)
        return None if account is None else account.time_zone


def describe_account(account: Account) -> str:
    """The account on one line: its name, status, zone, currency, and the manager through which it is reached."""
    facts = (
        account.name,
        account.status,
        account.time_zone or "zone unknown",
        account.currency_code,
        account.login_customer_id and f"below {account.login_customer_id}",
        "test account" if account.is_test else None,
        account.gone_at and f"gone since {account.gone_at:%Y-%m-%d %H:%M} UTC",
        account.seen_at and f"seen {account.seen_at:%Y-%m-%d %H:%M} UTC",
    )
    return ", ".join(str(fact) for fact in facts if fact)
