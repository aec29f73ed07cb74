"""The deadline of a day, which follows the account's own zone."""

from datetime import UTC, date, datetime, timedelta
from functools import partial
from zoneinfo import available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.days.expectation import Expectation
from ads_pipeline.domain.days.readability import find_condition
from ads_pipeline.domain.days.settlement import day_end, find_zone

ZONES = [*sorted(available_timezones()), "Mars/Olympus", None]  # of the last two, nobody knows when a day ends
DAY = date(2026, 3, 8)  # clocks change in most of the United States
NOON_AFTER = datetime(2026, 3, 9, 12, tzinfo=UTC)


def expect(zone: str | None, due_after: timedelta) -> Expectation:
    return Expectation(first_day=date.min, due_after=due_after, ends_at=partial(day_end, zone=find_zone(zone)))


@pytest.mark.parametrize(
    ("zone", "late_from"),
    [
        ("Pacific/Honolulu", datetime(2026, 3, 9, 22, tzinfo=UTC)),
        ("America/Los_Angeles", datetime(2026, 3, 9, 19, tzinfo=UTC)),
        ("UTC", NOON_AFTER),
        ("Pacific/Kiritimati", datetime(2026, 3, 8, 22, tzinfo=UTC)),
    ],
)
def test_day_is_late_a_limit_after_it_ended_in_the_accounts_zone(zone: str, late_from: datetime) -> None:
    """At noon UTC, the day of an account in Honolulu has been over for two hours."""
    expectation = expect(zone, timedelta(hours=12))
    assert expectation.deadline(DAY) == late_from
    before = late_from - timedelta(microseconds=1)
    assert find_condition(None, DAY, expectation, is_parked=False, now=before) is Condition.NOT_EXPECTED
    assert find_condition(None, DAY, expectation, is_parked=False, now=late_from) is Condition.LATE


def test_deadline_of_an_account_without_a_zone_is_in_utc() -> None:
    """Nobody knows the zone of a customer whose runs another extractor seals."""
    assert Expectation(first_day=DAY, due_after=timedelta(hours=12)).deadline(DAY) == NOON_AFTER


@given(
    zone=st.sampled_from(ZONES),
    now=st.integers(-7_000 * 86_400, 65_000 * 86_400).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    hours=st.integers(0, 400),
)
def test_last_due_day_is_the_newest_whose_deadline_has_passed(zone: str | None, now: datetime, hours: int) -> None:
    """In every zone, also where clocks change, where a day was left out, and where a day lasts for 25 hours."""
    expectation = expect(zone, timedelta(hours=hours))
    last = expectation.last_due_day(now)
    assert expectation.deadline(last) <= now < expectation.deadline(last + timedelta(days=1))


@given(
    zone=st.sampled_from(ZONES),
    day=st.dates(date(1950, 1, 1), date(2150, 1, 1)),
    hours=st.integers(0, 60),
    later=st.timedeltas(timedelta(0), timedelta(days=9)),
)
def test_absent_day_becomes_late_and_then_missing_once(
    zone: str | None, day: date, hours: int, later: timedelta
) -> None:
    """A day is not late before the account's own day and the limit are over, and later times do not take it back."""
    expectation = expect(zone, timedelta(hours=hours))
    order = [Condition.NOT_EXPECTED, Condition.LATE, Condition.MISSING]
    ended = expectation.ends_at(day)
    now = ended + later

    def rank(at: datetime) -> int:
        return order.index(find_condition(None, day, expectation, is_parked=False, now=at))

    assert (rank(now) > 0) == (later >= expectation.due_after)
    assert rank(now) <= rank(now + timedelta(hours=1))
