"""Ranges of days with one condition, because there may be millions of days without a run."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from heapq import merge
from itertools import pairwise
from operator import attrgetter, itemgetter

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition, ConditionEntry
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.days.settlement import ONE_DAY
from ads_pipeline.domain.partition import PartitionKey, days_between


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRange:
    """Consecutive days of a customer and query with the same condition and reason.

    `describe` describes each of them: they differ in since when the condition holds. It makes texts, so a list that
    only counts does not call it.
    """

    first: PartitionKey
    last: PartitionKey
    condition: Condition
    describe: Callable[[date], DayCondition]

    @property
    def entry(self) -> ConditionEntry:
        return CONDITIONS[self.condition]

    @property
    def day(self) -> DayCondition:
        """The first day as described."""
        return self.describe(self.first.logical_date)

    @property
    def days(self) -> int:
        return (self.last.logical_date - self.first.logical_date).days + 1

    @property
    def keys(self) -> Iterator[PartitionKey]:
        """The days of the range, newest first."""
        for back in range(self.days):
            yield replace(self.last, logical_date=self.last.logical_date - timedelta(days=back))


def count_conditions(ranges: Iterable[DayRange]) -> Counter[Condition]:
    """The number of days in each condition."""
    counts = Counter[Condition]()
    for each in ranges:
        counts[each.condition] += each.days
    return counts


def expand(ranges: Iterable[DayRange]) -> Iterator[tuple[PartitionKey, DayCondition]]:
    """Yield each day of the ranges, by day and customer."""
    for day, _customer, found in merge(*map(_list_days, ranges), key=itemgetter(0, 1)):
        key = found.first if found.days == 1 else replace(found.first, logical_date=day)
        yield key, found.describe(day)


def join_ranges(ranges: Iterable[DayRange]) -> Iterator[DayRange]:
    """Join the ranges that follow one another with the same condition and reason, in the order of the keys."""
    ordered = sorted(ranges, key=attrgetter("first"))
    starts = [number for number, (one, other) in enumerate(pairwise(ordered), 1) if not _is_joined(one, other)]
    for first, end in pairwise([0, *starts, len(ordered)] if ordered else ()):
        parts = ordered[first:end]
        if len(parts) == 1:
            yield parts[0]
        else:
            yield replace(parts[0], last=parts[-1].last, describe=partial(_describe_in, parts))


def cut_days(first: date, last: date, starts: Iterable[date]) -> Iterator[tuple[date, date]]:
    """Cut consecutive days into parts, each of which begins at one of the starts. Yield its first and last day."""
    cuts = sorted({first, *(each for each in starts if first < each <= last)})
    yield from zip(cuts, [*(each - ONE_DAY for each in cuts[1:]), last], strict=True)


def _list_days(found: DayRange) -> Iterator[tuple[date, str, DayRange]]:
    for day in days_between(found.first.logical_date, found.last.logical_date):
        yield day, found.first.customer_id, found


def _is_joined(one: DayRange, other: DayRange) -> bool:
    """True if the other range follows with the same condition and reason."""
    return (
        (other.first.logical_date - one.last.logical_date) == ONE_DAY
        and one.condition is other.condition
        and (one.first.source, one.first.customer_id, one.first.query_name)
        == (other.first.source, other.first.customer_id, other.first.query_name)
        and one.day.explanation == other.day.explanation
    )


def _describe_in(parts: Sequence[DayRange], day: date) -> DayCondition:
    return next(each.describe(day) for each in parts if day <= each.last.logical_date)
