"""Few rectangles cover all that is due, and little else."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.rectangles import (
    MAX_PARTITIONS,
    PARTITIONS_WORTH_A_RUN,
    Cell,
    Rectangle,
    cover,
)
from ads_pipeline_tests.example_counts import examples

Due = Mapping[str, frozenset[Cell]]

CELLS = st.tuples(st.integers(0, 3_000) | st.integers(0, 30), st.integers(740_000, 740_020))
BLOCKS = st.builds(
    lambda first, since, customers, days: frozenset(
        (first + customer, since + day) for customer in range(customers) for day in range(days)
    ),
    st.integers(0, 2_000),
    st.integers(740_000, 740_050),
    st.integers(1, 40),
    st.integers(1, 40),
)
DUE = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.tuples(st.frozensets(CELLS, max_size=20), BLOCKS | st.just(frozenset[Cell]())).map(
        lambda both: both[0] | both[1]
    ),
)


@pytest.mark.invariant("O1")
@settings(max_examples=examples(100), deadline=None)
@given(due=DUE, by_customer=st.booleans())
def test_each_due_partition_is_in_one_rectangle(due: Due, by_customer: bool) -> None:
    """A rectangle has at most 1,000 partitions of a query, and wastes less than the runs that it saves."""
    found = cover(due, by_customer=by_customer)
    covered = Counter((query, cell) for each in found for query, cells in each.due.items() for cell in cells)
    assert covered == Counter((query, cell) for query, cells in due.items() for cell in cells)
    for each in found:
        assert each.size <= MAX_PARTITIONS
        assert all(contains(each, cell) for cells in each.due.values() for cell in cells)
        assert each.waste <= PARTITIONS_WORTH_A_RUN * (sum(map(len, each.due.values())) - 1)


def cost(found: Sequence[Rectangle]) -> int:
    return sum(PARTITIONS_WORTH_A_RUN + each.waste for each in found)


# Customers 34 to 57 on one day, and customer 42 on nine later days. Joining the days of each customer costs more.
CROSS: Final = frozenset(
    [*((customer, 740_011) for customer in range(34, 58)), *((42, 740_038 + day) for day in range(9))]
)


@settings(max_examples=examples(100), deadline=None)
@given(due=DUE)
@example(due={"a": CROSS})
@example(due={"a": frozenset((day - 740_000, customer + 740_000) for customer, day in CROSS)})
def test_cheaper_cover_is_taken_in_both_orders(due: Due) -> None:
    """The order decides between covers of one cost. It never makes a cover that costs more runs and partitions."""
    assert cost(cover(due)) == cost(cover(due, by_customer=True))


def test_cover_of_a_cross_wastes_nothing() -> None:
    """The day of many customers and the days of one customer are a rectangle each, whatever is preferred."""
    for by_customer in (False, True):
        assert [each.waste for each in cover({"a": CROSS}, by_customer=by_customer)] == [0, 0]


def contains(rectangle: Rectangle, cell: Cell) -> bool:
    customer, day = cell
    return rectangle.first <= customer <= rectangle.last and rectangle.since <= day <= rectangle.until


def block(customers: int, days: int) -> frozenset[Cell]:
    return frozenset((customer, 740_000 + day) for customer in range(customers) for day in range(days))


@pytest.mark.parametrize(
    ("due", "runs"),
    [
        ({"a": block(100, 91)}, 10),
        (dict.fromkeys("abcde", block(100, 91)), 10),
        (dict.fromkeys("abcde", block(100, 91) - {(5, 740_003), (80, 740_040)}), 10),
        ({"a": block(1, 1), "b": frozenset({(1, 740_000)}), "c": frozenset({(0, 740_001)})}, 1),
        (dict.fromkeys("abcde", block(2_500, 1)), 3),
        ({"a": frozenset({(0, 740_000), (2_000, 740_000)})}, 2),
        ({}, 0),
    ],
)
@pytest.mark.parametrize("by_customer", [False, True])
def test_number_of_runs(due: Due, runs: int, by_customer: bool) -> None:
    """All queries share a run. Partitions that lie far apart have runs of their own."""
    assert len(cover(due, by_customer=by_customer)) == runs


def test_shape_of_the_runs() -> None:
    """Many customers of few days by default; many days of few customers on request."""
    assert {each.last - each.first for each in cover({"a": block(100, 91)})} == {99}
    assert {each.until - each.since for each in cover({"a": block(100, 91)}, by_customer=True)} == {90}
