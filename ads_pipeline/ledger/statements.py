"""Builds the ledger's writing statements once, for one dialect.

Each takes its rows as one parameter named `asked`, so the same text serves one partition and thousands.
"""

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.types import TypeEngine

from ads_pipeline.ledger.rows import KEY_TYPES, key_of, rowset, same_key
from ads_pipeline.ledger.tables import (
    KEY,
    Instant,
    acted_partitions,
    attempts,
    load_records,
    operator_acts,
    partition_state,
    runs,
    warehouse_pointer,
)

_STATE_CHANGES: Final = tuple(column.name for column in partition_state.c if column.name not in KEY)


class Statements:
    """Every statement `writer` runs."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.read_clock = sa.select(self._clock())
        self.lock_states = self._locked(self._asked(KEY_TYPES))
        self.insert_pending = self._insert(partition_state, (*KEY, "status", "updated_at"), skip_present=True)
        self.update_states = self._update_states()
        self.read_for_judging = self._read_for_judging()
        self.insert_attempts = self._insert(attempts, _names(attempts))
        self.read_for_registering = self._read_for_registering()
        self.insert_runs = self._insert(runs, _names(runs))
        self.put_pointers = self._put_pointers()
        self.withdraw_pointers = self._withdraw_pointers()
        self.insert_load_records = self._insert(load_records, _names(load_records), skip_present=True)
        self.read_act = sa.select(operator_acts).where(operator_acts.c.act_id == sa.bindparam("act_id"))
        self.read_acted = sa.select(*key_of(acted_partitions)).where(
            acted_partitions.c.act_id == sa.bindparam("act_id")
        )
        self.insert_act = sa.insert(operator_acts)
        self.insert_acted = self._insert(acted_partitions, _names(acted_partitions))

    def _asked(self, columns: Mapping[str, TypeEngine[Any]]) -> sa.FromClause:
        return rowset(self._dialect, columns)

    def _locked(self, asked: sa.FromClause) -> sa.Select[Any]:
        """The state rows of the asked keys, locked in key order: whoever locks many cannot deadlock with another.

        SQLite knows no row locks and needs none; its transaction holds the whole database.
        """
        return (
            sa.select(partition_state)
            .where(sa.tuple_(*key_of(partition_state)).in_(sa.select(*key_of(asked))))
            .order_by(*key_of(partition_state))
            .with_for_update(of=partition_state)
        )

    def _insert(self, table: sa.Table, names: tuple[str, ...], *, skip_present: bool = False) -> sa.Insert:
        asked = self._asked({name: table.c[name].type for name in names})
        rows = sa.select(*(asked.c[name] for name in names)).where(sa.true())  # SQLite reads ON CONFLICT as a join
        rows = rows.order_by(*(asked.c[name] for name in names if table.c[name].primary_key))
        insert = self._dialect_insert(table).from_select(names, rows)
        return insert.on_conflict_do_nothing() if skip_present else insert

    def _dialect_insert(self, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
        return postgresql.insert(table) if self._dialect == "postgresql" else sqlite.insert(table)

    def _update_states(self) -> sa.Update:
        asked = self._asked({column.name: column.type for column in partition_state.c})
        return (
            sa.update(partition_state)
            .values({name: asked.c[name] for name in _STATE_CHANGES})
            .where(same_key(partition_state, asked))
        )

    def _read_for_judging(self) -> sa.Select[Any]:
        """Each asked verdict beside its locked state, its run, its earlier self and the partition's last attempt.

        The joined tables are seen as of the statement's start. Where the lock had to be waited for, the last attempt
        may therefore be missing; the caller then reads once more, now holding the lock.
        """
        place = {"place": sa.Integer(), "run_id": sa.Text(), "validation_id": sa.Text()}
        asked = self._asked(dict(KEY_TYPES) | place)
        locked = self._locked(asked).cte("locked")
        prior, last = attempts.alias("prior"), attempts.alias("last")
        return (
            sa.select(
                asked.c.place,
                locked,
                runs.c.ordinal,
                runs.c.schema_version.label("run_schema_version"),
                runs.c.record_count.label("run_record_count"),
                runs.c.payload_sha256,
                prior.c.outcome.label("prior_outcome"),
                prior.c.effect.label("prior_effect"),
                prior.c.attempt_no.label("prior_attempt_no"),
                last.c.attempt_no.label("last_attempt_no"),
                last.c.current_ordinal,
                last.c.message_ordinal,
                self._clock(),
            )
            .select_from(asked)
            .outerjoin(locked, same_key(locked, asked))
            .outerjoin(runs, sa.and_(same_key(runs, asked), runs.c.run_id == asked.c.run_id))
            .outerjoin(
                prior,
                sa.and_(
                    same_key(prior, asked),
                    prior.c.run_id == asked.c.run_id,
                    prior.c.validation_id == asked.c.validation_id,
                ),
            )
            .outerjoin(last, sa.and_(same_key(last, asked), last.c.attempt_no == locked.c.attempt_count))
            .order_by(asked.c.place)
        )

    def _clock(self) -> sa.ColumnElement[Any]:
        """The database's clock, so that one clock stamps every row of a shared ledger."""
        if self._dialect == "postgresql":
            return sa.func.clock_timestamp(type_=Instant()).label("now")
        return sa.func.strftime("%Y-%m-%dT%H:%M:%f000Z", "now", type_=Instant()).label("now")

    def _read_for_registering(self) -> sa.Select[Any]:
        asked = self._asked(dict(KEY_TYPES) | {"place": sa.Integer(), "run_id": sa.Text()})
        others = runs.alias("others")
        newest = sa.select(sa.func.max(others.c.ordinal)).where(same_key(others, asked)).scalar_subquery()
        return (
            sa.select(asked.c.place, runs, newest.label("newest_ordinal"))
            .select_from(asked)
            .outerjoin(runs, sa.and_(same_key(runs, asked), runs.c.run_id == asked.c.run_id))
            .order_by(asked.c.place)
        )

    def _put_pointers(self) -> sa.Insert:
        names = _names(warehouse_pointer)
        asked = self._asked({name: warehouse_pointer.c[name].type for name in names})
        rows = sa.select(*(asked.c[name] for name in names)).where(sa.true())
        insert = self._dialect_insert(warehouse_pointer).from_select(names, rows)
        changed = {name: insert.excluded[name] for name in names if name not in KEY}
        return insert.on_conflict_do_update(index_elements=list(KEY), set_=changed)

    def _withdraw_pointers(self) -> sa.Update:
        asked = self._asked(dict(KEY_TYPES) | {"changed_at": warehouse_pointer.c.changed_at.type})
        return (
            sa.update(warehouse_pointer)
            .values(availability="unavailable", changed_at=asked.c.changed_at)
            .where(same_key(warehouse_pointer, asked), warehouse_pointer.c.availability == "published")
        )


def _names(table: sa.Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.c)
