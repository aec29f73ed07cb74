"""Builds the SQL statements that append run events, for Postgres and SQLite.

The `run_head` row of a run is the lock on its event order. A writer takes this lock after all its other locks and
holds it until the commit. So events of a run become visible in the order of their `run_seq`.
"""

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from ads_pipeline.ledger.row_mapping import database_clock, insert_into
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.tables import Instant, run_events, run_head

EVENT_COLUMNS: Final[Mapping[str, Any]] = {
    column.name: column.type for column in run_events.c if column.name not in ("run_seq", "persisted_at")
} | {
    "plan_version": sa.Text(),
    "position": sa.Integer(),  # among the events of the same run in this call, from 1
    "event_count": sa.Integer(),  # of the same run in this call
    "appended_at": Instant(),
}
_LOOKUP_COLUMNS: Final[dict[str, Any]] = {"position": sa.Integer(), "run_id": sa.Text(), "idempotency_key": sa.Text()}
_NEW_HEAD_COLUMNS: Final[dict[str, Any]] = {"run_id": sa.Text(), "plan_version": sa.Text(), "appended_at": Instant()}
HEAD_COLUMNS: Final = ("run_id", "last_seq", "last_at")
_INSERTED_HEAD_COLUMNS: Final = ("run_id", "plan_version", "last_seq", "last_at", "opened_at")


class EventStatements:
    """The statements that append events and find existing ones.

    `appended_at` dates an event. When it is null, the database's clock at the append does.
    """

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self.find_existing = self._named("find_existing_events", _find_existing)
        self.insert_missing_heads = self._named("insert_missing_heads", self._insert_missing_heads)
        self.count_conflicts = self._named("count_conflicts", _count_conflicts)
        # One statement on Postgres, two on SQLite. The last one returns the assigned `run_seq`.
        self.append = self._build_append()

    def advance_heads(self, events: sa.FromClause) -> postgresql.Insert | sqlite.Insert:
        """Add each run's event count to its head, and insert the missing heads."""
        run = events.c.run_id, events.c.plan_version, events.c.event_count
        # max() gives each run one time. Without it, every row would read the clock again.
        now = sa.func.max(sa.func.coalesce(events.c.appended_at, database_clock(self._dialect)), type_=Instant())
        rows = sa.select(*run, now.label("last_at"), now.label("opened_at")).where(sa.true())
        rows = rows.group_by(*run).order_by(events.c.run_id)
        insert = insert_into(self._dialect, run_head).from_select(_INSERTED_HEAD_COLUMNS, rows)
        later = sa.func.greatest if self._dialect == "postgresql" else sa.func.max
        return insert.on_conflict_do_update(
            index_elements=["run_id"],
            set_={
                "plan_version": insert.excluded.plan_version,  # a trigger refuses a different one
                "last_seq": run_head.c.last_seq + insert.excluded.last_seq,
                "last_at": later(run_head.c.last_at, insert.excluded.last_at),
            },
        )

    def insert_events(self, events: sa.FromClause, heads: sa.FromClause) -> sa.Insert:
        """Insert the events after all others of their runs. `heads` are already advanced."""
        names = tuple(column.name for column in run_events.c)
        assigned = {
            "run_seq": heads.c.last_seq - events.c.event_count + events.c.position,
            "persisted_at": heads.c.last_at,
        }
        rows = sa.select(*(assigned[name] if name in assigned else events.c[name] for name in names))
        return sa.insert(run_events).from_select(
            names, rows.join_from(events, heads, heads.c.run_id == events.c.run_id)
        )

    def _build_append(self) -> tuple[RowStatement, ...]:
        returned = run_events.c.run_id, run_events.c.run_seq, run_events.c.idempotency_key

        def append(rowset: Rowset) -> ReturningInsert[Any]:
            events = sa.select(rowset(EVENT_COLUMNS)).cte("appended")
            heads = self.advance_heads(events).returning(*(run_head.c[name] for name in HEAD_COLUMNS)).cte("heads")
            return self.insert_events(events, heads).returning(*returned)

        def advance(rowset: Rowset) -> sa.Insert:
            return self.advance_heads(rowset(EVENT_COLUMNS))

        def insert(rowset: Rowset) -> ReturningInsert[Any]:
            return self.insert_events(rowset(EVENT_COLUMNS), run_head).returning(*returned)

        if self._dialect == "postgresql":
            return (self._named("append_events", append),)
        return (self._named("advance_heads", advance), self._named("insert_events", insert))

    def _insert_missing_heads(self, rowset: Rowset) -> sa.Insert:
        """Insert heads for unknown runs, so that there is a row to lock."""
        runs = rowset(_NEW_HEAD_COLUMNS)
        rows: Any = (
            sa.select(
                runs.c.run_id,
                runs.c.plan_version,
                sa.literal_column("0"),
                runs.c.appended_at,
                runs.c.appended_at.label("opened_at"),
            )
            .where(sa.true())
            .order_by(runs.c.run_id)
        )
        insert = insert_into(self._dialect, run_head).from_select(_INSERTED_HEAD_COLUMNS, rows)
        return insert.on_conflict_do_nothing()

    def _named(self, name: str, build: Any) -> RowStatement:
        return RowStatement(name, self._dialect, build)


def _find_existing(rowset: Rowset) -> sa.Select[Any]:
    """Select, for each event, its run's locked head and the existing event with the same key.

    The statement sees events as of its start, but the head as of the moment when it got the lock. `seen_seq` is the
    head as of the start. If it differs from `last_seq`, another writer appended while the statement waited.
    """
    events = rowset(_LOOKUP_COLUMNS)
    locked = (
        sa.select(run_head)
        .where(run_head.c.run_id.in_(sa.select(events.c.run_id)))
        .order_by(run_head.c.run_id)
        .with_for_update(of=run_head)
        .cte("locked")
    )
    seen, prior = run_head.alias("seen"), run_events.alias("prior")
    same_key = sa.and_(prior.c.run_id == events.c.run_id, prior.c.idempotency_key == events.c.idempotency_key)
    return (
        sa.select(
            locked.c.plan_version,
            locked.c.last_seq,
            locked.c.retired_at,
            seen.c.last_seq.label("seen_seq"),
            prior.c.run_seq,
            prior.c.event_data,
        )
        .select_from(events)
        .outerjoin(locked, locked.c.run_id == events.c.run_id)
        .outerjoin(seen, seen.c.run_id == events.c.run_id)
        .outerjoin(prior, same_key)
        .order_by(events.c.position)
    )


def _count_conflicts(rowset: Rowset) -> sa.Update:
    runs = rowset({"run_id": sa.Text(), "conflicts": sa.Integer()})
    return (
        sa.update(run_head)
        .values(payload_conflicts=run_head.c.payload_conflicts + runs.c.conflicts)
        .where(run_head.c.run_id == runs.c.run_id)
    )
