"""Builds the statements that append to the logs of runs, once for each dialect.

A run's head row is the lock of its order: who appends takes it last of all locks and holds it until the commit, so
that nothing ever becomes visible before an event that is visible already.
"""

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from ads_pipeline.ledger.row_mapping import clock_of, insert_into
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.tables import Instant, run_events, run_head

# A row to append: an event's columns, its run's plan, its place among its run's events in the call, and their number.
_OWN: Final[Mapping[str, Any]] = {
    column.name: column.type for column in run_events.c if column.name not in ("run_seq", "persisted_at")
}
EVENT_ROW: Final[Mapping[str, Any]] = dict(_OWN) | {
    "plan_version": sa.Text(),
    "place": sa.Integer(),
    "number": sa.Integer(),
    "appended_at": Instant(),
}
_LOOK: Final[Mapping[str, Any]] = {"place": sa.Integer(), "run_id": sa.Text(), "idempotency_key": sa.Text()}
_TEXT: Final[Mapping[str, Any]] = {"run_id": sa.Text(), "plan_version": sa.Text(), "appended_at": Instant()}


class EventStatements:
    """What appends events, and what looks whether they are there.

    Events are dated by whoever appends them, or else by the database's clock as they are appended.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.look = self._named("look_for_events", _look)
        self.open_heads = self._named("open_heads", self._open_heads)
        self.count_conflicts = self._named("count_conflicts", _count_conflicts)
        self.append = self._append()

    def advance_heads(self, asked: sa.FromClause) -> postgresql.Insert | sqlite.Insert:
        """Moves each run's head on by the number of its events, and makes the heads that are not there."""
        names = ("run_id", "plan_version", "last_seq", "last_at", "opened_at")
        run = asked.c.run_id, asked.c.plan_version, asked.c.number
        # One time a run, else each row's reading of the clock would make it another.
        now = sa.func.max(sa.func.coalesce(asked.c.appended_at, clock_of(self._dialect)), type_=Instant())
        rows = sa.select(*run, now.label("last_at"), now.label("opened_at")).where(sa.true())
        rows = rows.group_by(*run).order_by(asked.c.run_id)
        insert = insert_into(self._dialect, run_head).from_select(names, rows)
        later = sa.func.greatest if self._dialect == "postgresql" else sa.func.max
        return insert.on_conflict_do_update(
            index_elements=["run_id"],
            set_={
                "plan_version": insert.excluded.plan_version,  # another one is refused by the table
                "last_seq": run_head.c.last_seq + insert.excluded.last_seq,
                "last_at": later(run_head.c.last_at, insert.excluded.last_at),
            },
        )

    def insert_events(self, asked: sa.FromClause, heads: sa.FromClause) -> sa.Insert:
        """Puts the events behind all others of their runs, whose heads have been moved on."""
        names = tuple(column.name for column in run_events.c)
        given = {
            "run_seq": heads.c.last_seq - asked.c.number + asked.c.place,
            "persisted_at": heads.c.last_at,
        }
        rows = sa.select(*(given[name] if name in given else asked.c[name] for name in names))
        return sa.insert(run_events).from_select(
            names, rows.join_from(asked, heads, heads.c.run_id == asked.c.run_id)
        )

    def _append(self) -> tuple[RowStatement, ...]:
        """One statement where the database can; the last one returns the places."""
        kept = run_events.c.run_id, run_events.c.run_seq, run_events.c.idempotency_key

        def both(rowset: Rowset) -> ReturningInsert[Any]:
            asked = sa.select(rowset(EVENT_ROW)).cte("appended")
            heads = self.advance_heads(asked).returning(*(run_head.c[name] for name in HEAD)).cte("heads")
            return self.insert_events(asked, heads).returning(*kept)

        def advance(rowset: Rowset) -> sa.Insert:
            return self.advance_heads(rowset(EVENT_ROW))

        def insert(rowset: Rowset) -> ReturningInsert[Any]:
            return self.insert_events(rowset(EVENT_ROW), run_head).returning(*kept)

        if self._dialect == "postgresql":
            return (self._named("append_events", both),)
        return (self._named("advance_heads", advance), self._named("insert_events", insert))

    def _open_heads(self, rowset: Rowset) -> sa.Insert:
        """Heads for runs of which nothing is known, so that there is something to lock."""
        asked = rowset(_TEXT)
        names = ("run_id", "plan_version", "last_seq", "last_at", "opened_at")
        rows: Any = (
            sa.select(
                asked.c.run_id,
                asked.c.plan_version,
                sa.literal_column("0"),
                asked.c.appended_at,
                asked.c.appended_at.label("opened_at"),
            )
            .where(sa.true())
            .order_by(asked.c.run_id)
        )
        return insert_into(self._dialect, run_head).from_select(names, rows).on_conflict_do_nothing()

    def _named(self, name: str, build: Any) -> RowStatement:
        return RowStatement(name, self._dialect, build)


HEAD: Final = ("run_id", "last_seq", "last_at")


def _look(rowset: Rowset) -> sa.Select[Any]:
    """Each asked event beside its run's locked head and the event that has its key already.

    The head is as it is once it is locked; the events are seen as of the statement's start. `seen_seq`, the head as
    of then, tells whether somebody appended while the lock was waited for.
    """
    asked = rowset(_LOOK)
    locked = (
        sa.select(run_head)
        .where(run_head.c.run_id.in_(sa.select(asked.c.run_id)))
        .order_by(run_head.c.run_id)
        .with_for_update(of=run_head)
        .cte("locked")
    )
    seen, prior = run_head.alias("seen"), run_events.alias("prior")
    same = sa.and_(prior.c.run_id == asked.c.run_id, prior.c.idempotency_key == asked.c.idempotency_key)
    return (
        sa.select(
            locked.c.plan_version,
            locked.c.last_seq,
            locked.c.retired_at,
            seen.c.last_seq.label("seen_seq"),
            prior.c.run_seq,
            prior.c.event_data,
        )
        .select_from(asked)
        .outerjoin(locked, locked.c.run_id == asked.c.run_id)
        .outerjoin(seen, seen.c.run_id == asked.c.run_id)
        .outerjoin(prior, same)
        .order_by(asked.c.place)
    )


def _count_conflicts(rowset: Rowset) -> sa.Update:
    asked = rowset({"run_id": sa.Text(), "number": sa.Integer()})
    return (
        sa.update(run_head)
        .values(payload_conflicts=run_head.c.payload_conflicts + asked.c.number)
        .where(run_head.c.run_id == asked.c.run_id)
    )
