"""Finds the expected days of a query of which nothing is recorded."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from typing import Final, NamedTuple

import sqlalchemy as sa

from ads_pipeline.domain.partition import days_between
from ads_pipeline.ledger import database
from ads_pipeline.ledger.state.day_windows import DayWindow
from ads_pipeline.ledger.tables import Day

CUSTOMERS_PER_QUERY: Final = 1_000
# Grouped by an expression, because SQLite would read the partitions of all queries to have the customers in order.
_SUMMARIES: Final = """
SELECT customer_id || '' AS customer, count(*) AS days, min(logical_date) AS first_day FROM partition_state
WHERE source = :source AND query_name = :query_name AND logical_date BETWEEN :since AND :until AND {customers}
GROUP BY customer_id || ''
"""
_DAYS: Final = """
SELECT customer_id, logical_date FROM partition_state
WHERE source = :source AND query_name = :query_name AND logical_date BETWEEN :since AND :until AND {customers}
"""


class _Recorded(NamedTuple):
    """How many days of a customer are recorded, and the first of them."""

    days: int
    first_day: date


def find_absent_days(
    engine: sa.Engine, window: DayWindow, first_days: Mapping[str, date]
) -> Iterator[tuple[str, date]]:
    """Yield each customer and day of the window without a state row, from the customer's first day on.

    The days are counted first. Only those of customers with too few are read.
    """
    rows = database.transact(engine, lambda c: c.execute(window.select(_SUMMARIES, first_day=Day)).all())
    summaries = {customer: _Recorded(days, first_day) for customer, days, first_day in rows}
    starts = {
        customer: max(first_day, window.since)
        for customer, first_day in first_days.items()
        if first_day <= window.until
    }
    incomplete = [
        customer
        for customer, start in starts.items()
        if not _is_complete(summaries.get(customer), start, window.until)
    ]
    for position in range(0, len(incomplete), CUSTOMERS_PER_QUERY):
        customers = incomplete[position : position + CUSTOMERS_PER_QUERY]
        recorded = _read_days(engine, replace(window, customers=customers))
        for customer in customers:
            for day in days_between(starts[customer], window.until):
                if day not in recorded[customer]:
                    yield customer, day


def _is_complete(recorded: _Recorded | None, start: date, until: date) -> bool:
    if recorded is None or recorded.first_day < start:  # days before the first expected one are recorded too
        return False
    return recorded.days == (until - start).days + 1


def _read_days(engine: sa.Engine, window: DayWindow) -> Mapping[str, set[date]]:
    days = defaultdict[str, set[date]](set)
    rows = database.transact(engine, lambda c: c.execute(window.select(_DAYS, logical_date=Day)).all())
    for customer, day in rows:
        days[customer].add(day)
    return days
