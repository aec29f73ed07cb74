"""Cuts partitions into date ranges, one request each: fewer requests than partitions.

Google Ads counts a request as one operation, whatever range of days it asks for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.sequences import cut

MAX_RANGE_DAYS: Final = 31
MAX_GAP_DAYS: Final = 7  # reading a week that nobody needs costs less than a second operation


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def __str__(self) -> str:
        return f"{self.customer_id}/{self.query_name} {self.since} to {self.until}"


def cut_ranges(keys: Iterable[PartitionKey]) -> list[FetchRange]:
    """The ranges that hold these partitions, ordered by customer, query and day.

    A range spans at most 31 days and bridges gaps of up to 7 days.
    """
    ordered = sorted(set(keys))
    return [
        FetchRange(keys=tuple(part))
        for _group, days in groupby(ordered, key=lambda key: (key.source, key.customer_id, key.query_name))
        for part in cut(days, _fits)
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


def _fits(part: Sequence[PartitionKey], key: PartitionKey) -> bool:
    gap = (key.logical_date - part[-1].logical_date).days - 1
    return gap <= MAX_GAP_DAYS and key.logical_date - part[0].logical_date < timedelta(days=MAX_RANGE_DAYS)
