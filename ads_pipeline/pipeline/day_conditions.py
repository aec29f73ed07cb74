"""Finds the condition of days: what readers get of each, why, and since when. Gaps are the days they do not see.

The conditions are defined in `domain.readability`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.readability import (
    DEFAULT_DUE_AFTER,
    READABLE_CONDITIONS,
    Condition,
    DayCondition,
    DayFacts,
    Expectation,
    ParkedSource,
    describe_day,
)
from ads_pipeline.ledger.control.retries import Parking
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.state.days import FirstDays
from ads_pipeline.ledger.values import DayWindow

ABSENT_CONDITIONS: Final = frozenset({Condition.MISSING, Condition.LATE, Condition.PARKED})
UNREADABLE: Final = frozenset(Condition) - READABLE_CONDITIONS - {Condition.NOT_EXPECTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The days of one query that readers do not see, by day and customer, and how many partitions were expected."""

    days: Mapping[PartitionKey, DayCondition]
    expected: int


def describe_days(
    ledger: LedgerReader, keys: Iterable[PartitionKey], *, due_after: Mapping[str, timedelta], now: datetime
) -> dict[PartitionKey, DayCondition]:
    """Describe each partition, in the order of the keys. `due_after` is that of the query file, by query."""
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
        first_days = ledger.days.first_days(source, customers).of_query(query_name)
        parked = find_parked(ledger.retry_queue.list_parkings(source), query_name, customers)
        for key in group:
            described[key] = describe_day(
                facts.get((key.customer_id, key.logical_date)),
                key.logical_date,
                expectation_of(key.customer_id, query_name, first_days, due_after),
                parked=parked.get(key.customer_id),
                now=now,
            )
    return {key: described[key] for key in unique_keys}


def find_days(
    ledger: LedgerReader,
    window: DayWindow,
    conditions: Collection[Condition],
    *,
    first_days: Mapping[str, date],
    due_after: timedelta,
    now: datetime,
) -> dict[PartitionKey, DayCondition]:
    """Find the days of a query with one of the conditions, by day and customer.

    `first_days` has the first expected day of each customer.
    """
    expectations = {customer: Expectation(first_day=day, due_after=due_after) for customer, day in first_days.items()}
    unknown = Expectation(first_day=date.max, due_after=due_after)
    facts: dict[tuple[str, date], DayFacts | None] = {}
    if ABSENT_CONDITIONS & set(conditions):
        due = replace(window, until=min(window.until, unknown.last_due_day(now)))
        facts.update(dict.fromkeys(ledger.days.absent(due, first_days)))
    # Read after the absent days, so that a day which is recorded in between has its facts.
    for row in ledger.days.facts(window, conditions):
        facts[row.customer_id, row.logical_date] = row
    customers = {customer for customer, _day in facts}
    parked = find_parked(ledger.retry_queue.list_parkings(window.source), window.query_name, customers)
    found: dict[PartitionKey, DayCondition] = {}
    for customer, day in sorted(facts, key=lambda each: (each[1], each[0])):
        expectation = expectations.get(customer, unknown)
        described = describe_day(facts[customer, day], day, expectation, parked=parked.get(customer), now=now)
        if described.condition in conditions:
            key = PartitionKey(
                source=window.source, customer_id=customer, query_name=window.query_name, logical_date=day
            )
            found[key] = described
    return found


def find_gaps(
    ledger: LedgerReader, window: DayWindow, *, first_days: FirstDays, due_after: timedelta, now: datetime
) -> Gaps:
    """Find the gaps of a query.

    A customer's days are expected from the first fetched day of the query on, or of any query when it has none.
    A customer that the window names is expected even without one. A day that is not yet due is not expected.
    """
    starts = first_days.of_query(window.query_name)
    if window.customers is not None:
        starts = {customer: starts.get(customer, window.since) for customer in window.customers}
    days = find_days(ledger, window, UNREADABLE, first_days=starts, due_after=due_after, now=now)
    due = min(window.until, Expectation(first_day=window.since, due_after=due_after).last_due_day(now))
    expected = sum(max(0, (due - max(start, window.since)).days + 1) for start in starts.values())
    early = sum(not starts.get(key.customer_id, date.max) <= key.logical_date <= due for key in days)
    return Gaps(days=days, expected=expected + early)


def expectation_of(
    customer: str, query_name: str, first_days: Mapping[str, date], due_after: Mapping[str, timedelta]
) -> Expectation:
    """When a customer's days of a query are expected. A query that the query file lacks has the default deadline."""
    return Expectation(
        first_day=first_days.get(customer, date.max), due_after=due_after.get(query_name, DEFAULT_DUE_AFTER)
    )


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
