"""SQL queries that list and count partition states.

A ledger may hold millions of partitions, so each query is written for one index. A test checks the query plans.
Queries about what readers may see are in `visibility_queries`.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_of_table
from ads_pipeline.ledger.tables import KEY, partition_state
from ads_pipeline.ledger.values import StateFilter

# Literals, because SQLite uses a partial index only when the statement's text implies the index condition.
_HAS_STATUS: Final = {status: partition_state.c.status == sa.literal_column(f"'{status}'") for status in Status}
_NOT_SUCCESS: Final = partition_state.c.status != sa.literal_column("'success'")
_DAY_INDEX: Final = ("source", "query_name", "logical_date", "customer_id")


def page_of_states(state_filter: StateFilter, *, after: PartitionKey | None, limit: int) -> sa.Select[Any]:
    """Up to `limit` matching states in key order, starting after a key."""
    statement = sa.select(partition_state).where(*conditions(state_filter), *_after_key(after, state_filter))
    return statement.order_by(*key_of_table(partition_state)).limit(limit)


def counts_by_status(
    state_filter: StateFilter, *, after: PartitionKey | None, max_count: int | None, names: Collection[str]
) -> list[sa.Select[str, int]]:
    """Queries that count the matching states of each status. Each stops counting at `max_count` + 1.

    When the day index serves the filter, successes are counted by one query per name in `names`. The caller passes
    the filter's query names, or all of them.
    """
    statuses = [status for status in Status if state_filter.statuses is None or status in state_filter.statuses]
    by_day = uses_day_index(state_filter)
    parts = [(status, state_filter) for status in statuses if not (status is Status.SUCCESS and by_day)]
    if Status.SUCCESS in statuses and by_day:
        parts += [(Status.SUCCESS, replace(state_filter, query_names=frozenset({name}))) for name in sorted(names)]
    return [_count(part, status, after, max_count) for status, part in parts]


def uses_day_index(state_filter: StateFilter) -> bool:
    """Whether the index on source, query and date serves this filter."""
    has_window = state_filter.since is not None or state_filter.until is not None
    return has_window and state_filter.source is not None and state_filter.customer_ids is None


def query_names(source: str) -> sa.Select[Any]:
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
        order = _DAY_INDEX if is_success and uses_day_index(state_filter) else KEY
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
