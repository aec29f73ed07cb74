"""Finds the days whose condition changes because time passes: a deadline is over, or a day is no longer fresh."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from typing import Final

from ads_pipeline.domain.days.conditions import BLOCKED_CONDITIONS
from ads_pipeline.domain.days.expectation import Expectation
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.fetching.retry_policy import FRESH_DAYS
from ads_pipeline.domain.partition import PartitionKey, days_between
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.days.day_conditions import DayRules, find_days

ALWAYS: Final = ExpectedDays(first=date.min)


def find_due(
    ledger: LedgerReader, source: str, query_names: Sequence[str], since: datetime, rules: DayRules
) -> Iterator[PartitionKey]:
    """Yield the partitions whose deadline has passed, or that are no longer fresh, since the moment.

    Mostly there are none in any time zone. Then the partitions are not read.
    """
    due = [
        name
        for name in query_names
        if any(_find_due_days(since, rules.now, rules.expect(each, name, ALWAYS)) for each in rules.one_of_each_zone)
    ]
    if not due:
        return
    first_days = ledger.days.first_days(source)
    for name in due:
        for customer, expected in first_days.of_query(name).items():
            for day in _find_due_days(since, rules.now, rules.expect(customer, name, expected)):
                yield PartitionKey(source=source, customer_id=customer, query_name=name, logical_date=day)


def find_blocked(
    ledger: LedgerReader, source: str, query_names: Sequence[str], oldest: datetime, rules: DayRules
) -> Iterator[PartitionKey]:
    """Yield the partitions whose run waits for longer than it may, if it began to wait at `oldest` or later."""
    first_days = ledger.days.first_days(source)
    for name in query_names:
        window = DayWindow(source=source, query_name=name)
        days = find_days(ledger, window, BLOCKED_CONDITIONS, first_days=first_days.of_query(name), rules=rules)
        yield from (key for key, day in days.items() if day.since >= oldest)


def _find_due_days(since: datetime, now: datetime, expectation: Expectation) -> list[date]:
    return [
        day
        for day in days_between(since.date() - timedelta(days=FRESH_DAYS + 2), now.date())
        if expectation.is_expected(day, is_recorded=True)
        and any(since < at <= now for at in (expectation.deadline(day), expectation.end_of_freshness(day)))
    ]
