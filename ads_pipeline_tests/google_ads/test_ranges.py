"""Ranges: every partition in exactly one, none too long, as few as the days allow."""

from datetime import date, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.google_ads.requests.ranges import MAX_GAP_DAYS, MAX_RANGE_DAYS, FetchRange, cut_ranges, halve
from ads_pipeline_tests.builders import key

FIRST = date(2026, 1, 1)
partitions = st.builds(
    lambda customer, query, offset: key(customer, query_name=query, day=FIRST + timedelta(days=offset)),
    st.sampled_from(["1", "2"]),
    st.sampled_from(["a", "b"]),
    st.integers(0, 120),
)


def days(*offsets: int) -> list[PartitionKey]:
    return [key(day=FIRST + timedelta(days=offset)) for offset in offsets]


def spans(ranges: list[FetchRange]) -> list[tuple[int, int]]:
    return [((each.since - FIRST).days, (each.until - FIRST).days) for each in ranges]


@given(st.lists(partitions))
def test_each_partition_is_in_exactly_one_range(keys: list[PartitionKey]) -> None:
    """Ranges hold each partition once, of one customer and query, and never exceed the longest span or gap."""
    ranges = cut_ranges(keys)
    assert [each for fetch_range in ranges for each in fetch_range.keys] == sorted(set(keys))
    for fetch_range in ranges:
        assert {(each.customer_id, each.query_name) for each in fetch_range.keys} == {
            (fetch_range.customer_id, fetch_range.query_name)
        }
        assert (fetch_range.until - fetch_range.since).days < MAX_RANGE_DAYS
        for earlier, later in pairwise(fetch_range.keys):
            assert (later.logical_date - earlier.logical_date).days - 1 <= MAX_GAP_DAYS


@pytest.mark.parametrize(("count", "operations"), [(1, 1), (30, 1), (31, 1), (32, 2), (62, 2), (63, 3), (365, 12)])
def test_consecutive_days_cost_one_operation_per_31(count: int, operations: int) -> None:
    """N consecutive days of a customer and query are ceil(N / 31) ranges."""
    assert len(cut_ranges(days(*range(count)))) == operations


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((), []),
        ((5,), [(5, 5)]),
        ((0, 8), [(0, 8)]),  # a gap of 7 days
        ((0, 9), [(0, 0), (9, 9)]),  # a gap of 8 days
        ((0, 8, 16, 24, 30), [(0, 30)]),
        ((0, 8, 16, 24, 31), [(0, 24), (31, 31)]),
        ((3, 1, 3, 2), [(1, 3)]),
    ],
)
def test_short_gaps_are_bridged(offsets: tuple[int, ...], expected: list[tuple[int, int]]) -> None:
    """A gap of up to 7 days is read past; a longer one starts another range. Order and repetition do not matter."""
    assert spans(cut_ranges(days(*offsets))) == expected


@given(st.lists(st.integers(0, 30), min_size=1, unique=True).map(lambda offsets: days(*sorted(offsets))))
def test_halves_are_narrower_and_lose_no_partition(keys: list[PartitionKey]) -> None:
    """Halving keeps every partition, and ends at ranges of one partition."""
    whole = FetchRange(keys=tuple(keys))
    halves = halve(whole)
    assert [each for half in halves for each in half.keys] == keys
    if len(keys) == 1:
        assert halves == (whole,)
    else:
        assert len(halves) == 2
        assert all(half.until - half.since < whole.until - whole.since for half in halves)


def test_range_of_two_customers_is_refused() -> None:
    """A range cannot hold partitions of two customers, because a request names one."""
    with pytest.raises(ValueError, match="exactly one"):
        FetchRange(keys=(key("1"), key("2")))
