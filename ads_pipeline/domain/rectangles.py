"""Covers the due partitions of several queries with few rectangles of customers and days.

A run in Dagster covers a whole rectangle, of the same customers and days for each of its assets. Partitions of the
rectangle that are not due cost time, and so does each further run. The cover weighs the one against the other.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_PARTITIONS: Final = 1_000  # of each asset in one run
# A run costs about 3 s to create and to start; a partition that is left as it is costs about 15 ms of events.
PARTITIONS_WORTH_A_RUN: Final = 200
MAX_OPEN: Final = 64  # bounds the search for a rectangle that a stretch can join

Cell = tuple[int, int]  # the position of a customer in Dagster's order, and the ordinal of a day
Cells = Mapping[str, frozenset[Cell]]  # by query


@dataclass(slots=True, kw_only=True)
class Rectangle:
    """Customers and days from the first to the last of each, both included. `due` are the due cells of each query."""

    first: int
    last: int
    since: int
    until: int
    due: dict[str, set[Cell]] = field(default_factory=dict)
    stretches: int = 1  # runs that exact ranges would need

    @property
    def size(self) -> int:
        """The number of partitions of each query."""
        return (self.last - self.first + 1) * (self.until - self.since + 1)

    @property
    def waste(self) -> int:
        """The number of partitions of all queries that are not due."""
        return self.size * len(self.due) - sum(map(len, self.due.values()))


def cover(due: Cells, *, by_customer: bool = False) -> list[Rectangle]:
    """Rectangles that cover each due cell once, each with at most 1,000 partitions of a query.

    They join either stretches of customers on following days, or with `by_customer` stretches of days of following
    customers. Of two covers with the same number of rectangles, the other way needs fewer files of the warehouse to
    be written again, and `by_customer` fewer requests of the source. The cheaper cover is taken.
    """
    wide = _sweep(due)
    tall = [_transpose(each) for each in _sweep({query: _transposed(cells) for query, cells in due.items()})]
    preferred, other = (tall, wide) if by_customer else (wide, tall)
    return preferred if _cost(preferred) <= _cost(other) else other


def _cost(rectangles: Iterable[Rectangle]) -> int:
    return sum(PARTITIONS_WORTH_A_RUN + each.waste for each in rectangles)


def _sweep(due: Cells) -> list[Rectangle]:
    """Join the stretches of each day, from the first day to the last, to rectangles that are worth it."""
    finished: list[Rectangle] = []
    unfinished: deque[Rectangle] = deque(maxlen=MAX_OPEN)
    for stretch in sorted(_find_stretches(due), key=lambda each: (each.since, each.first, *each.due)):
        for position, rectangle in enumerate(unfinished):
            joined = _join(rectangle, stretch)
            if joined is not None:
                unfinished[position] = joined
                break
        else:
            if len(unfinished) == MAX_OPEN:
                finished.append(unfinished.pop())
            unfinished.appendleft(stretch)
    return sorted([*finished, *unfinished], key=lambda each: (each.since, each.first))


def _find_stretches(due: Cells) -> Iterator[Rectangle]:
    """The stretches of following customers on each day of each query, cut at 1,000 customers."""
    for query, cells in due.items():
        current: Rectangle | None = None
        for customer, day in sorted(cells, key=lambda cell: (cell[1], cell[0])):
            follows = current is not None and (current.since, current.last) == (day, customer - 1)
            if current is not None and follows and current.size < MAX_PARTITIONS:
                current.last = customer
                current.due[query].add((customer, day))
                continue
            if current is not None:
                yield current
            current = Rectangle(first=customer, last=customer, since=day, until=day, due={query: {(customer, day)}})
        if current is not None:
            yield current


def _join(rectangle: Rectangle, stretch: Rectangle) -> Rectangle | None:
    """Both in one rectangle, or None when that is too large or costs more than a further run."""
    joined = Rectangle(
        first=min(rectangle.first, stretch.first),
        last=max(rectangle.last, stretch.last),
        since=rectangle.since,
        until=stretch.until,
        due=rectangle.due,
        stretches=rectangle.stretches + (not _continues(rectangle, stretch)),
    )
    if joined.size > MAX_PARTITIONS:
        return None
    (query, cells), *_ = stretch.due.items()
    queries = len(joined.due) + (query not in joined.due)
    waste = joined.size * queries - sum(map(len, joined.due.values())) - len(cells)
    if waste > PARTITIONS_WORTH_A_RUN * (joined.stretches - 1):
        return None
    joined.due.setdefault(query, set()).update(cells)
    return joined


def _continues(rectangle: Rectangle, stretch: Rectangle) -> bool:
    """True if exact ranges would need no further run for the stretch."""
    same_customers = (rectangle.first, rectangle.last) == (stretch.first, stretch.last)
    return same_customers and stretch.since <= rectangle.until + 1 and stretch.due.keys() <= rectangle.due.keys()


def _transposed(cells: frozenset[Cell]) -> frozenset[Cell]:
    return frozenset((day, customer) for customer, day in cells)


def _transpose(rectangle: Rectangle) -> Rectangle:
    return Rectangle(
        first=rectangle.since,
        last=rectangle.until,
        since=rectangle.first,
        until=rectangle.last,
        due={query: set(_transposed(frozenset(cells))) for query, cells in rectangle.due.items()},
    )
