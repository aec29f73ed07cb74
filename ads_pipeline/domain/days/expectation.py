"""Which days of a customer and query are expected, and when each is due, in the account's own zone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final

from ads_pipeline.domain.fetching.retry_policy import FRESH_DAYS

DEFAULT_DUE_AFTER: Final = timedelta(hours=12)


@lru_cache(maxsize=4096)  # thousands of accounts have the same days
def end_in_utc(day: date) -> datetime:
    """The end of a day for an account whose zone is not known."""
    return datetime.combine(day + timedelta(days=1), time.min, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The expected days of a customer and query, and the time after its end at which a day is due.

    `single` are earlier days that were fetched: of the days since the first of these, the recorded ones are expected.
    `ends_at` gives the end of a day in the account's own zone. `first_in_reach` is the oldest day that the source
    still serves. `settles_at` gives the time from which on a report of a day is final. It is None for an account
    that is not known. `has_contract` says whether a contract judges rows of a schema version of the query.
    `held_until` is the end of a quota's hold on the account's fetches.
    """

    first_day: date
    due_after: timedelta
    single: tuple[date, ...] = ()
    ends_at: Callable[[date], datetime] = end_in_utc
    held_until: datetime | None = None
    first_in_reach: date = date.min
    settles_at: Callable[[date], datetime] | None = None
    has_contract: Callable[[str], bool] = lambda _version: True

    def deadline(self, day: date) -> datetime:
        """The time at which the day's report should be readable."""
        return self.ends_at(day) + self.due_after

    def end_of_freshness(self, day: date) -> datetime:
        """The time from which an absent day is missing rather than late."""
        return self.ends_at(day + timedelta(days=FRESH_DAYS))

    def describe(self, day: date) -> str:
        """Say when a day that is not expected will be expected."""
        if self.single and self.single[0] < day < self.first_day:
            last = max(each for each in self.single if each < day)
            regular = f"the regular ones, which began at {self.first_day}"
            return f"{last} is a single day before {regular}; the days between are not expected"
        if day < self.first_day:
            first = "" if self.first_day == date.max else f", {self.first_day}"
            return f"none is expected before the customer's first fetched day{first}"
        return f"the day is due at {self.deadline(day):%Y-%m-%d %H:%M} UTC"

    def is_expected(self, day: date, *, is_recorded: bool) -> bool:
        """True if the day will be due. An earlier day than the first expected one must be recorded."""
        return day >= self.first_day or (is_recorded and bool(self.single) and day >= self.single[0])

    def find_changes(self, now: datetime) -> tuple[date, ...]:
        """The days with which the condition of absent days may change.

        They are the first expected one, the first in reach, the first fresh one and the first that is not due.
        """
        fresh = replace(self, due_after=timedelta()).last_due_day(now) - timedelta(days=FRESH_DAYS - 1)
        return self.first_day, self.first_in_reach, fresh, self.last_due_day(now) + timedelta(days=1)

    def last_due_day(self, now: datetime) -> date:
        """The newest day whose deadline has passed."""
        day = (now.astimezone(UTC) - self.due_after).date()  # a day ends up to 14 hours before midnight UTC
        while self.deadline(day) > now:
            day -= timedelta(days=1)
        return day
