"""Builds the questions that list states: which match, in key order, and how many do.

A ledger may hold millions of partitions, so each question is put as one index answers it; a test names the indexes.
Questions about what readers may see are in `questions`.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_of
from ads_pipeline.ledger.tables import KEY, partition_state
from ads_pipeline.ledger.values import StateFilter

# Literals, because SQLite takes a partial index only where it can see that the condition holds.
_IS: Final = {status: partition_state.c.status == sa.literal_column(f"'{status}'") for status in Status}
BY_DAY: Final = ("source", "query_name", "logical_date", "customer_id")
_NOT_READY: Final = partition_state.c.status != sa.literal_column("'success'")


def page(wanted: StateFilter, *, after: PartitionKey | None, limit: int) -> sa.Select[Any]:
    """So many of the states that match, in key order, from just after a key."""
    statement = sa.select(partition_state).where(*conditions(wanted), *_beyond(after, wanted))
    return statement.order_by(*key_of(partition_state)).limit(limit)


def counts(
    wanted: StateFilter, *, after: PartitionKey | None, most: int | None, names: Collection[str]
) -> list[sa.Select[str, int]]:
    """How many match, by status, in one question or several for each; none counts further than one beyond `most`.

    `names` are the queries that there are, where the filter asks for those: the index by day is entered by one.
    """
    statuses = [status for status in Status if wanted.statuses is None or status in wanted.statuses]
    parts = [(status, wanted) for status in statuses if not (status is Status.SUCCESS and is_by_day(wanted))]
    if Status.SUCCESS in statuses and is_by_day(wanted):
        parts += [(Status.SUCCESS, replace(wanted, query_names=frozenset({name}))) for name in sorted(names)]
    return [_count(part, status, after, most) for status, part in parts]


def is_by_day(wanted: StateFilter) -> bool:
    """Whether the index by day is the one that finds what matches."""
    days = wanted.since is not None or wanted.until is not None
    return days and wanted.source is not None and wanted.customer_ids is None


def query_names(source: str) -> sa.Select[Any]:
    """The names of all queries of a source that has a partition, by one step each in the index by day."""
    columns = partition_state.c
    of_source = sa.select(sa.func.min(columns.query_name)).where(columns.source == source)
    names = of_source.cte("names", recursive=True)
    (name,) = names.c
    later = of_source.where(columns.query_name > name).scalar_subquery()
    names = names.union_all(sa.select(later).where(name.is_not(None)))
    return sa.select(names.c[0].label("query_name")).where(names.c[0].is_not(None))


def conditions(wanted: StateFilter, *, rare: bool = False) -> list[sa.ColumnElement[bool]]:
    """What the filter lets pass. Of a rare status, a query's name is compared as a value that no index knows.

    SQLite, which has no statistics, would else look at all partitions of a query for the few that failed.
    """
    columns = partition_state.c
    name = _unindexed(columns.query_name) if rare else columns.query_name
    told: list[sa.ColumnElement[bool]] = [
        column.in_(sorted(values))
        for column, values in ((columns.customer_id, wanted.customer_ids), (name, wanted.query_names))
        if values is not None
    ]
    if wanted.statuses is not None:
        told += _status_in(wanted.statuses)
    if wanted.source is not None:
        told.append(columns.source == wanted.source)
    if wanted.since is not None:
        told.append(columns.logical_date >= wanted.since)
    if wanted.until is not None:
        told.append(columns.logical_date <= wanted.until)
    return told


def _count(wanted: StateFilter, status: Status, after: PartitionKey | None, most: int | None) -> sa.Select[str, int]:
    """In the order of the index, which takes no sorting: else Postgres would read the table from its start."""
    one = replace(wanted, statuses=frozenset({status}))
    where = [*conditions(one, rare=status is not Status.SUCCESS), *_beyond(after, wanted)]
    found: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(partition_state).where(*where)
    if most is not None:
        by_day = status is Status.SUCCESS and is_by_day(wanted)
        found = found.order_by(*(partition_state.c[name] for name in (BY_DAY if by_day else KEY))).limit(most + 1)
    number = sa.func.count().label("partitions")
    return sa.select(sa.literal(str(status)).label("status"), number).select_from(found.subquery())


def _status_in(statuses: Collection[Status]) -> Iterable[sa.ColumnElement[bool]]:
    """One of these, and said so that the indexes of failed partitions and of those not ready are seen to hold it."""
    if not set(statuses) < set(Status):
        return []
    one_of = sa.or_(sa.false(), *(_IS[status] for status in sorted(statuses)))
    return [one_of, _NOT_READY] if Status.PENDING in statuses and Status.SUCCESS not in statuses else [one_of]


def _beyond(after: PartitionKey | None, wanted: StateFilter) -> list[sa.ColumnElement[bool]]:
    """The partitions behind a key, in key order.

    The key's first columns are left out where the filter lets only their value pass: an index finds the place by a
    comparison that begins with the first column that is open. Several customers are found one by one instead.
    """
    if after is None:
        return []
    fixed = (_only(wanted.source and {wanted.source}), _only(wanted.customer_ids), _only(wanted.query_names))
    same = [value == getattr(after, name) for value, name in zip(fixed, KEY, strict=False)]
    names = KEY[same.index(False) if False in same else len(same) :]
    place = sa.tuple_(*(sa.literal(getattr(after, name), KEY_TYPES[name]) for name in names))
    columns: list[sa.ColumnElement[Any]] = [partition_state.c[name] for name in names]
    if names[0] == "customer_id" and wanted.customer_ids:
        columns[0] = _unindexed(columns[0])
    return [sa.tuple_(*columns) > place]


def _unindexed(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The column as a value that no index knows."""
    return column + sa.literal_column("''", sa.Text)


def _only(values: Collection[str] | None) -> str | None:
    return next(iter(values)) if values and len(values) == 1 else None
