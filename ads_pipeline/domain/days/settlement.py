"""Computes when a day of an account is closed, provisional, settled or out of reach.

Google Ads reads a date in the account's own time zone, and restates a day until its conversion window has passed.
Pure functions of the zone, the lookback and a given time; nothing here reads a clock.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from enum import StrEnum
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ads_pipeline.domain.fetching.fetch_results import SkippedFetch
from ads_pipeline.domain.partition import PartitionKey

LAST_ZONE: Final = timezone(timedelta(hours=-12))  # the last zone in which a day ends
ONE_DAY: Final = timedelta(days=1)
_LAST_DAY: Final = date.max - 2 * ONE_DAY  # its end is within the calendar in every zone


class ReportState(StrEnum):
    """The state of the figures of a readable day. The source may still change provisional ones."""

    PROVISIONAL = "provisional"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class DayLimits:
    """The settings that decide which days are fetched.

    `close_lag`: how long after midnight the metrics of a day are incomplete. `reach_days`: how many days back Google
    serves daily figures.
    """

    close_lag: timedelta = timedelta(hours=3)
    reach_days: int = 1_110


def find_zone(name: str | None) -> tzinfo:
    """The zone with this IANA name. A missing or unknown name gives UTC-12, the last zone in which a day ends."""
    return _read_zone(name) or LAST_ZONE


def is_known_zone(name: str | None) -> bool:
    return _read_zone(name) is not None


def day_end(day: date, zone: tzinfo) -> datetime:
    """The end of the account's day, in UTC."""
    following = min(day, _LAST_DAY) + ONE_DAY
    return datetime.combine(following, time.min, zone).astimezone(UTC)


def closes_at(day: date, zone: tzinfo, limits: DayLimits) -> datetime:
    """The time from which on the day's report is complete enough to be fetched."""
    return day_end(day, zone) + limits.close_lag


def first_day_in_reach(zone: tzinfo, limits: DayLimits, now: datetime) -> date:
    """The oldest day that Google still serves. An answer without rows to an older day says nothing about it."""
    return now.astimezone(zone).date() - timedelta(days=limits.reach_days)


def find_skip(key: PartitionKey, zone_name: str | None, limits: DayLimits, now: datetime) -> SkippedFetch | None:
    """The reason why the day cannot be fetched at this time, in its account's zone; None when it can."""
    zone = find_zone(zone_name)
    first = first_day_in_reach(zone, limits, now)
    if key.logical_date < first:
        return SkippedFetch(key=key, reason=f"unrecoverable: the source serves only days from {first} on")
    closing = closes_at(key.logical_date, zone, limits)
    if now >= closing:
        return None
    named = zone_name if is_known_zone(zone_name) else "the zone is unknown, so UTC-12"
    reason = f"the day is not closed before {closing:%Y-%m-%d %H:%M} UTC ({named})"
    return SkippedFetch(key=key, reason=reason, until=closing)


def settles_at(day: date, zone: tzinfo, lookback_days: int) -> datetime:
    """The time from which on a report is final: conversions count on the day of their click, until the lookback."""
    return day_end(day, zone) + timedelta(days=lookback_days) + ONE_DAY


def find_report_state(extracted_at: datetime, settled_from: datetime) -> ReportState:
    """The state of a report that was extracted at a time, where reports from `settled_from` on are final."""
    return ReportState.PROVISIONAL if extracted_at < settled_from else ReportState.SETTLED


@lru_cache(maxsize=1_000)
def _read_zone(name: str | None) -> tzinfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):  # unknown, not a relative path, or a directory
        return None
