"""Reads partition states: one, many, page by page, and their number by status.

A ledger may hold millions of partitions, so each list and count is written for one index. A test checks the query
plans.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import KEY, partition_state
from ads_pipeline.ledger.sql.ledger_values import MAX_PAGE_SIZE, StateFilter
from ads_pipeline.ledger.sql.row_mapping import KEY_TYPES, decode_state, encode_key, key_of_table
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Statement

_READ_STATES: Final = Statement(
    "read_states",
    {**KEY_COLUMNS, "position": "integer"},
    """
    SELECT position, partition_state.*
    FROM given JOIN partition_state USING (source, customer_id, query_name, logical_date)
    """,
)
# Literals, because SQLite uses a partial index only when the statement's text implies the index condition.
_HAS_STATUS: Final = {status: partition_state.c.status == sa.literal_column(f"'{status}'") for status in Status}
_NOT_SUCCESS: Final = partition_state.c.status != sa.literal_column("'success'")
_DAY_INDEX: Final = ("source", "query_name", "logical_date", "customer_id")


class States:
    """The states of all partitions."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def get(self, key: PartitionKey) -> PartitionState:
        """Return the state of a partition. A partition without a row is pending."""
        return self.get_many([key])[key]

    def get_many(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        """Return the state of each partition, in the order of the keys."""
        unique_keys = list(dict.fromkeys(keys))
        requested = ((*encode_key(key), position) for position, key in enumerate(unique_keys))
        rows = {row.position: row for row in _READ_STATES.fetch(self._engine, requested)}
        return {
            key: decode_state(rows[position], key) if position in rows else PartitionState.absent(key)
            for position, key in enumerate(unique_keys)
        }

    def page(
        self, state_filter: StateFilter, *, after: PartitionKey | None = None, limit: int = 1000
    ) -> list[PartitionState]:
        """Return one page of the recorded states that match, in key order, starting after a key.

        An empty page is the end. Raises ValueError for a limit outside 1 to 10,000.
        """
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise ValueError(f"limit must be 1 to {MAX_PAGE_SIZE}, not {limit}")
        where = *conditions(state_filter), *_after_key(after, state_filter)
        statement = sa.select(partition_state).where(*where).order_by(*key_of_table(partition_state)).limit(limit)
        return list(map(decode_state, database.fetch(self._engine, statement)))

    def iterate(self, state_filter: StateFilter, *, limit: int = 1000) -> Iterator[PartitionState]:
        """Iterate over all recorded states that match, one query per page. Concurrent changes may be missed."""
        after = None
        while page := self.page(state_filter, after=after, limit=limit):
            yield from page
            after = page[-1].key

    def count_by_status(
        self, state_filter: StateFilter, *, after: PartitionKey | None = None, max_count: int | None = None
    ) -> dict[Status, int]:
        """Return the number of recorded partitions that match, by status. With `after`, only later keys count.

        With `max_count`, counting stops at `max_count` + 1 per status, so that its cost has a bound.
        """

        def count(connection: sa.Connection) -> dict[Status, int]:
            names = state_filter.query_names or frozenset[str]()
            if state_filter.query_names is None and _uses_day_index(state_filter):
                names = frozenset(connection.scalars(_query_names(str(state_filter.source))))
            counts = dict.fromkeys(Status, 0)
            parts = _count_by_status(state_filter, after, max_count, names)
            for row in connection.execute(sa.union_all(*parts)) if parts else ():
                counts[Status(row.status)] += row.partitions
            if max_count is None:
                return counts
            return {status: min(number, max_count + 1) for status, number in counts.items()}

        return database.transact(self._engine, count)

    def customers(self, source: str) -> list[str]:
        """Return the ids of all customers with a recorded partition of the source, sorted."""
        statement = sa.select(partition_state.c.customer_id).where(partition_state.c.source == source).distinct()
        return sorted(row.customer_id for row in database.fetch(self._engine, statement))


def _count_by_status(
    state_filter: StateFilter, after: PartitionKey | None, max_count: int | None, names: Collection[str]
) -> list[sa.Select[str, int]]:
    """Queries that count the matching states of each status. Each stops counting at `max_count` + 1.

    When the day index serves the filter, successes are counted by one query per name in `names`. The caller passes
    the filter's query names, or all of them.
    """
    statuses = [status for status in Status if state_filter.statuses is None or status in state_filter.statuses]
    by_day = _uses_day_index(state_filter)
    parts = [(status, state_filter) for status in statuses if not (status is Status.SUCCESS and by_day)]
    if Status.SUCCESS in statuses and by_day:
        parts += [(Status.SUCCESS, replace(state_filter, query_names=frozenset({name}))) for name in sorted(names)]
    return [_count(part, status, after, max_count) for status, part in parts]


def _uses_day_index(state_filter: StateFilter) -> bool:
    """Return true when the index on source, query and date serves this filter."""
    has_window = state_filter.since is not None or state_filter.until is not None
    return has_window and state_filter.source is not None and state_filter.customer_ids is None


def _query_names(source: str) -> sa.Select[Any]:
    """The distinct query names of a source. The recursion takes one index lookup per name."""
    columns = partition_state.c
    smallest = sa.select(sa.func.min(columns.query_name)).where(columns.source == source)
    names = smallest.cte("names", recursive=True)
    (name,) = names.c
    following = smallest.where(columns.query_name > name).scalar_subquery()
    names = names.union_all(sa.select(following).where(name.is_not(None)))
    return sa.select(names.c[0].label("query_name")).where(names.c[0].is_not(None))


def conditions(state_filter: StateFilter, *, is_rare_status: bool = False) -> list[sa.ColumnElement[bool]]:
    """The WHERE conditions of a filter.

    For a rare status, the query name is compared as an expression, which no index covers. SQLite has no statistics
    and would otherwise read all partitions of a query to find the few that failed.
    """
    columns = partition_state.c
    name = _unindexed(columns.query_name) if is_rare_status else columns.query_name
    clauses: list[sa.ColumnElement[bool]] = [
        column.in_(sorted(values))
        for column, values in ((columns.customer_id, state_filter.customer_ids), (name, state_filter.query_names))
        if values is not None
    ]
    if state_filter.statuses is not None:
        clauses += _has_any_status(state_filter.statuses)
    if state_filter.source is not None:
        clauses.append(columns.source == state_filter.source)
    if state_filter.since is not None:
        clauses.append(columns.logical_date >= state_filter.since)
    if state_filter.until is not None:
        clauses.append(columns.logical_date <= state_filter.until)
    return clauses


def _count(
    state_filter: StateFilter, status: Status, after: PartitionKey | None, max_count: int | None
) -> sa.Select[str, int]:
    """The number of matching states of one status.

    The rows are limited in index order, which needs no sort. Without the order, Postgres would scan the table.
    """
    one_status = replace(state_filter, statuses=frozenset({status}))
    is_success = status is Status.SUCCESS
    where = [*conditions(one_status, is_rare_status=not is_success), *_after_key(after, state_filter)]
    rows: sa.Select[Any] = sa.select(sa.literal_column("1")).select_from(partition_state).where(*where)
    if max_count is not None:
        order = _DAY_INDEX if is_success and _uses_day_index(state_filter) else KEY
        rows = rows.order_by(*(partition_state.c[name] for name in order)).limit(max_count + 1)
    number = sa.func.count().label("partitions")
    return sa.select(sa.literal(str(status)).label("status"), number).select_from(rows.subquery())


def _has_any_status(statuses: Collection[Status]) -> Iterable[sa.ColumnElement[bool]]:
    """The status condition, written so that the partial indexes on `failed` and on `not success` apply."""
    if not set(statuses) < set(Status):
        return []
    any_of = sa.or_(sa.false(), *(_HAS_STATUS[status] for status in sorted(statuses)))
    excludes_success = Status.PENDING in statuses and Status.SUCCESS not in statuses
    return [any_of, _NOT_SUCCESS] if excludes_success else [any_of]


def _after_key(after: PartitionKey | None, state_filter: StateFilter) -> list[sa.ColumnElement[bool]]:
    """The condition that a row's key is greater than `after`.

    Leading key columns that the filter fixes to one value are left out of the comparison. Then an index scan can
    start at the first free column. For several customers the customer column is compared unindexed, so that the
    index finds each customer by equality.
    """
    if after is None:
        return []
    fixed = (
        _single(state_filter.source and {state_filter.source}),
        _single(state_filter.customer_ids),
        _single(state_filter.query_names),
    )
    same = [value == getattr(after, name) for value, name in zip(fixed, KEY, strict=False)]
    names = KEY[same.index(False) if False in same else len(same) :]
    start = sa.tuple_(*(sa.literal(getattr(after, name), KEY_TYPES[name]) for name in names))
    columns: list[sa.ColumnElement[Any]] = [partition_state.c[name] for name in names]
    if names[0] == "customer_id" and state_filter.customer_ids:
        columns[0] = _unindexed(columns[0])
    return [sa.tuple_(*columns) > start]


def _unindexed(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The column as an expression that no index covers."""
    return column + sa.literal_column("''", sa.Text)


def _single(values: Collection[str] | None) -> str | None:
    return next(iter(values)) if values and len(values) == 1 else None
