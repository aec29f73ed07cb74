"""Builds the questions about what readers may see: of whole queries, and of runs one by one.

A run is readable while its partition is a success, its own last verdict accepted it, and no demotion of the current
run has begun. Readers are shown a readable run once the warehouse's pointer is there.
"""

from collections.abc import Mapping
from datetime import date
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_of, same_key
from ads_pipeline.ledger.rowsets import Rowset
from ads_pipeline.ledger.tables import attempts, demotions, partition_state, runs, warehouse_pointer

RUN_TYPES: Final[Mapping[str, Any]] = dict(KEY_TYPES) | {"run_id": sa.Text()}
# Literals, because a prepared statement's one parameter is the rowset.
_SUCCESS: Final[sa.ColumnElement[str]] = sa.literal_column("'success'")
_ACCEPTED: Final[sa.ColumnElement[str]] = sa.literal_column("'accepted'")
_ONE: Final[sa.ColumnElement[int]] = sa.literal_column("1")
_POINTER: Final = ("run_id", "schema_version", "record_count", "table_version", "availability", "changed_at")


def publishable_runs(rowset: Rowset) -> sa.Select[Any]:
    """Those of the asked runs that are the current run of a success, and not being demoted."""
    asked = rowset(RUN_TYPES)
    return (
        sa.select(*key_of(asked), asked.c.run_id)
        .join_from(asked, partition_state, same_key(partition_state, asked))
        .where(_succeeded(), partition_state.c.current_run_id == asked.c.run_id, sa.not_(_demoting()))
    )


def readable_runs(rowset: Rowset) -> sa.Select[Any]:
    """Those of the asked runs whose rows may be read, if the warehouse holds them."""
    asked = rowset(RUN_TYPES)
    return (
        sa.select(*key_of(asked), asked.c.run_id)
        .join_from(asked, partition_state, same_key(partition_state, asked))
        .where(_succeeded(), sa.not_(_demoting()), _accepted(asked))
    )


def shown_runs(*, source: str, query_name: str, since: date | None, until: date | None) -> sa.Select[Any]:
    """Every run of the query that readers may see.

    Where the pointer is at the current run this is the only one. Where it is not, a load is under way, and each
    accepted run may be the one that a version of the table holds.
    """
    current = runs.c.run_id == partition_state.c.current_run_id
    loading = warehouse_pointer.c.run_id != partition_state.c.current_run_id
    return (
        sa.select(
            partition_state.c.customer_id,
            partition_state.c.logical_date,
            runs.c.run_id,
            current.label("current"),
            warehouse_pointer.c.table_version,
        )
        .join_from(partition_state, warehouse_pointer, same_key(partition_state, warehouse_pointer))
        .join(runs, same_key(partition_state, runs))
        .where(
            *_of_query(source, query_name, since, until),
            _succeeded(),
            warehouse_pointer.c.availability == "published",
            sa.or_(current, sa.and_(loading, _accepted(runs))),
        )
        .order_by(partition_state.c.logical_date, partition_state.c.customer_id, runs.c.run_id)
    )


def outlines(*, source: str, query_name: str, since: date | None, until: date | None) -> sa.Select[Any]:
    """Of every recorded partition of the query what its table should hold; few columns, as there are very many."""
    state, pointer = partition_state.c, warehouse_pointer.c
    pointed = sa.and_(pointer.run_id == state.current_run_id, pointer.availability == "published")
    return (
        sa.select(
            state.customer_id,
            state.logical_date,
            state.current_run_id,
            state.schema_version,
            state.record_count,
            sa.and_(_succeeded(), sa.not_(_demoting())).label("publishable"),
            pointed.label("pointed"),
        )
        .outerjoin_from(partition_state, warehouse_pointer, same_key(partition_state, warehouse_pointer))
        .where(*_of_query(source, query_name, since, until))
    )


def standings(*, source: str, query_name: str, since: date | None, until: date | None) -> sa.Select[Any]:
    """Every recorded partition of the query with its pointer, by day and customer."""
    return (
        sa.select(*_standing())
        .outerjoin_from(partition_state, warehouse_pointer, same_key(partition_state, warehouse_pointer))
        .where(*_of_query(source, query_name, since, until))
        .order_by(partition_state.c.logical_date, partition_state.c.customer_id)
    )


def standings_of(rowset: Rowset) -> sa.Select[Any]:
    """The same of the asked partitions."""
    asked = rowset(KEY_TYPES)
    return (
        sa.select(*_standing())
        .join_from(asked, partition_state, same_key(partition_state, asked))
        .outerjoin(warehouse_pointer, same_key(partition_state, warehouse_pointer))
    )


def known_runs(rowset: Rowset) -> sa.Select[Any]:
    """Every registered run of the asked partitions, oldest first in each, and whether it was ever judged."""
    asked = rowset(KEY_TYPES)
    return (
        sa.select(*key_of(runs), runs.c.run_id, _judged().label("judged"))
        .join_from(asked, runs, same_key(runs, asked))
        .order_by(*key_of(runs), runs.c.ordinal)
    )


def newest_runs(rowset: Rowset) -> sa.Select[Any]:
    """The newest registered run of each asked partition, with its last verdict."""
    asked = rowset(KEY_TYPES)
    others = runs.alias("others")
    newest = sa.select(sa.func.max(others.c.ordinal)).where(same_key(others, runs)).scalar_subquery()
    return (
        sa.select(runs, _last_outcome(runs).label("outcome"))
        .join_from(asked, runs, same_key(runs, asked))
        .where(runs.c.ordinal == newest)
    )


def runs_by_day(*, source: str, since: date, until: date) -> sa.Select[Any]:
    """Every registered run in these days, and whether it was ever judged."""
    return sa.select(*key_of(runs), runs.c.run_id, _judged().label("judged")).where(
        runs.c.source == source, runs.c.logical_date >= since, runs.c.logical_date <= until
    )


def verdicts() -> sa.Select[Any]:
    """Every registered run with its last verdict, and whether it is the current run of a success."""
    current = sa.and_(_succeeded(), runs.c.run_id == partition_state.c.current_run_id)
    return sa.select(
        *key_of(runs), runs.c.run_id, _last_outcome(runs).label("outcome"), current.label("current")
    ).join_from(runs, partition_state, same_key(runs, partition_state))


def examined_runs(*, source: str) -> sa.Select[Any]:
    """Every registered run of a source by its name, with its last verdict, and whether it is current."""
    current = sa.and_(_succeeded(), runs.c.run_id == partition_state.c.current_run_id)
    return (
        sa.select(runs, _last_outcome(runs).label("outcome"), current.label("current"))
        .outerjoin_from(runs, partition_state, same_key(runs, partition_state))
        .where(runs.c.source == source)
        .order_by(*key_of(runs), runs.c.run_id)
    )


def astray_pointers() -> sa.Select[Any]:
    """The published pointers that are not at the current run of a success, or say something else of their run."""
    pointer = warehouse_pointer
    differs = sa.or_(
        pointer.c.schema_version.is_distinct_from(runs.c.schema_version),
        pointer.c.record_count.is_distinct_from(runs.c.record_count),
    )
    elsewhere = sa.or_(
        sa.not_(_succeeded()), pointer.c.run_id.is_distinct_from(partition_state.c.current_run_id), differs
    )
    return (
        sa.select(
            *key_of(pointer),
            pointer.c.run_id,
            partition_state.c.status,
            partition_state.c.current_run_id,
            _last_outcome(pointer).label("outcome"),
            differs.label("differs"),
        )
        .join_from(pointer, partition_state, same_key(pointer, partition_state))
        .join(runs, sa.and_(same_key(runs, pointer), runs.c.run_id == pointer.c.run_id))
        .where(pointer.c.availability == "published", elsewhere)
        .order_by(*key_of(pointer))
    )


def _standing() -> list[Any]:
    unjudged = sa.exists().where(same_key(runs, partition_state), sa.not_(_judged()))
    return [
        *partition_state.c,
        *(warehouse_pointer.c[name].label(f"pointer_{name}") for name in _POINTER),
        _demoting().label("demoting"),
        sa.and_(sa.not_(_succeeded()), unjudged).label("unjudged"),
    ]


def _judged() -> sa.ColumnElement[bool]:
    return sa.exists().where(same_key(attempts, runs), attempts.c.run_id == runs.c.run_id)


def _succeeded() -> sa.ColumnElement[bool]:
    return partition_state.c.status == _SUCCESS


def _demoting() -> sa.ColumnElement[bool]:
    return sa.exists().where(
        same_key(demotions, partition_state), demotions.c.run_id == partition_state.c.current_run_id
    )


def _accepted(asked: sa.FromClause) -> sa.ColumnElement[bool]:
    """Whether the last verdict on the run accepted it; a run that was never judged was not accepted."""
    return _last_outcome(asked) == _ACCEPTED


def _last_outcome(asked: sa.FromClause) -> sa.ScalarSelect[str]:
    return (
        sa.select(attempts.c.outcome)
        .where(same_key(attempts, asked), attempts.c.run_id == asked.c.run_id)
        .order_by(attempts.c.attempt_no.desc())
        .limit(_ONE)
        .scalar_subquery()
    )


def _of_query(source: str, query_name: str, since: date | None, until: date | None) -> list[sa.ColumnElement[bool]]:
    columns = partition_state.c
    conditions: list[sa.ColumnElement[bool]] = [columns.source == source, columns.query_name == query_name]
    if since is not None:
        conditions.append(columns.logical_date >= since)
    if until is not None:
        conditions.append(columns.logical_date <= until)
    return conditions
