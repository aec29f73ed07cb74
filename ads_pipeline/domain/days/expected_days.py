"""Finds the first expected day of a customer and query, given the days that were fetched, and when.

A day counts as fetched when a run was sealed or a fetch failed. `readability` derives conditions from the answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

LONGEST_HOLE: Final = 31  # days without a fetch between two that belong together


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedDays:
    """All days from `first` on are expected. Of the earlier days, only the `single` ones are: they were fetched.

    `first` is `date.max` where no day was fetched.
    """

    first: date = date.max
    single: tuple[date, ...] = ()

    @property
    def earliest(self) -> date:
        """The first fetched day."""
        return self.single[0] if self.single else self.first

    def count(self, since: date, until: date) -> int:
        """Count the expected days of a window."""
        singles = sum(since <= day <= until for day in self.single)
        return singles + (max(0, (until - max(self.first, since)).days + 1))

    def covers(self, day: date) -> bool:
        """True if the day is expected."""
        return day >= self.first or day in self.single


def find_expected(fetched: Mapping[date, datetime]) -> ExpectedDays:
    """Which days are expected, when these were fetched. Each has the time of its first fetch.

    The regular fetches began with the day that was fetched first, or with an earlier day that is joined to it: no
    hole of more than a month lies between. A day that was more than a month old when it was fetched, and has no other
    fetched day within a month, is not the beginning unless all days are such. So one late run of last year does not
    make the days after it missing, while every day after the first regular one stays expected.
    """
    days = sorted(fetched)
    neighbours = zip(days, [date.min, *days], [*days[1:], date.max], strict=False)
    regular = [
        day
        for day, before, after in neighbours
        if _is_fresh(day, fetched[day]) or _is_joined(before, day) or _is_joined(day, after)
    ]
    if not regular:
        return ExpectedDays(first=days[0])
    first = min(regular, key=lambda day: (fetched[day], day))
    for day in reversed(days):
        if day < first and _is_joined(day, first):
            first = day
    return ExpectedDays(first=first, single=tuple(day for day in days if day < first))


def may_have_hole(recorded: int, first: date, last: date) -> bool:
    """True if a month without a fetch may lie between two days, of which so many are recorded."""
    return (last - first).days + 1 - recorded > LONGEST_HOLE


def _is_fresh(day: date, fetched_at: datetime) -> bool:
    """True if the day was at most a month old when it was fetched."""
    return fetched_at.astimezone(UTC).date() - day <= timedelta(days=LONGEST_HOLE + 1)


def _is_joined(day: date, later: date) -> bool:
    """True if at most a month without a fetch lies between two days."""
    return (later - day).days - 1 <= LONGEST_HOLE


def describe_single_days(customer_id: str, query_name: str, days: ExpectedDays, since: date) -> str:
    """One line: which earlier days are not expected, why, and the command that requests those from `since` on."""
    last = days.single[-1]
    begin, until = max(since, last + timedelta(days=1)), days.first - timedelta(days=1)
    return (
        f"{customer_id} {query_name}: {last} is a single day before the regular ones, which began at {days.first}, "
        f"so the days between are not expected. To request them: ads-pipeline state enqueue --customer {customer_id} "
        f"--query {query_name} --since {begin} --until {until} --reason TEXT"
    )
