"""Which days of a customer and query are expected, given the days that were fetched, and when."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.days.expected_days import (
    LONGEST_HOLE,
    ExpectedDays,
    describe_single_days,
    find_expected,
    may_have_hole,
)

START = date(2026, 11, 1)
LAST_YEAR = date(2025, 1, 5)
DAYS = st.integers(0, 800).map(lambda number: date(2025, 1, 1) + timedelta(days=number))
TIMES = st.integers(0, 900).map(lambda number: datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=number))
FETCHED = st.dictionaries(DAYS, TIMES, min_size=1, max_size=12)


def fetched_daily(first: date, days: int) -> dict[date, datetime]:
    """Each day was fetched on the next morning."""
    found = (first + timedelta(days=number) for number in range(days))
    return {day: datetime.combine(day + timedelta(days=1), time(5), UTC) for day in found}


def test_late_run_of_last_year_is_expected_alone() -> None:
    """The days between it and the first regular day are not."""
    regular = fetched_daily(START, 5)
    late = {LAST_YEAR: datetime(2026, 11, 6, tzinfo=UTC)}
    assert find_expected(regular | late) == ExpectedDays(first=START, single=(LAST_YEAR,))
    assert find_expected(late) == ExpectedDays(first=LAST_YEAR)  # nobody knows yet that it is one
    assert find_expected(regular) == ExpectedDays(first=START)


def test_outage_after_the_first_day_stays_expected() -> None:
    """Also one of a year: the day before it was fetched first. One day that was fetched in time is a beginning."""
    before, after = fetched_daily(LAST_YEAR, 1), fetched_daily(START, 3)
    assert find_expected(before | after) == ExpectedDays(first=LAST_YEAR)
    assert find_expected(before) == ExpectedDays(first=LAST_YEAR)


def test_history_that_is_loaded_later_is_expected_without_its_holes_of_a_month() -> None:
    """Backwards from the regular days. A hole of a month is expected, a longer one is not."""
    regular, now = fetched_daily(START, 3), datetime(2026, 11, 20, tzinfo=UTC)
    near = START - timedelta(days=LONGEST_HOLE + 1)
    far = near - timedelta(days=LONGEST_HOLE + 2)
    assert find_expected(regular | {near: now}) == ExpectedDays(first=near)
    assert find_expected(regular | {near: now, far: now}) == ExpectedDays(first=near, single=(far,))


def test_history_alone_is_a_beginning() -> None:
    """Two days within a month are no single ones, however old they are. The first of them begins."""
    old = {LAST_YEAR + timedelta(days=number): datetime(2026, 11, 6, tzinfo=UTC) for number in (0, 5)}
    assert find_expected(old) == ExpectedDays(first=LAST_YEAR)


@given(FETCHED)
def test_every_day_since_the_first_regular_fetch_is_expected(fetched: Mapping[date, datetime]) -> None:
    """No missing day after it is hidden. Every fetched day is expected, and a first day was fetched."""
    found = find_expected(fetched)
    assert all(found.covers(day) for day in fetched)
    assert found.earliest == min(fetched)
    assert set(found.single) == {day for day in fetched if day < found.first}
    in_time = [day for day, at in fetched.items() if at.date() - day <= timedelta(days=LONGEST_HOLE + 1)]
    if in_time:
        begun = min(in_time, key=lambda day: (fetched[day], day))
        joined = [day for day in fetched if fetched[day] < fetched[begun]]
        assert found.first <= begun or any(found.first <= day for day in joined)
        assert found.first in fetched


@given(FETCHED, DAYS, st.timedeltas(timedelta(0), timedelta(days=900)))
def test_later_fetch_takes_no_expected_day_away(
    fetched: Mapping[date, datetime], day: date, after: timedelta
) -> None:
    """It adds days at most. A fetch that is repeated keeps the time of the first one.

    Days that only single ones made expected are no longer so once a regular one is known.
    """
    if not has_regular_day(fetched):
        return
    more = {day: max(fetched.values()) + after} | dict(fetched)
    before, now = find_expected(fetched), find_expected(more)
    assert now.first <= before.first
    assert all(now.covers(each) for each in before.single)


def has_regular_day(fetched: Mapping[date, datetime]) -> bool:
    """Whether a day was fetched within a month, or has another one within a month."""
    month = timedelta(days=LONGEST_HOLE + 1)
    days = sorted(fetched)
    is_near = any(later - day <= month for day, later in pairwise(days))
    return is_near or any(at.date() - day <= month for day, at in fetched.items())


@given(FETCHED)
def test_customers_with_single_days_are_among_those_that_are_looked_at(fetched: Mapping[date, datetime]) -> None:
    """The number of recorded days and the first and last of them decide who is read in full."""
    if not may_have_hole(len(fetched), min(fetched), max(fetched)):
        assert find_expected(fetched).first == min(fetched)


@given(FETCHED, DAYS, DAYS)
def test_count_is_the_number_of_covered_days(fetched: Mapping[date, datetime], since: date, until: date) -> None:
    """In any window, also an empty one."""
    found = find_expected(fetched)
    days = [since + timedelta(days=number) for number in range(max(0, (until - since).days + 1))]
    assert found.count(since, until) == sum(map(found.covers, days))


def test_sentence_names_the_days_that_are_not_expected_and_the_command() -> None:
    """The command requests them from the first day of the window on."""
    days = ExpectedDays(first=START, single=(LAST_YEAR,))
    assert describe_single_days("42", "campaign_daily", days, date.min) == (
        "42 campaign_daily: 2025-01-05 is a single day before the regular ones, which began at 2026-11-01, so the "
        "days between are not expected. To request them: ads-pipeline state enqueue --customer 42 "
        "--query campaign_daily --since 2025-01-06 --until 2026-10-31 --reason TEXT"
    )
    assert "--since 2026-03-01 --until" in describe_single_days("42", "campaign_daily", days, date(2026, 3, 1))


@pytest.mark.parametrize(
    ("recorded", "days", "is_looked_at"), [(1, 1, False), (2, 2, False), (2, 33, False), (2, 34, True)]
)
def test_bounds_of_who_is_looked_at(recorded: int, days: int, is_looked_at: bool) -> None:
    """Those with more than a month of unrecorded days between the first and the last."""
    assert may_have_hole(recorded, START, START + timedelta(days=days - 1)) is is_looked_at
