"""Cuts sequences of any items into parts, and groups them."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

_Item = TypeVar("_Item")
_Key = TypeVar("_Key", bound=Hashable)


def cut(items: Iterable[_Item], fits: Callable[[Sequence[_Item], _Item], bool]) -> Iterator[list[_Item]]:
    """Cut the items into parts, in their order. An item that does not fit the part before it begins the next one."""
    part: list[_Item] = []
    for item in items:
        if part and not fits(part, item):
            yield part
            part = []
        part.append(item)
    if part:
        yield part


def split_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Cut the items into parts of this size; the last may be smaller. No more than one part is in memory."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Group the items by their keys, in their order."""
    groups: defaultdict[_Key, list[_Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
