"""Ranges of days say the same as the days one by one, over random histories of a ledger."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.days.conditions import UNREADABLE_CONDITIONS, Condition
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions, expand, join_ranges
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import LedgerError
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, Run, days_between
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days, find_gaps, find_ranges
from ads_pipeline.settings.extraction_section import ExtractionSettings
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    FakeClock,
    acceptance,
    action_request,
    key,
    publish_runs,
    rejection,
)
from ads_pipeline_tests.pipeline.extraction.test_due_days import google_apis

SOURCE, QUERY = "google_ads", key().query_name
FIRST, LAST = date(2026, 1, 20), date(2026, 3, 20)
ZONES: Final = {"1": "Pacific/Honolulu", "2": "Pacific/Kiritimati", "3": None}  # nothing is known of customer 4
LISTED: Final = sorted(set(Condition) - {Condition.NOT_EXPECTED})


class Step(NamedTuple):
    """One operation on consecutive days of a customer."""

    operation: str
    customer: str
    first: int
    days: int


def seal(ledger: Ledger, keys: Iterable[PartitionKey], number: int) -> list[Run]:
    runs = [Run(key=each, run_id=f"r{number}") for each in keys]
    ledger.registrations.register([sealed_run(each, ROWS) for each in runs])
    return runs


def load(ledger: Ledger, keys: Iterable[PartitionKey], number: int) -> None:
    runs = seal(ledger, keys, number)
    ledger.verdicts.record([acceptance(each) for each in runs])
    publish_runs(ledger, *runs)


def fail(error_class: str) -> Callable[[Ledger, Iterable[PartitionKey], int], object]:
    def record(ledger: Ledger, keys: Iterable[PartitionKey], number: int) -> None:
        failed = (
            FailedFetch(key=each, failure_id=f"f{number}", error_class=error_class, error_message="no")
            for each in keys
        )
        ledger.failed_fetches.record(list(failed), RetryPolicy())

    return record


def act(action: Action) -> Callable[[Ledger, Iterable[PartitionKey], int], object]:
    return lambda ledger, keys, number: ledger.actions.execute(action, keys, action_request(f"action-{number}"))


def park(ledger: Ledger, keys: Iterable[PartitionKey], number: int) -> None:
    customer = next(iter(keys)).customer_id
    parking = Parking(source=SOURCE, scope="customer", name=customer, error_class="permission_denied", why="no")
    ledger.actions.park(parking, action_request(f"action-{number}"))


def hold(ledger: Ledger, keys: Iterable[PartitionKey], _number: int) -> None:
    customer = next(iter(keys)).customer_id
    until = datetime.combine(LAST, datetime.min.time(), UTC)
    ledger.quota.hold(Hold(source=SOURCE, customer_id=customer, until=until, why="used up"))


OPERATIONS: Final[Mapping[str, Callable[[Ledger, Iterable[PartitionKey], int], object]]] = {
    "seal": seal,
    "load": load,
    "reject": lambda ledger, keys, number: ledger.verdicts.record(
        [rejection(each) for each in seal(ledger, keys, number)]
    ),
    "fail": fail("transport"),
    "fail out of reach": fail("out_of_reach"),
    "fail by quota": fail("quota_exhausted"),
    "acknowledge": act(Action.ACKNOWLEDGE),
    "mark as terminal": act(Action.MARK_TERMINAL),
    "withdraw": act(Action.WITHDRAW),
    "park": park,
    "hold": hold,
}
STEPS: Final = st.lists(
    st.builds(
        Step,
        operation=st.sampled_from(sorted(OPERATIONS)),
        customer=st.sampled_from("1234"),
        first=st.integers(0, 50),
        days=st.integers(1, 9),
    ),
    min_size=1,
    max_size=14,
)


def apply(ledger: Ledger, clock: FakeClock, steps: Iterable[Step]) -> None:
    found = [
        Account(source=SOURCE, customer_id=each, status="ENABLED", time_zone=zone) for each, zone in ZONES.items()
    ]
    ledger.accounts.record(SOURCE, found)
    for number, step in enumerate(steps):
        since = FIRST + timedelta(days=step.first)
        days = days_between(since, since + timedelta(days=step.days - 1))
        clock.now = datetime.combine(since, datetime.min.time(), UTC) + timedelta(days=step.days + 1)
        with suppress(LedgerError):  # a refused step changes nothing
            OPERATIONS[step.operation](
                ledger, [replace(key(step.customer), logical_date=each) for each in days], number
            )


def find_one_by_one(
    ledger: Ledger, window: DayWindow, conditions: Iterable[Condition], rules: DayRules
) -> dict[PartitionKey, DayCondition]:
    """Describe every day of the window, whether it is recorded or not."""
    keys = [
        replace(key(customer), logical_date=day)
        for day in days_between(window.since, window.until)
        for customer in "1234"
    ]
    return {each: day for each, day in describe_days(ledger, keys, rules).items() if day.condition in conditions}


def count_one_by_one(ledger: Ledger, window: DayWindow, gaps: Iterable[PartitionKey], rules: DayRules) -> int:
    """Count the due days of each customer, and those gaps that are recorded and not due."""
    starts = ledger.days.first_days(SOURCE).of_query(QUERY)
    expected = {
        replace(key(customer), logical_date=day)
        for customer, days in starts.items()
        for day in days_between(window.since, window.until)
        if days.covers(day) and day <= rules.expect(customer, QUERY, days).last_due_day(rules.now)
    }
    return len(expected.union(gaps))


@pytest.mark.invariant("L8")
@settings(max_examples=examples(40), deadline=None)
@given(
    steps=STEPS,
    conditions=st.sets(st.sampled_from(LISTED), min_size=1),
    since=st.integers(0, 30),
    now=st.integers(0, 60 * 24).map(lambda hours: datetime(2026, 1, 30, tzinfo=UTC) + timedelta(hours=hours)),
    due_after=st.integers(0, 60).map(lambda hours: timedelta(hours=hours)),
    reach_days=st.integers(1, 60),
)
def test_ranges_have_the_days_that_are_found_one_by_one(
    sqlite_template: Path,
    steps: list[Step],
    conditions: set[Condition],
    since: int,
    now: datetime,
    due_after: timedelta,
    reach_days: int,
) -> None:
    """The same days with the same descriptions, also joined, and the same counts."""
    with tempfile.TemporaryDirectory() as home:
        path = shutil.copy(sqlite_template, Path(home) / "ledger.db")
        clock = FakeClock()
        with Ledger.opened(f"sqlite:///{path}", clock=clock) as ledger:
            apply(ledger, clock, steps)
            clock.now = now
            apis = google_apis().model_copy(update={"google_ads": ExtractionSettings(reach_days=reach_days)})
            rules = DayRules(
                due_after={QUERY: due_after},
                now=now,
                accounts=AccountDays.read(ledger, apis, now=now),
                holds=ledger.quota.list_holds(SOURCE),
            )
            window = DayWindow(source=SOURCE, query_name=QUERY, since=FIRST + timedelta(days=since), until=LAST)
            first_days = ledger.days.first_days(SOURCE)
            expected = find_one_by_one(ledger, window, conditions, rules)
            ranges = find_ranges(ledger, window, conditions, first_days=first_days.of_query(QUERY), rules=rules)
            check_ranges(ranges, expected)
            gaps = find_gaps(ledger, window, first_days=first_days, rules=rules)
            unread = find_one_by_one(ledger, window, UNREADABLE_CONDITIONS, rules)
            check_ranges(gaps.ranges, unread)
            assert gaps.expected == count_one_by_one(ledger, window, unread, rules)


def check_ranges(ranges: Sequence[DayRange], expected: Mapping[PartitionKey, DayCondition]) -> None:
    """The ranges have these days. Each joined one has one condition and reason, which no neighbour has."""
    joined = list(join_ranges(ranges))
    assert list(expand(ranges)) == list(expand(joined)) == list(expected.items())
    assert count_conditions(ranges) == Counter(day.condition for day in expected.values())
    for each in joined:
        cause = each.condition, each.day.explanation
        assert {(expected[day].condition, expected[day].explanation) for day in each.keys} == {cause}
        for end, step in (each.first, -1), (each.last, 1):
            neighbour = expected.get(replace(end, logical_date=end.logical_date + timedelta(days=step)))
            assert neighbour is None or (neighbour.condition, neighbour.explanation) != cause
