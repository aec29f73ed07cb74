"""Reads which days of each customer and query are expected, from the registered runs and the failed fetches.

The rule is in `expected_days`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.expected_days import ExpectedDays, describe_single_days, find_expected, may_have_hole
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Day, Instant, accounts, finished_attempts, partition_state, runs

PAIRS_PER_QUERY: Final = 200
_FAILED_FETCHES: Final = (
    sa.select(finished_attempts).where(finished_attempts.c.error_class.is_not(None)).subquery("failed_fetches")
)
Pair = tuple[str, str]  # customer and query


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDays:
    """The first expected day of each customer and query, and the days before it that were fetched all the same.

    `discovered` are the accounts that discovery found. The product fetches every query of these.
    """

    days: Mapping[Pair, date]
    single: Mapping[Pair, tuple[date, ...]] = field(default_factory=dict)
    discovered: frozenset[str] = frozenset()

    @property
    def customers(self) -> list[str]:
        return sorted({customer for customer, _query in self.days})

    @property
    def earliest(self) -> date | None:
        """The first fetched day of all."""
        return min([*self.days.values(), *(days[0] for days in self.single.values())], default=None)

    def describe_single(self, query_names: Iterable[str], since: date) -> list[str]:
        """One line for each customer and query that has days since this one which no fetch makes expected."""
        return [
            describe_single_days(customer, name, days, since)
            for name in query_names
            for customer, days in sorted(self.of_query(name).items())
            if days.single and days.first > since
        ]

    def of_query(self, query_name: str) -> dict[str, ExpectedDays]:
        """The expected days of each customer: from the first regularly fetched day of the query on.

        An account that discovery found has every query, from the first such day of any of them. Of other customers
        nobody knows which queries their extractor delivers, so a query without a day is not expected.
        """
        first: dict[str, date] = {}
        for (customer, name), day in self.days.items():
            if name != query_name and customer in self.discovered:
                first[customer] = min(first.get(customer, day), day)
        first |= {customer: day for (customer, name), day in self.days.items() if name == query_name}
        single = {customer: days for (customer, name), days in self.single.items() if name == query_name}
        return {customer: ExpectedDays(first=day, single=single.get(customer, ())) for customer, day in first.items()}


def read_first_days(engine: database.Reading, source: str, customers: Collection[str] | None) -> FirstDays:
    """Read the first days of these customers, or of all."""
    first = _read_first_fetched(engine, source, customers)
    single: dict[Pair, tuple[date, ...]] = {}
    unclear = [pair for pair in _find_unclear(engine, source, customers) if pair in first]
    for pair, expected in _read_expected(engine, source, unclear):
        first[pair] = expected.first
        if expected.single:
            single[pair] = expected.single
    known = sa.select(accounts.c.customer_id).where(accounts.c.source == source)
    discovered = frozenset(row[0] for row in database.fetch(engine, known))
    return FirstDays(days=first, single=single, discovered=discovered)


def _read_first_fetched(engine: database.Reading, source: str, customers: Collection[str] | None) -> dict[Pair, date]:
    found: dict[Pair, date] = {}
    for table in (runs, _FAILED_FETCHES):
        key = table.c.customer_id, table.c.query_name
        statement = sa.select(*key, sa.func.min(table.c.logical_date, type_=Day())).where(table.c.source == source)
        if customers is not None:
            statement = statement.where(table.c.customer_id.in_(customers))
        for customer, query_name, day in map(tuple, database.fetch(engine, statement.group_by(*key))):
            found[customer, query_name] = min(day, found.get((customer, query_name), day))
    return found


def _find_unclear(engine: database.Reading, source: str, customers: Collection[str] | None) -> Iterator[Pair]:
    """Yield customers and queries with so few recorded days that their first one may be a single day."""
    columns = partition_state.c
    key, day = (columns.customer_id, columns.query_name), columns.logical_date
    statement = sa.select(*key, sa.func.count(), sa.func.min(day, type_=Day()), sa.func.max(day, type_=Day()))
    statement = statement.where(columns.source == source).group_by(*key)
    if customers is not None:
        statement = statement.where(columns.customer_id.in_(customers))
    for customer, query_name, recorded, first, last in map(tuple, database.fetch(engine, statement)):
        if may_have_hole(recorded, first, last):
            yield customer, query_name


def _read_expected(
    engine: database.Reading, source: str, pairs: Collection[Pair]
) -> Iterator[tuple[Pair, ExpectedDays]]:
    for batch in split_batches(sorted(pairs), PAIRS_PER_QUERY):
        fetched = defaultdict[Pair, dict[date, datetime]](dict)
        extracted_at = sa.func.coalesce(runs.c.extracted_at, runs.c.registered_at)
        for table, at in ((runs, extracted_at), (_FAILED_FETCHES, _FAILED_FETCHES.c.failed_at)):
            key = table.c.customer_id, table.c.query_name, table.c.logical_date
            statement = sa.select(*key, sa.func.min(at, type_=Instant())).group_by(*key)
            statement = statement.where(table.c.source == source, sa.tuple_(*key[:2]).in_(batch))
            for customer, query_name, day, fetched_at in map(tuple, database.fetch(engine, statement)):
                days = fetched[customer, query_name]
                days[day] = min(fetched_at, days.get(day, fetched_at))
        for pair, days in fetched.items():
            yield pair, find_expected(days)
