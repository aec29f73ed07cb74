"""The SQL statements that write to the ledger, built once per dialect."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ads_pipeline.ledger.control.tables import failed_fetches, parkings, requests, terminal_marks
from ads_pipeline.ledger.row_mapping import KEY_TYPES, database_clock, insert_into, key_of_table, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.state.verdict_statements import locked_states, locked_verdict_rows, recording_statements
from ads_pipeline.ledger.state.visibility_queries import RUN_TYPES, pointers
from ads_pipeline.ledger.tables import (
    KEY,
    Instant,
    control_action_partitions,
    control_actions,
    demotions,
    load_records,
    partition_state,
    runs,
    warehouse_pointer,
)

_NEW_STATE: Final = (*KEY, "status", "updated_at")
_STATE_ROW: Final[Mapping[str, Any]] = {column.name: column.type for column in partition_state.c}
_STATE_CHANGES: Final = tuple(column.name for column in partition_state.c if column.name not in KEY)


class WriteStatements:
    """The statements of the ledger's write transactions."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.read_clock = sa.select(database_clock(dialect))
        self.lock_states = self._named("lock_states", lambda rowset: locked_states(rowset(KEY_TYPES)))
        self.insert_pending = self._insert(partition_state, _NEW_STATE, skip_present=True)
        self.update_states = self._named("update_states", _update_states)
        self.read_verdict_rows = self._named(
            "read_verdict_rows", lambda rowset: locked_verdict_rows(rowset, database_clock(dialect))
        )
        self.record_verdicts = recording_statements(dialect)
        self.read_registered_runs = self._named("read_registered_runs", _registered_runs)
        self.insert_runs = self._insert(runs)
        self.read_pointers = self._named("read_pointers", pointers)
        self.upsert_pointers = self._upsert(warehouse_pointer)
        self.withdraw_pointers = self._named("withdraw_pointers", _withdraw_pointers)
        self.insert_demotions = self._insert(demotions, skip_present=True)
        self.delete_demotions = self._named("delete_demotions", _delete_demotions)
        self.read_open_demotions = self._named("read_open_demotions", _open_demotions)
        self.insert_load_records = self._insert(load_records, skip_present=True)
        self.insert_action = sa.insert(control_actions)
        self.insert_action_partitions = self._insert(control_action_partitions)
        self.actions_per_partition = self._named("actions_per_partition", _actions_per_partition)
        self.upsert_requests = self._upsert(requests)
        self.read_open_requests = self._named("read_open_requests", _open_requests)
        self.insert_failed_fetches = self._insert(failed_fetches)
        self.failed_fetches = self._named("failed_fetches", _failed_fetches)
        self.insert_parking = insert_into(dialect, parkings).on_conflict_do_nothing()
        self.delete_parking = sa.delete(parkings).where(
            *(parkings.c[name] == sa.bindparam(f"parked_{name}") for name in ("source", "scope", "name"))
        )
        self.insert_terminal_marks = self._insert(terminal_marks)
        self.read_terminal_marks = self._named("read_terminal_marks", _terminal_marks)
        self.delete_terminal_marks = self._named("delete_terminal_marks", _delete_terminal_marks)
        action_id: sa.BindParameter[str] = sa.bindparam("action_id")
        self.read_action = sa.select(control_actions).where(control_actions.c.action_id == action_id)
        self.read_action_partitions = sa.select(*key_of_table(control_action_partitions)).where(
            control_action_partitions.c.action_id == action_id
        )

    def _named(self, name: str, build: Callable[[Rowset], sa.Executable]) -> RowStatement:
        return RowStatement(name, self._dialect, build)

    def _insert(
        self, table: sa.Table, names: tuple[str, ...] | None = None, *, skip_present: bool = False
    ) -> RowStatement:
        columns = names or tuple(column.name for column in table.c)

        def build(rowset: Rowset) -> sa.Insert:
            insert = self._from_rowset(rowset, table, columns, skip_present=skip_present)
            return insert.on_conflict_do_nothing() if skip_present else insert

        return self._named(f"insert_{table.name}", build)

    def _upsert(self, table: sa.Table) -> RowStatement:
        """Insert a row per partition, or replace the existing one."""
        names = tuple(column.name for column in table.c)

        def build(rowset: Rowset) -> sa.Insert:
            insert = self._from_rowset(rowset, table, names)
            changes = {name: insert.excluded[name] for name in names if name not in KEY}
            return insert.on_conflict_do_update(index_elements=list(KEY), set_=changes)

        return self._named(f"upsert_{table.name}", build)

    def _from_rowset(
        self, rowset: Rowset, table: sa.Table, names: tuple[str, ...], *, skip_present: bool = False
    ) -> postgresql.Insert | sqlite.Insert:
        columns: dict[str, Any] = {name: table.c[name].type for name in names}
        given = rowset(columns)
        # Without WHERE, SQLite would parse the ON of ON CONFLICT as the condition of a join.
        rows = sa.select(*(given.c[name] for name in names)).where(sa.true())
        if skip_present:  # ON CONFLICT covers rows of concurrent writers; on SQLite a trigger refuses existing keys
            rows = rows.where(~sa.exists().where(*(given.c[column.name] == column for column in table.primary_key)))
        rows = rows.order_by(*(given.c[name] for name in names if table.c[name].primary_key))
        return insert_into(self._dialect, table).from_select(names, rows)


def _update_states(rowset: Rowset) -> sa.Update:
    requested = rowset(_STATE_ROW)
    return (
        sa.update(partition_state)
        .values({name: requested.c[name] for name in _STATE_CHANGES})
        .where(same_key(partition_state, requested))
    )


def _registered_runs(rowset: Rowset) -> sa.Select[Any]:
    """One row per requested run: its registration, or nulls, and the newest ordinal of its partition."""
    requested = rowset(dict(KEY_TYPES) | {"position": sa.Integer(), "run_id": sa.Text()})
    others = runs.alias("others")
    newest = sa.select(sa.func.max(others.c.ordinal)).where(same_key(others, requested)).scalar_subquery()
    return (
        sa.select(requested.c.position, runs, newest.label("newest_ordinal"))
        .select_from(requested)
        .outerjoin(runs, sa.and_(same_key(runs, requested), runs.c.run_id == requested.c.run_id))
        .order_by(requested.c.position)
    )


def _withdraw_pointers(rowset: Rowset) -> sa.Update:
    requested = rowset(dict(KEY_TYPES) | {"changed_at": Instant()})
    literal = sa.literal_column
    return (
        sa.update(warehouse_pointer)
        .values(availability=literal("'unavailable'"), changed_at=requested.c.changed_at)
        .where(same_key(warehouse_pointer, requested), warehouse_pointer.c.availability == literal("'published'"))
    )


def _open_demotions(rowset: Rowset) -> sa.Select[Any]:
    """The requested runs that have an open demotion."""
    requested = rowset(RUN_TYPES)
    return sa.select(*key_of_table(demotions), demotions.c.run_id).join_from(
        requested, demotions, sa.and_(same_key(demotions, requested), demotions.c.run_id == requested.c.run_id)
    )


def _delete_demotions(rowset: Rowset) -> sa.Delete:
    requested = rowset(dict(RUN_TYPES) | {"validation_id": sa.Text()})
    names = (*KEY, "run_id", "validation_id")
    recorded = sa.select(*(requested.c[name] for name in names))
    return sa.delete(demotions).where(sa.tuple_(*(demotions.c[name] for name in names)).in_(recorded))


def _actions_per_partition(rowset: Rowset) -> sa.Select[Any]:
    """The key of each requested partition, once per logged action on it."""
    requested = rowset(KEY_TYPES)
    return sa.select(*key_of_table(control_action_partitions)).join_from(
        requested, control_action_partitions, same_key(control_action_partitions, requested)
    )


def _open_requests(rowset: Rowset) -> sa.Select[Any]:
    """The requested partitions that have an open request for a new run."""
    requested = rowset(KEY_TYPES)
    return (
        sa.select(*key_of_table(requests))
        .join_from(requested, requests, same_key(requests, requested))
        .join(partition_state, same_key(partition_state, requests))
        .where(partition_state.c.attempt_count == requests.c.attempt_no)
    )


def _failed_fetches(rowset: Rowset) -> sa.Select[Any]:
    """The key and the id of each failed fetch of the requested partitions."""
    requested = rowset(KEY_TYPES)
    columns = *key_of_table(failed_fetches), failed_fetches.c.failure_id
    return sa.select(*columns).join_from(requested, failed_fetches, same_key(failed_fetches, requested))


def _terminal_marks(rowset: Rowset) -> sa.Select[Any]:
    requested = rowset(KEY_TYPES)
    return sa.select(*key_of_table(terminal_marks)).join_from(
        requested, terminal_marks, same_key(terminal_marks, requested)
    )


def _delete_terminal_marks(rowset: Rowset) -> sa.Delete:
    requested = rowset(KEY_TYPES)
    return sa.delete(terminal_marks).where(
        sa.tuple_(*key_of_table(terminal_marks)).in_(sa.select(*key_of_table(requested)))
    )
