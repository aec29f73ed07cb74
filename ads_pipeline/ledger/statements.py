"""Builds the ledger's writing statements, once for each dialect."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from ads_pipeline.ledger.questions import RUN_TYPES
from ads_pipeline.ledger.rows import KEY_TYPES, key_of, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.tables import (
    KEY,
    Instant,
    acted_partitions,
    attempts,
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
_RULED: Final = ("status", "current_run_id", "schema_version", "record_count", "error_message")
_ATTEMPT_ROW: Final[Mapping[str, Any]] = (
    {column.name: column.type for column in attempts.c}
    | {f"state_{name}": partition_state.c[name].type for name in _RULED}
    | {"is_last": sa.Boolean()}
)


class Statements:
    """Every statement that `writer` runs."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.read_clock = sa.select(clock_of(dialect))
        self.lock_states = self._named("lock_states", lambda rowset: _locked(rowset(KEY_TYPES)))
        self.insert_pending = self._insert(partition_state, _NEW_STATE, skip_present=True)
        self.update_states = self._named("update_states", _update_states)
        self.read_for_judging = self._named(
            "read_for_judging", lambda rowset: _read_for_judging(rowset, clock_of(dialect))
        )
        self.record_attempts = self._record_attempts()
        self.read_for_registering = self._named("read_for_registering", _read_for_registering)
        self.insert_runs = self._insert(runs)
        self.put_pointers = self._named("put_pointers", self._put_pointers)
        self.withdraw_pointers = self._named("withdraw_pointers", _withdraw_pointers)
        self.insert_demotions = self._insert(demotions, skip_present=True)
        self.end_demotions = self._named("end_demotions", _end_demotions)
        self.demoting_of = self._named("demoting_of", _demoting_of)
        self.insert_load_records = self._insert(load_records, skip_present=True)
        self.insert_act = sa.insert(operator_acts)
        self.insert_acted = self._insert(acted_partitions)
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
        insert = postgresql.insert(table) if self._dialect == "postgresql" else sqlite.insert(table)
        return insert.from_select(names, rows)

    def _record_attempts(self) -> tuple[RowStatement, ...]:
        """Inserts the attempts and updates the states they lead to; in one statement where the database can."""

        def insert(rowset: Rowset) -> sa.Insert:
            return _insert_attempts(rowset(_ATTEMPT_ROW))

        def update(rowset: Rowset) -> sa.Update:
            return _update_attempted(rowset(_ATTEMPT_ROW))

        def both(rowset: Rowset) -> sa.Update:
            asked = sa.select(rowset(_ATTEMPT_ROW)).cte("attempted")
            return _update_attempted(asked).add_cte(_insert_attempts(asked).cte("inserted"))

        if self._dialect == "postgresql":
            return (self._named("record_attempts", both),)
        return (self._named("insert_attempts", insert), self._named("update_attempted", update))

    def _put_pointers(self, rowset: Rowset) -> sa.Insert:
        names = tuple(column.name for column in warehouse_pointer.c)
        insert = self._from_rowset(rowset, warehouse_pointer, names)
        changed = {name: insert.excluded[name] for name in names if name not in KEY}
        return insert.on_conflict_do_update(index_elements=list(KEY), set_=changed)


def clock_of(dialect: str) -> sa.ColumnElement[Any]:
    """The database's clock, so that one clock stamps every row of a shared ledger."""
    if dialect == "postgresql":
        return sa.func.clock_timestamp(type_=Instant()).label("now")
    return sa.func.strftime("%Y-%m-%dT%H:%M:%f000Z", "now", type_=Instant()).label("now")


def _locked(asked: sa.FromClause) -> sa.Select[Any]:
    """The state rows of the asked keys, locked in key order: whoever locks many cannot deadlock with another.

    SQLite knows no row locks and needs none; its transaction holds the whole database.
    """
    return (
        sa.select(partition_state)
        .where(sa.tuple_(*key_of(partition_state)).in_(sa.select(*key_of(asked))))
        .order_by(*key_of(partition_state))
        .with_for_update(of=partition_state)
    )


def _update_states(rowset: Rowset) -> sa.Update:
    asked = rowset(_STATE_ROW)
    return (
        sa.update(partition_state)
        .values({name: asked.c[name] for name in _STATE_CHANGES})
        .where(same_key(partition_state, asked))
    )


def _insert_attempts(asked: sa.FromClause) -> sa.Insert:
    names = tuple(column.name for column in attempts.c)
    return sa.insert(attempts).from_select(names, sa.select(*(asked.c[name] for name in names)))


def _update_attempted(asked: sa.FromClause) -> sa.Update:
    """The state after an attempt counts it and is dated by it; `state_…` is what else the row then says."""
    return (
        sa.update(partition_state)
        .values(
            updated_at=asked.c.judged_at,
            attempt_count=asked.c.attempt_no,
            **{name: asked.c[f"state_{name}"] for name in _RULED},
        )
        .where(same_key(partition_state, asked), asked.c.is_last)
    )


def _read_for_judging(rowset: Rowset, clock: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Each asked verdict beside its locked state, its run, its earlier self and the partition's last attempt.

    The joined tables are seen as of the statement's start. Where the lock had to be waited for, the last attempt may
    therefore be missing; the caller then reads once more, now holding the lock.
    """
    words: dict[str, Any] = {"place": sa.Integer(), "run_id": sa.Text(), "validation_id": sa.Text()}
    asked = rowset(dict(KEY_TYPES) | words)
    locked = _locked(asked).cte("locked")
    prior, last = attempts.alias("prior"), attempts.alias("last")
    same_verdict = sa.and_(
        same_key(prior, asked),
        prior.c.run_id == asked.c.run_id,
        prior.c.validation_id == asked.c.validation_id,
    )
    return (
        sa.select(
            *(locked.c[column.name] for column in partition_state.c if column.name not in KEY),
            runs.c.ordinal,
            runs.c.schema_version.label("run_schema_version"),
            runs.c.record_count.label("run_record_count"),
            prior.c.outcome.label("prior_outcome"),
            prior.c.effect.label("prior_effect"),
            prior.c.attempt_no.label("prior_attempt_no"),
            last.c.attempt_no.label("last_attempt_no"),
            last.c.current_ordinal,
            last.c.message_ordinal,
            clock,
        )
        .select_from(asked)
        .outerjoin(locked, same_key(locked, asked))
        .outerjoin(runs, sa.and_(same_key(runs, asked), runs.c.run_id == asked.c.run_id))
        .outerjoin(prior, same_verdict)
        .outerjoin(last, sa.and_(same_key(last, asked), last.c.attempt_no == locked.c.attempt_count))
        .order_by(asked.c.place)
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
