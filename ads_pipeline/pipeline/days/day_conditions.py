"""Finds the condition of days: what readers get of each, why, and since when. Gaps are the days they do not see.

The conditions are defined in `conditions`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

from ads_pipeline.domain.days.conditions import CONDITIONS, UNREADABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.day_facts import DayFacts
from ads_pipeline.domain.days.expectation import DEFAULT_DUE_AFTER, Expectation
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.days.readability import DayCondition, ParkedSource, describe_day
from ads_pipeline.domain.fetching.quota import QUOTA_EXHAUSTED, Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.state.first_days import FirstDays
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.settings.query_file import GoogleApis
from ads_pipeline.validation.contract_registry import DeclaredVersions

NONE_EXPECTED: Final = ExpectedDays()


class QueryFileSettings(Protocol):
    """The settings of a deployment that say which query file it has."""

    @property
    def google_apis(self) -> GoogleApis: ...

    @property
    def queries_file(self) -> Path: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRules:
    """The deadlines of each query, from the query file, and the days of the accounts, at a time.

    A query that the query file lacks has the default deadline. `has_contract` takes a query and a schema version.
    """

    due_after: Mapping[str, timedelta]
    now: datetime
    accounts: AccountDays | None = None
    holds: tuple[Hold, ...] = ()
    has_contract: Callable[[str, str], bool] = lambda _query, _version: True

    @classmethod
    def read(cls, ledger: LedgerReader, queries: QueryFileSettings, *, now: datetime) -> "DayRules":
        apis = queries.google_apis
        return cls(
            due_after=apis.due_after,
            now=now,
            accounts=AccountDays.read(ledger, apis, now=now),
            holds=ledger.quota.list_holds(apis.source),
            has_contract=cache(DeclaredVersions(queries.queries_file, apis).has_contract),
        )

    def deadline(self, key: PartitionKey) -> datetime:
        """The time at which the day's report should be readable."""
        return self.expect(key.customer_id, key.query_name, NONE_EXPECTED).deadline(key.logical_date)

    def last_ended_day(self, key: PartitionKey) -> date:
        """The newest day that has ended in the zone of the partition's account."""
        expected = replace(self.expect(key.customer_id, key.query_name, NONE_EXPECTED), due_after=timedelta())
        return expected.last_due_day(self.now)

    def newest_due_day(self) -> date:
        """The newest day that is due for an account in any known zone."""
        return max(
            self.expect(customer, query, NONE_EXPECTED).last_due_day(self.now)
            for customer in self.one_of_each_zone
            for query in self.due_after
        )

    @property
    def one_of_each_zone(self) -> set[str]:
        """A customer of each time zone, and one whose zone is not known."""
        accounts = self.accounts.accounts.values() if self.accounts else ()
        return {"", *{each.time_zone: each.customer_id for each in accounts}.values()}

    def expect(self, customer_id: str, query_name: str, days: ExpectedDays) -> Expectation:
        """The expectation for a customer's days of a query."""
        expected = Expectation(
            first_day=days.first,
            single=days.single,
            due_after=self.due_after.get(query_name, DEFAULT_DUE_AFTER),
            held_until=self._find_hold(customer_id),
            has_contract=partial(self.has_contract, query_name),
        )
        if self.accounts is None or customer_id not in self.accounts.accounts:
            return expected
        return replace(
            expected,
            ends_at=partial(self.accounts.day_end, customer_id),
            first_in_reach=self.accounts.find_first_in_reach(customer_id),
            settles_at=self.accounts.settlement_of(customer_id, query_name),
        )

    def _find_hold(self, customer_id: str) -> datetime | None:
        """The end of a quota that holds the customer's fetches. An outage has no end that is known."""
        held = (each for each in self.holds if each.error_class == QUOTA_EXHAUSTED and each.covers(customer_id))
        return max((each.until for each in held if each.until > self.now), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The days of one query that readers do not see, by day and customer, and how many partitions were expected."""

    days: Mapping[PartitionKey, DayCondition]
    expected: int


def describe_days(
    ledger: LedgerReader, keys: Iterable[PartitionKey], rules: DayRules
) -> dict[PartitionKey, DayCondition]:
    """Describe each partition, in the order of the keys."""
    unique_keys = list(dict.fromkeys(keys))
    groups = defaultdict[tuple[str, str], list[PartitionKey]](list)
    for key in unique_keys:
        groups[key.source, key.query_name].append(key)
    described: dict[PartitionKey, DayCondition] = {}
    for (source, query_name), group in groups.items():
        customers = {key.customer_id for key in group}
        days = [key.logical_date for key in group]
        window = DayWindow(
            source=source, query_name=query_name, since=min(days), until=max(days), customers=customers
        )
        facts = {(row.customer_id, row.logical_date): row for row in ledger.days.facts(window)}
        wanted = {(key.customer_id, key.logical_date): key for key in group}
        first_days = ledger.days.first_days(source, customers).of_query(query_name)
        expectations = {
            customer: rules.expect(customer, query_name, first_days.get(customer, NONE_EXPECTED))
            for customer in customers
        }
        found = _describe(ledger, window, {each: facts.get(each) for each in wanted}, expectations, rules.now)
        described.update((wanted[each], day) for each, day in found.items())
    return {key: described[key] for key in unique_keys}


def find_days(
    ledger: LedgerReader,
    window: DayWindow,
    conditions: Collection[Condition],
    *,
    first_days: Mapping[str, ExpectedDays],
    rules: DayRules,
) -> dict[PartitionKey, DayCondition]:
    """Find the days of a query with one of the conditions, by day and customer.

    `first_days` has the expected days of each customer.
    """
    facts: dict[tuple[str, date], DayFacts | None] = {}
    expectations = {
        customer: rules.expect(customer, window.query_name, days) for customer, days in first_days.items()
    }
    if any(CONDITIONS[each].needs_no_run for each in conditions):
        due = max((each.last_due_day(rules.now) for each in expectations.values()), default=date.min)
        due_window = replace(window, until=min(window.until, due))
        facts.update(dict.fromkeys(ledger.days.absent(due_window, first_days)))
    # Read after the absent days, so that a day which is recorded in between has its facts.
    for row in ledger.days.facts(window, conditions):
        facts[row.customer_id, row.logical_date] = row
    others = {customer for customer, _day in facts} - expectations.keys()
    expectations |= {customer: rules.expect(customer, window.query_name, NONE_EXPECTED) for customer in others}
    described = _describe(ledger, window, facts, expectations, rules.now)
    return {
        PartitionKey(
            source=window.source, customer_id=customer, query_name=window.query_name, logical_date=day
        ): described[customer, day]
        for customer, day in sorted(described, key=lambda each: (each[1], each[0]))
        if described[customer, day].condition in conditions
    }


def _describe(
    ledger: LedgerReader,
    window: DayWindow,
    facts: Mapping[tuple[str, date], DayFacts | None],
    expectations: Mapping[str, Expectation],
    now: datetime,
) -> dict[tuple[str, date], DayCondition]:
    """Describe days of one query, each a customer and a day with what is recorded of it, in the same order."""
    acknowledged = ledger.days.acknowledged(window)
    parked = find_parked(ledger.retry_queue.list_parkings(window.source), window.query_name, expectations.keys())
    return {
        (customer, day): describe_day(
            recorded,
            day,
            expectations[customer],
            parked=parked.get(customer),
            now=now,
            acknowledged=acknowledged.get((customer, day)),
        )
        for (customer, day), recorded in facts.items()
    }


def find_gaps(
    ledger: LedgerReader,
    window: DayWindow,
    conditions: Collection[Condition] = UNREADABLE_CONDITIONS,
    *,
    first_days: FirstDays,
    rules: DayRules,
) -> Gaps:
    """Find the days of a query with one of the conditions, by default the gaps, and count the expected days.

    A customer's days are expected from the first day that `FirstDays.of_query` returns. A day that is not yet due is
    not expected.
    """
    starts = first_days.of_query(window.query_name)
    days = find_days(ledger, window, conditions, first_days=starts, rules=rules)
    due = {
        customer: min(window.until, rules.expect(customer, window.query_name, start).last_due_day(rules.now))
        for customer, start in starts.items()
    }
    expected = sum(each.count(window.since, due[customer]) for customer, each in starts.items())
    early = sum(
        key.logical_date > due.get(key.customer_id, date.min) or not starts[key.customer_id].covers(key.logical_date)
        for key in days
    )
    return Gaps(days=days, expected=expected + early)


def find_parked(parkings: Iterable[Parking], query_name: str, customers: Collection[str]) -> dict[str, ParkedSource]:
    """The parking that stops each customer's days of a query."""
    found: dict[str, ParkedSource] = {}
    for parking in parkings:
        parked = ParkedSource(
            reason=f"{parking.scope} {parking.name} is parked: {parking.why}",
            option=f"--{parking.scope} {parking.name}",
            parked_at=parking.parked_at,
        )
        found |= {customer: parked for customer in customers if parking.covers(customer, query_name)}
    return found
