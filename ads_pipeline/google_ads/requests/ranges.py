"""Cuts partitions into date ranges, one request each: fewer requests than partitions.

Google Ads counts a request as one operation, whatever range of days it asks for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property, partial
from itertools import groupby
from typing import Final

from ads_pipeline.domain.batches import cut
from ads_pipeline.domain.partition import PartitionKey, days_between

MAX_RANGE_DAYS: Final = 31
FindWidth = Callable[[str, str], int]  # the most days that a request of a customer and query may span
MAX_GAP_DAYS: Final = 7  # reading a week that nobody needs costs less than a second operation


@dataclass(frozen=True, kw_only=True)
class FetchRange:
    """Partitions of one customer and query, in day order, that one request fetches together.

    Days between the first and the last that are not among the keys are read and not written.
    """

    keys: tuple[PartitionKey, ...]

    def __post_init__(self) -> None:
        if len({(key.source, key.customer_id, key.query_name) for key in self.keys}) != 1:
            raise ValueError("a range needs partitions of exactly one source, customer and query")

    @property
    def customer_id(self) -> str:
        return self.keys[0].customer_id

    @property
    def query_name(self) -> str:
        return self.keys[0].query_name

    @property
    def since(self) -> date:
        return self.keys[0].logical_date

    @property
    def until(self) -> date:
        return self.keys[-1].logical_date

    @property
    def width(self) -> int:
        """The number of days that the request spans."""
        return (self.until - self.since).days + 1

    @cached_property
    def day_names(self) -> frozenset[str]:
        """Every day from the first to the last, exactly as an answer must write it."""
        return frozenset(day.isoformat() for day in days_between(self.since, self.until))

    def __str__(self) -> str:
        return f"{self.customer_id}/{self.query_name} {self.since} to {self.until}"


@dataclass(frozen=True, slots=True)
class KnownWidths:
    """The widths that earlier requests have shown, below MAX_RANGE_DAYS: of queries, and of customers and queries."""

    of_queries: Mapping[str, int] = field(default_factory=dict)
    of_customers: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def find(self, customer_id: str, query_name: str) -> int:
        """The most days that a request of a customer and query may span."""
        own = self.of_customers.get((customer_id, query_name), MAX_RANGE_DAYS)
        return max(min(own, self.of_queries.get(query_name, MAX_RANGE_DAYS), MAX_RANGE_DAYS), 1)


WIDEST: Final = KnownWidths()


def cut_ranges(keys: Iterable[PartitionKey], find_width: FindWidth = WIDEST.find) -> list[FetchRange]:
    """The ranges that hold these partitions, ordered by customer, query and day.

    A range spans at most the days of its width, at most 31, and bridges gaps of up to 7 days.
    """
    ordered = sorted(set(keys))
    return [
        FetchRange(keys=tuple(part))
        for (_source, customer, query), days in groupby(
            ordered, key=lambda key: (key.source, key.customer_id, key.query_name)
        )
        for part in cut(days, partial(_fits, find_width(customer, query)))
    ]


def halve(fetch_range: FetchRange) -> tuple[FetchRange, ...]:
    """The range cut in the middle of its days; a half without partitions is left out.

    A range of one partition returns itself, because it cannot be narrower.
    """
    if len(fetch_range.keys) == 1:
        return (fetch_range,)
    middle = fetch_range.since + (fetch_range.until - fetch_range.since) // 2
    early = tuple(key for key in fetch_range.keys if key.logical_date <= middle)
    late = tuple(key for key in fetch_range.keys if key.logical_date > middle)
    return tuple(FetchRange(keys=half) for half in (early, late))


def _fits(width: int, part: Sequence[PartitionKey], key: PartitionKey) -> bool:
    gap = (key.logical_date - part[-1].logical_date).days - 1
    return gap <= MAX_GAP_DAYS and key.logical_date - part[0].logical_date < timedelta(days=width)
