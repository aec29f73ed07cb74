"""Lists the expected days of a query that readers do not see, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.readability import READABLE_CONDITIONS, Condition, DayCondition, Expectation
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.state.days import FirstDays
from ads_pipeline.ledger.values import DayWindow
from ads_pipeline.pipeline.day_conditions import find_days

UNREADABLE: Final = frozenset(Condition) - READABLE_CONDITIONS - {Condition.NOT_EXPECTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """The days of one query that readers do not see, by day and customer, and how many partitions were expected."""

    days: Mapping[PartitionKey, DayCondition]
    expected: int


def find_gaps(
    ledger: LedgerReader, window: DayWindow, *, first_days: FirstDays, due_after: timedelta, now: datetime
) -> Gaps:
    """Find the gaps of a query.

    A customer's days are expected from the first sealed day of the query on, or of any query when the query has none.
    A customer that the window names is expected even without a sealed run. A day that is not yet due is not expected.
    """
    starts = first_days.of_query(window.query_name)
    if window.customers is not None:
        starts = {customer: starts.get(customer, window.since) for customer in window.customers}
    days = find_days(ledger, window, UNREADABLE, first_days=starts, due_after=due_after, now=now)
    due = min(window.until, Expectation(first_day=window.since, due_after=due_after).last_due_day(now))
    expected = sum(max(0, (due - max(start, window.since)).days + 1) for start in starts.values())
    early = sum(not starts.get(key.customer_id, date.max) <= key.logical_date <= due for key in days)
    return Gaps(days=days, expected=expected + early)
