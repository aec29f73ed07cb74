"""SQL queries about what readers may see, for whole queries and for single runs.

A run is readable when its partition is a success, the run's own last verdict accepted it, and no demotion is open,
neither of the run nor of the current run. Readers see a readable run once the pointer of its partition is published.
"""

from datetime import date
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.ledger.row_mapping import key_of_table, same_key
from ads_pipeline.ledger.tables import attempts, demotions, load_records, partition_state, runs, warehouse_pointer

# Literals, because the rowset is the only parameter of a prepared statement.
_SUCCESS: Final[sa.ColumnElement[str]] = sa.literal_column("'success'")
_ACCEPTED: Final[sa.ColumnElement[str]] = sa.literal_column("'accepted'")
_PUBLISHED: Final[sa.ColumnElement[str]] = sa.literal_column("'published'")
_ONE: Final[sa.ColumnElement[int]] = sa.literal_column("1")


def visible_runs(*, source: str, query_name: str, since: date | None, until: date | None) -> sa.Select[Any]:
    """The runs of a query that readers may see, by day and customer.

    A partition whose pointer names the current run has only that run. Otherwise a load is in progress, and the table
    may hold any accepted run of the partition, depending on its version.
    """
    is_current = runs.c.run_id == partition_state.c.current_run_id
    is_loading = warehouse_pointer.c.run_id != partition_state.c.current_run_id
    return (
        sa.select(
            partition_state.c.customer_id,
            partition_state.c.logical_date,
            runs.c.run_id,
            is_current.label("is_current"),
            warehouse_pointer.c.table_version,
        )
        .join_from(partition_state, warehouse_pointer, same_key(partition_state, warehouse_pointer))
        .join(runs, same_key(partition_state, runs))
        .where(
            *_in_query(source, query_name, since, until),
            _is_success(),
            warehouse_pointer.c.availability == _PUBLISHED,
            sa.or_(is_current, sa.and_(is_loading, _is_accepted(runs))),
        )
        .order_by(partition_state.c.logical_date, partition_state.c.customer_id, runs.c.run_id)
    )


def expected_contents(*, source: str, query_name: str, since: date | None, until: date | None) -> sa.Select[Any]:
    """The run that the table should hold for each recorded partition of a query, in the order of ExpectedContent.

    It selects few columns, because there may be millions of rows.
    """
    state = partition_state.c
    return (
        sa.select(
            state.customer_id,
            state.logical_date,
            state.current_run_id,
            state.schema_version,
            state.record_count,
            state.status,
            _is_publishable().label("is_publishable"),
            _points_at_current().label("points_at_current"),
        )
        .outerjoin_from(partition_state, warehouse_pointer, same_key(partition_state, warehouse_pointer))
        .where(*_in_query(source, query_name, since, until))
    )


def load_records_with_flag() -> sa.Select[Any]:
    """Each load record, and whether a published pointer of a success names its run."""
    is_shown = sa.and_(
        _is_success(),
        warehouse_pointer.c.availability == _PUBLISHED,
        warehouse_pointer.c.run_id == load_records.c.run_id,
    )
    return (
        sa.select(load_records, sa.func.coalesce(is_shown, sa.false()).label("is_shown"))
        .join_from(load_records, partition_state, same_key(load_records, partition_state))
        .outerjoin(warehouse_pointer, same_key(load_records, warehouse_pointer))
    )


def runs_with_judged_flag_between(*, source: str, since: date, until: date) -> sa.Select[Any]:
    """The registered runs of a source in a window of days, and whether each has a verdict."""
    return sa.select(*key_of_table(runs), runs.c.run_id, _is_judged().label("is_judged")).where(
        runs.c.source == source, runs.c.logical_date >= since, runs.c.logical_date <= until
    )


def last_verdicts() -> sa.Select[Any]:
    """Each registered run with its last outcome, and whether it is the current run of a success."""
    return sa.select(
        *key_of_table(runs), runs.c.run_id, _last_outcome(runs).label("outcome"), _is_current().label("is_current")
    ).join_from(runs, partition_state, same_key(runs, partition_state))


def runs_with_last_outcome(*, source: str) -> sa.Select[Any]:
    """The registered runs of a source in key order, with all columns, the last outcome and the current flag."""
    return (
        sa.select(runs, _last_outcome(runs).label("outcome"), _is_current().label("is_current"))
        .outerjoin_from(runs, partition_state, same_key(runs, partition_state))
        .where(runs.c.source == source)
        .order_by(*key_of_table(runs), runs.c.run_id)
    )


def mismatched_pointers() -> sa.Select[Any]:
    """The published pointers that contradict the ledger, in key order.

    Such a pointer names a run that is not the current run of a success, or `differs` from the run's registration.
    """
    pointer = warehouse_pointer
    differs = sa.or_(
        pointer.c.schema_version.is_distinct_from(runs.c.schema_version),
        pointer.c.record_count.is_distinct_from(runs.c.record_count),
    )
    not_current = pointer.c.run_id.is_distinct_from(partition_state.c.current_run_id)
    return (
        sa.select(
            *key_of_table(pointer),
            pointer.c.run_id,
            partition_state.c.status,
            partition_state.c.current_run_id,
            _last_outcome(pointer).label("outcome"),
            differs.label("differs"),
        )
        .join_from(pointer, partition_state, same_key(pointer, partition_state))
        .join(runs, sa.and_(same_key(runs, pointer), runs.c.run_id == pointer.c.run_id))
        .where(pointer.c.availability == _PUBLISHED, sa.or_(sa.not_(_is_success()), not_current, differs))
        .order_by(*key_of_table(pointer))
    )


def _is_judged() -> sa.ColumnElement[bool]:
    return sa.exists().where(same_key(attempts, runs), attempts.c.run_id == runs.c.run_id)


def _is_success() -> sa.ColumnElement[bool]:
    return partition_state.c.status == _SUCCESS


def _is_current() -> sa.ColumnElement[bool]:
    return sa.and_(_is_success(), runs.c.run_id == partition_state.c.current_run_id)


def _is_publishable() -> sa.ColumnElement[bool]:
    """Whether the table should hold the current run."""
    return sa.and_(_is_success(), sa.not_(_has_open_demotion()))


def _points_at_current() -> sa.ColumnElement[bool]:
    """Whether readers see the current run: a published pointer names it, with the facts that the state has."""
    state, pointer = partition_state.c, warehouse_pointer.c
    same_facts = (
        getattr(pointer, name) == column
        for name, column in {
            "run_id": state.current_run_id,
            "schema_version": state.schema_version,
            "record_count": state.record_count,
        }.items()
    )
    return sa.func.coalesce(sa.and_(pointer.availability == _PUBLISHED, *same_facts), sa.false())


def _has_open_demotion() -> sa.ColumnElement[bool]:
    return _is_demoting(partition_state, partition_state.c.current_run_id)


def _is_demoting(table: sa.FromClause, run_id: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    return sa.exists().where(same_key(demotions, table), demotions.c.run_id == run_id)


def _is_accepted(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether the run's last verdict accepted it, and no rejection of it has begun."""
    return sa.and_(_last_outcome(table) == _ACCEPTED, sa.not_(_is_demoting(table, table.c.run_id)))


def _last_outcome(table: sa.FromClause) -> sa.ScalarSelect[str]:
    return (
        sa.select(attempts.c.outcome)
        .where(same_key(attempts, table), attempts.c.run_id == table.c.run_id)
        .order_by(attempts.c.attempt_no.desc())
        .limit(_ONE)
        .scalar_subquery()
    )


def _in_query(source: str, query_name: str, since: date | None, until: date | None) -> list[sa.ColumnElement[bool]]:
    columns = partition_state.c
    clauses: list[sa.ColumnElement[bool]] = [columns.source == source, columns.query_name == query_name]
    if since is not None:
        clauses.append(columns.logical_date >= since)
    if until is not None:
        clauses.append(columns.logical_date <= until)
    return clauses
