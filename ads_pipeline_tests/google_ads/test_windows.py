"""Windows of a day: closed by the account's own midnight, provisional until the lookback, out of reach."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest

from ads_pipeline.domain.days.settlement import (
    LAST_ZONE,
    DayLimits,
    ReportState,
    closes_at,
    day_end,
    find_report_state,
    find_skip,
    find_zone,
    first_day_in_reach,
    is_known_zone,
    settles_at,
)
from ads_pipeline_tests.builders import key

LIMITS = DayLimits()
SECOND = timedelta(seconds=1)


def utc(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(year, month, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "day", "end"),
    [
        ("Pacific/Kiritimati", date(2026, 10, 7), utc(2026, 10, 7, 10)),
        ("America/Los_Angeles", date(2026, 10, 7), utc(2026, 10, 8, 7)),
        ("America/Los_Angeles", date(2026, 3, 8), utc(2026, 3, 9, 7)),  # 23 hours long
        ("America/Los_Angeles", date(2026, 11, 1), utc(2026, 11, 2, 8)),  # 25 hours long
        ("Asia/Beirut", date(2026, 3, 28), utc(2026, 3, 28, 22)),  # the change skips midnight
        ("Not/AZone", date(2026, 10, 7), utc(2026, 10, 8, 12)),
        (None, date(2026, 10, 7), utc(2026, 10, 8, 12)),
    ],
)
def test_day_ends_at_the_accounts_midnight(zone: str | None, day: date, end: datetime) -> None:
    """A day closes three hours after the account's midnight."""
    found = find_zone(zone)
    assert day_end(day, found) == end
    assert closes_at(day, found, LIMITS) == end + timedelta(hours=3)


def test_every_day_ends_after_the_one_before_it() -> None:
    """In every zone, also across clock changes, days end in order and 22 to 26 hours apart."""
    first = date(2025, 1, 1)
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        ends = [day_end(first + timedelta(days=n), zone) for n in range(730)]
        lengths = {later - earlier for earlier, later in pairwise(ends)}
        assert timedelta(hours=22) <= min(lengths) <= max(lengths) <= timedelta(hours=26), name


@pytest.mark.parametrize(
    "name", ["Not/AZone", "", None, "../etc/passwd", "/etc/localtime", "\x00", "America", "é" * 300]
)
def test_unknown_zone_is_the_last_to_close(name: str | None) -> None:
    """A zone that is missing or unknown, also a hostile name, counts as UTC-12."""
    assert find_zone(name) is LAST_ZONE
    assert not is_known_zone(name)


def test_day_at_the_end_of_the_calendar_has_an_end() -> None:
    """The last day of the calendar is not closed, and computing its end raises nothing."""
    assert closes_at(date.max, LAST_ZONE, LIMITS) > utc(2026, 1, 1)


def test_report_is_provisional_until_its_lookback_has_passed() -> None:
    """A report settles when it was extracted no earlier than day end + lookback + 1 day."""
    zone, day = ZoneInfo("America/Los_Angeles"), date(2026, 10, 7)
    settled = utc(2026, 11, 8, 8)  # standard time by then would be 8:00; the day itself ended at 7:00 UTC
    assert settles_at(day, zone, 30) == settled - timedelta(hours=1)
    final = settles_at(day, zone, 30)
    assert find_report_state(final - SECOND, final) is ReportState.PROVISIONAL
    assert find_report_state(final, final) is ReportState.SETTLED
    assert settles_at(day, zone, 0) == day_end(day, zone) + timedelta(days=1)


@pytest.mark.parametrize(
    ("now", "zone", "first"),
    [
        (utc(2026, 10, 7, 12), "UTC", date(2023, 9, 23)),
        (utc(2028, 2, 29, 12), "UTC", date(2025, 2, 14)),  # a leap day
        (utc(2026, 10, 7, 12), "Pacific/Kiritimati", date(2023, 9, 24)),  # already the next day there
        (utc(2026, 10, 7, 6), "America/Los_Angeles", date(2023, 9, 22)),  # still the day before there
    ],
)
def test_reach_counts_from_the_accounts_today(now: datetime, zone: str, first: date) -> None:
    """The oldest day in reach is 1,110 days before the account's own today; the day before it is out of reach."""
    found = ZoneInfo(zone)
    assert first_day_in_reach(found, LIMITS, now) == first
    assert find_skip(key(day=first), zone, LIMITS, now) is None
    skip = find_skip(key(day=first - timedelta(days=1)), zone, LIMITS, now)
    assert skip is not None
    assert skip.reason == f"unrecoverable: the source serves only days from {first} on"
