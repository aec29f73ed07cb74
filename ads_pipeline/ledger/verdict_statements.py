"""Builds the statements that hear verdicts and record them: attempt, state, status and event, all in one.

Everything a verdict changes is in one row of one rowset, and in Postgres in one statement.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.ledger.event_statements import EVENT_ROW, HEAD, EventStatements
from ads_pipeline.ledger.rows import KEY_TYPES, key_of, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.statuses import PLACE, STATUS_ROW, joined, upsert
from ads_pipeline.ledger.tables import KEY, attempts, partition_state, partition_status, run_head, runs

_RULED: Final = ("status", "current_run_id", "schema_version", "record_count", "error_message")
STATE, STATUS, EVENT = "state_", "status_", "event_"  # before the names of columns that are not the attempt's
_VERDICT_ROW: Final[Mapping[str, Any]] = (
    {column.name: column.type for column in attempts.c}
    | {f"{STATE}{name}": partition_state.c[name].type for name in _RULED}
    | {f"{STATUS}{name}": kind for name, kind in STATUS_ROW.items()}
    | {f"{EVENT}{name}": kind for name, kind in EVENT_ROW.items()}
    | {"is_last": sa.Boolean()}
)


def record_verdicts(dialect: str) -> tuple[RowStatement, ...]:
    """Inserts attempts and their events, and brings states and statuses to what they lead to.

    The last one counts the statuses it brought on: there are fewer than partitions when one is newer already.
    """
    events = EventStatements(dialect)

    def state(asked: sa.FromClause) -> sa.Update:
        return _update_states(asked)

    def status(asked: sa.FromClause) -> Any:
        return upsert(dialect, _part(asked, STATUS, STATUS_ROW, asked.c.is_last))

    def heads(asked: sa.FromClause) -> Any:
        return events.advance_heads(_part(asked, EVENT, EVENT_ROW))

    def all_at_once(rowset: Rowset) -> Any:
        asked = sa.select(rowset(_VERDICT_ROW)).cte("heard")
        moved = heads(asked).returning(*(run_head.c[name] for name in HEAD)).cte("heads")
        inserted = events.insert_events(_part(asked, EVENT, EVENT_ROW), moved).cte("told")
        return status(asked).add_cte(_insert_attempts(asked).cte("counted"), state(asked).cte("ruled"), inserted)

    def one(build: Callable[[sa.FromClause], Any]) -> Callable[[Rowset], Any]:
        return lambda rowset: build(rowset(_VERDICT_ROW))

    if dialect == "postgresql":
        return (RowStatement("record_verdicts", dialect, all_at_once),)
    steps: Mapping[str, Callable[[sa.FromClause], Any]] = {
        "insert_attempts": _insert_attempts,
        "update_judged": state,
        "advance_heads": heads,
        "insert_events": lambda asked: events.insert_events(_part(asked, EVENT, EVENT_ROW), run_head),
        "upsert_statuses": status,
    }
    return tuple(RowStatement(name, dialect, one(build)) for name, build in steps.items())


def _part(
    asked: sa.FromClause, prefix: str, names: Iterable[str], *conditions: sa.ColumnElement[bool]
) -> sa.FromClause:
    """The columns of one table among those of all."""
    return (
        sa.select(*(asked.c[prefix + name].label(name) for name in names))
        .where(*conditions)
        .subquery(prefix.removesuffix("_"))
    )


def _insert_attempts(asked: sa.FromClause) -> sa.Insert:
    names = tuple(column.name for column in attempts.c)
    return sa.insert(attempts).from_select(names, sa.select(*(asked.c[name] for name in names)))


def _update_states(asked: sa.FromClause) -> sa.Update:
    """The state after an attempt counts it and is dated by it; `state_…` is what else the row then says."""
    return (
        sa.update(partition_state)
        .values(
            updated_at=asked.c.judged_at,
            attempt_count=asked.c.attempt_no,
            **{name: asked.c[f"{STATE}{name}"] for name in _RULED},
        )
        .where(same_key(partition_state, asked), asked.c.is_last)
    )


def locked_states(asked: sa.FromClause) -> sa.Select[Any]:
    """The state rows of the asked keys, locked in key order: whoever locks many cannot deadlock with another.

    SQLite knows no row locks and needs none; its transaction holds the whole database.
    """
    return (
        sa.select(partition_state)
        .where(sa.tuple_(*key_of(partition_state)).in_(sa.select(*key_of(asked))))
        .order_by(*key_of(partition_state))
        .with_for_update(of=partition_state)
    )


def read_for_judging(rowset: Rowset, clock: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Each asked verdict beside its locked state and status, its run, its earlier self and the last attempt.

    The joined tables are seen as of the statement's start. Where the lock had to be waited for, the last attempt may
    therefore be missing; the caller then reads once more, now holding the lock.
    """
    words: dict[str, Any] = dict.fromkeys((*PLACE, "run_id", "validation_id"), sa.Text()) | {"place": sa.Integer()}
    asked = rowset(dict(KEY_TYPES) | words)
    locked = locked_states(asked).cte("locked")
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
            *partition_status.c,
            clock,
        )
        .select_from(asked)
        .outerjoin(locked, same_key(locked, asked))
        .outerjoin(runs, sa.and_(same_key(runs, asked), runs.c.run_id == asked.c.run_id))
        .outerjoin(prior, same_verdict)
        .outerjoin(last, sa.and_(same_key(last, asked), last.c.attempt_no == locked.c.attempt_count))
        .outerjoin(partition_status, joined(asked))
        .order_by(asked.c.place)
    )
