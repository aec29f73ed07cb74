"""Finds the condition of days: what readers get of each, why, and since when. Gaps are the days they do not see.

The conditions are defined in `conditions`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final, Protocol

from ads_pipeline.domain.batches import group_by
from ads_pipeline.domain.days.conditions import CONDITIONS, UNREADABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.day_facts import Acknowledgement, DayFacts
from ads_pipeline.domain.days.day_ranges import DayRange, cut_days, expand
from ads_pipeline.domain.days.expectation import DEFAULT_DUE_AFTER, Expectation
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.days.readability import DayCondition, ParkedSource, describe_day, find_condition
from ads_pipeline.domain.days.settlement import ONE_DAY
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
    """The days of one query that readers do not see, and how many partitions were expected."""

    ranges: Sequence[DayRange]
    expected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueryDays:
    """What decides the conditions of the days of one query, beside the facts of each."""

    window: DayWindow
    expectations: Mapping[str, Expectation]
    parked: Mapping[str, ParkedSource]
    acknowledged: Mapping[tuple[str, date], Acknowledgement]
    now: datetime

    @classmethod
    def read(
        cls, ledger: LedgerReader, window: DayWindow, expectations: Mapping[str, Expectation], now: datetime
    ) -> "_QueryDays":
        """Call it after the facts were read, or in one transaction with them."""
        return cls(
            window=window,
            expectations=expectations,
            parked=find_parked(
                ledger.retry_queue.list_parkings(window.source), window.query_name, expectations.keys()
            ),
            acknowledged=ledger.days.acknowledged(window),
            now=now,
        )

    def find(self, customer: str, facts: DayFacts | None, day: date) -> Condition:
        return find_condition(
            facts,
            day,
            self.expectations[customer],
            is_parked=customer in self.parked,
            now=self.now,
            is_acknowledged=(customer, day) in self.acknowledged,
        )

    def describe(self, customer: str, facts: DayFacts | None, day: date) -> DayCondition:
        return describe_day(
            facts,
            day,
            self.expectations[customer],
            parked=self.parked.get(customer),
            now=self.now,
            acknowledged=self.acknowledged.get((customer, day)),
        )

    def find_absent(self, absent: Iterable[tuple[str, date, date]]) -> Iterator[DayRange]:
        """The conditions of days without facts, given as customer, first and last day."""
        acknowledged = self._find_changes()
        changes = {
            customer: {*each.find_changes(self.now), *acknowledged[customer]}
            for customer, each in self.expectations.items()
        }
        for customer, since, until in absent:
            describe = partial(self.describe, customer, None)
            for first, last in cut_days(since, until, changes[customer]):
                yield DayRange(
                    first=self._key(customer, first),
                    last=self._key(customer, last),
                    condition=self.find(customer, None, first),
                    describe=describe,
                )

    def find_recorded(self, recorded: Iterable[DayFacts], conditions: Collection[Condition]) -> Iterator[DayRange]:
        """The recorded days with one of the conditions."""
        for facts in recorded:
            customer, day = facts.customer_id, facts.logical_date
            if (condition := self.find(customer, facts, day)) in conditions:
                key, describe = self._key(customer, day), partial(self.describe, customer, facts)
                yield DayRange(first=key, last=key, condition=condition, describe=describe)

    def _key(self, customer: str, day: date) -> PartitionKey:
        return PartitionKey(
            source=self.window.source, customer_id=customer, query_name=self.window.query_name, logical_date=day
        )

    def _find_changes(self) -> Mapping[str, set[date]]:
        """The days of each customer with which an acknowledgement begins, and those after its end."""
        changes = defaultdict[str, set[date]](set)
        for (customer, day), acknowledgement in self.acknowledged.items():
            for start, other in ((day, day - ONE_DAY), (day + ONE_DAY, day + ONE_DAY)):
                if self.acknowledged.get((customer, other)) != acknowledgement:
                    changes[customer].add(start)
        return changes


def describe_days(
    ledger: LedgerReader, keys: Iterable[PartitionKey], rules: DayRules, *, first_days: FirstDays | None = None
) -> dict[PartitionKey, DayCondition]:
    """Describe each partition, in the order of the keys. All reads see one moment.

    `first_days` are those of all these customers, where they were read shortly before.
    """
    unique_keys = list(dict.fromkeys(keys))
    groups = group_by(unique_keys, lambda key: (key.source, key.query_name))

    def read(ledger: LedgerReader) -> dict[PartitionKey, DayCondition]:
        return {
            key: day for group in groups.values() for key, day in _describe_group(ledger, group, rules, first_days)
        }

    described = ledger.read_at_once(read)
    return {key: described[key] for key in unique_keys}


def _describe_group(
    ledger: LedgerReader, keys: Sequence[PartitionKey], rules: DayRules, known: FirstDays | None
) -> Iterator[tuple[PartitionKey, DayCondition]]:
    """Describe partitions of one source and query."""
    source, query_name = keys[0].source, keys[0].query_name
    customers, days = {key.customer_id for key in keys}, [key.logical_date for key in keys]
    window = DayWindow(source=source, query_name=query_name, since=min(days), until=max(days), customers=customers)
    facts = {(row.customer_id, row.logical_date): row for row in ledger.days.facts(window)}
    first_days = (known or ledger.days.first_days(source, customers)).of_query(query_name)
    expectations = {
        customer: rules.expect(customer, query_name, first_days.get(customer, NONE_EXPECTED))
        for customer in customers
    }
    query_days = _QueryDays.read(ledger, window, expectations, rules.now)
    for key in keys:
        customer, day = key.customer_id, key.logical_date
        yield key, query_days.describe(customer, facts.get((customer, day)), day)


def find_ranges(
    ledger: LedgerReader,
    window: DayWindow,
    conditions: Collection[Condition],
    *,
    first_days: Mapping[str, ExpectedDays],
    rules: DayRules,
) -> list[DayRange]:
    """Find the days of a query with one of the conditions, in no order. All reads see one moment.

    `first_days` has the expected days of each customer. Each recorded day is a range of its own.
    """
    expectations = {
        customer: rules.expect(customer, window.query_name, days) for customer, days in first_days.items()
    }

    def read(ledger: LedgerReader) -> list[DayRange]:
        absent: Iterable[tuple[str, date, date]] = ()
        if any(CONDITIONS[each].needs_no_run for each in conditions):
            due = max((each.last_due_day(rules.now) for each in expectations.values()), default=date.min)
            absent = ledger.days.absent(replace(window, until=min(window.until, due)), first_days)
        recorded = list(ledger.days.facts(window, conditions))
        others = {facts.customer_id for facts in recorded} - expectations.keys()
        none = {customer: rules.expect(customer, window.query_name, NONE_EXPECTED) for customer in others}
        days = _QueryDays.read(ledger, window, expectations | none, rules.now)
        found = (each for each in days.find_absent(absent) if each.condition in conditions)
        return [*found, *days.find_recorded(recorded, conditions)]

    return ledger.read_at_once(read)


def find_days(
    ledger: LedgerReader,
    window: DayWindow,
    conditions: Collection[Condition],
    *,
    first_days: Mapping[str, ExpectedDays],
    rules: DayRules,
) -> dict[PartitionKey, DayCondition]:
    """Find the days of a query with one of the conditions, one by one, by day and customer."""
    return dict(expand(find_ranges(ledger, window, conditions, first_days=first_days, rules=rules)))


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
    ranges = find_ranges(ledger, window, conditions, first_days=starts, rules=rules)
    due = {
        customer: min(window.until, rules.expect(customer, window.query_name, start).last_due_day(rules.now))
        for customer, start in starts.items()
    }

    def is_early(key: PartitionKey) -> bool:
        return key.logical_date > due.get(key.customer_id, date.min) or not starts[key.customer_id].covers(
            key.logical_date
        )

    expected = sum(each.count(window.since, due[customer]) for customer, each in starts.items())
    early = sum(is_early(each.last) for each in ranges)  # a recorded day; absent days are expected
    return Gaps(ranges=ranges, expected=expected + early)


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
