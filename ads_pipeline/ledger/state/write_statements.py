"""Builds the ledger's writing statements, once for each dialect."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ads_pipeline.ledger.control.tables import failed_fetches, parkings, requests, terminal_marks
from ads_pipeline.ledger.row_mapping import KEY_TYPES, clock_of, insert_into, key_of, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.state.verdict_statements import locked_states, read_for_judging, record_verdicts
from ads_pipeline.ledger.state.visibility_queries import RUN_TYPES
from ads_pipeline.ledger.tables import (
    KEY,
    Instant,
    acted_partitions,
    demotions,
    load_records,
    operator_acts,
    partition_state,
    runs,
    warehouse_pointer,
)

_NEW_STATE: Final = (*KEY, "status", "updated_at")
_STATE_ROW: Final[Mapping[str, Any]] = {column.name: column.type for column in partition_state.c}
_STATE_CHANGES: Final = tuple(column.name for column in partition_state.c if column.name not in KEY)


class Statements:
    """Every statement that `writer` runs."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.read_clock = sa.select(clock_of(dialect))
        self.lock_states = self._named("lock_states", lambda rowset: locked_states(rowset(KEY_TYPES)))
        self.insert_pending = self._insert(partition_state, _NEW_STATE, skip_present=True)
        self.update_states = self._named("update_states", _update_states)
        self.read_for_judging = self._named(
            "read_for_judging", lambda rowset: read_for_judging(rowset, clock_of(dialect))
        )
        self.record_verdicts = record_verdicts(dialect)
        self.read_for_registering = self._named("read_for_registering", _read_for_registering)
        self.insert_runs = self._insert(runs)
        self.put_pointers = self._named("put_pointers", lambda rowset: self._put(rowset, warehouse_pointer))
        self.withdraw_pointers = self._named("withdraw_pointers", _withdraw_pointers)
        self.insert_demotions = self._insert(demotions, skip_present=True)
        self.end_demotions = self._named("end_demotions", _end_demotions)
        self.demoting_of = self._named("demoting_of", _demoting_of)
        self.insert_load_records = self._insert(load_records, skip_present=True)
        self.insert_act = sa.insert(operator_acts)
        self.insert_acted = self._insert(acted_partitions)
        self.acts_of = self._named("acts_of", _acts_of)
        self.put_requests = self._named("put_requests", lambda rowset: self._put(rowset, requests))
        self.open_requests_of = self._named("open_requests_of", _open_requests_of)
        self.insert_fetches = self._insert(failed_fetches)
        self.fetches_of = self._named("fetches_of", _fetches_of)
        self.insert_parking = insert_into(dialect, parkings).on_conflict_do_nothing()
        self.delete_parking = sa.delete(parkings).where(
            *(parkings.c[name] == sa.bindparam(f"its_{name}") for name in ("source", "scope", "name"))
        )
        self.insert_marks = self._insert(terminal_marks)
        self.marks_of = self._named("marks_of", _marks_of)
        self.clear_marks = self._named("clear_marks", _clear_marks)
        act_id: sa.BindParameter[str] = sa.bindparam("act_id")
        self.read_act = sa.select(operator_acts).where(operator_acts.c.act_id == act_id)
        self.read_acted = sa.select(*key_of(acted_partitions)).where(acted_partitions.c.act_id == act_id)

    def _named(self, name: str, build: Callable[[Rowset], sa.Executable]) -> RowStatement:
        return RowStatement(name, self._dialect, build)

    def _insert(
        self, table: sa.Table, names: tuple[str, ...] | None = None, *, skip_present: bool = False
    ) -> RowStatement:
        columns = names or tuple(column.name for column in table.c)

        def build(rowset: Rowset) -> sa.Insert:
            insert = self._from_rowset(rowset, table, columns)
            return insert.on_conflict_do_nothing() if skip_present else insert

        return self._named(f"insert_{table.name}", build)

    def _from_rowset(
        self, rowset: Rowset, table: sa.Table, names: tuple[str, ...]
    ) -> postgresql.Insert | sqlite.Insert:
        columns: dict[str, Any] = {name: table.c[name].type for name in names}
        asked = rowset(columns)
        rows = sa.select(*(asked.c[name] for name in names)).where(sa.true())  # else SQLite takes ON for a join's
        rows = rows.order_by(*(asked.c[name] for name in names if table.c[name].primary_key))
        return insert_into(self._dialect, table).from_select(names, rows)

    def _put(self, rowset: Rowset, table: sa.Table) -> sa.Insert:
        """A row for each partition, in the place of the one that is there."""
        names = tuple(column.name for column in table.c)
        insert = self._from_rowset(rowset, table, names)
        changed = {name: insert.excluded[name] for name in names if name not in KEY}
        return insert.on_conflict_do_update(index_elements=list(KEY), set_=changed)


def _update_states(rowset: Rowset) -> sa.Update:
    asked = rowset(_STATE_ROW)
    return (
        sa.update(partition_state)
        .values({name: asked.c[name] for name in _STATE_CHANGES})
        .where(same_key(partition_state, asked))
    )


def _read_for_registering(rowset: Rowset) -> sa.Select[Any]:
    """Each asked run as it is known, and the newest ordinal of its partition."""
    asked = rowset(dict(KEY_TYPES) | {"place": sa.Integer(), "run_id": sa.Text()})
    others = runs.alias("others")
    newest = sa.select(sa.func.max(others.c.ordinal)).where(same_key(others, asked)).scalar_subquery()
    return (
        sa.select(asked.c.place, runs, newest.label("newest_ordinal"))
        .select_from(asked)
        .outerjoin(runs, sa.and_(same_key(runs, asked), runs.c.run_id == asked.c.run_id))
        .order_by(asked.c.place)
    )


def _withdraw_pointers(rowset: Rowset) -> sa.Update:
    asked = rowset(dict(KEY_TYPES) | {"changed_at": Instant()})
    literal = sa.literal_column
    return (
        sa.update(warehouse_pointer)
        .values(availability=literal("'unavailable'"), changed_at=asked.c.changed_at)
        .where(same_key(warehouse_pointer, asked), warehouse_pointer.c.availability == literal("'published'"))
    )


def _demoting_of(rowset: Rowset) -> sa.Select[Any]:
    """Those of the asked runs whose demotion has begun."""
    asked = rowset(RUN_TYPES)
    return sa.select(*key_of(demotions), demotions.c.run_id).join_from(
        asked, demotions, sa.and_(same_key(demotions, asked), demotions.c.run_id == asked.c.run_id)
    )


def _end_demotions(rowset: Rowset) -> sa.Delete:
    asked = rowset(dict(RUN_TYPES) | {"validation_id": sa.Text()})
    names = (*KEY, "run_id", "validation_id")
    recorded = sa.select(*(asked.c[name] for name in names))
    return sa.delete(demotions).where(sa.tuple_(*(demotions.c[name] for name in names)).in_(recorded))


def _acts_of(rowset: Rowset) -> sa.Select[Any]:
    """The key of each asked partition, as often as an act was carried out on it."""
    asked = rowset(KEY_TYPES)
    return sa.select(*key_of(acted_partitions)).join_from(asked, acted_partitions, same_key(acted_partitions, asked))


def _open_requests_of(rowset: Rowset) -> sa.Select[Any]:
    """Those of the asked partitions of which a new run is wanted already."""
    asked = rowset(KEY_TYPES)
    return (
        sa.select(*key_of(requests))
        .join_from(asked, requests, same_key(requests, asked))
        .join(partition_state, same_key(partition_state, requests))
        .where(partition_state.c.attempt_count == requests.c.attempt_no)
    )


def _fetches_of(rowset: Rowset) -> sa.Select[Any]:
    """The key of each asked partition, as often as a fetch of it failed."""
    asked = rowset(KEY_TYPES)
    return sa.select(*key_of(failed_fetches)).join_from(asked, failed_fetches, same_key(failed_fetches, asked))


def _marks_of(rowset: Rowset) -> sa.Select[Any]:
    asked = rowset(KEY_TYPES)
    return sa.select(*key_of(terminal_marks)).join_from(asked, terminal_marks, same_key(terminal_marks, asked))


def _clear_marks(rowset: Rowset) -> sa.Delete:
    asked = rowset(KEY_TYPES)
    return sa.delete(terminal_marks).where(sa.tuple_(*key_of(terminal_marks)).in_(sa.select(*key_of(asked))))
