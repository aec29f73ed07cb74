"""Builds the statements that hear verdicts and record them: attempt, state, status and event, all in one.

Everything a verdict changes is in one row of one rowset, and in Postgres in one statement.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.ledger.events.append_statements import EVENT_ROW, HEAD, EventStatements
from ads_pipeline.ledger.row_mapping import KEY_TYPES, insert_into, instant_as_text, key_of, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.status.partition_status import OUTCOMES, PLACE, joined
from ads_pipeline.ledger.tables import KEY, Instant, attempts, partition_state, partition_status, run_head, runs

_RULED: Final = ("status", "current_run_id", "schema_version", "record_count", "error_message")
STATE: Final = "state_"  # before the names of the state's columns where they are not the attempt's
EVENTS: Final[Mapping[Outcome, str]] = {Outcome.ACCEPTED: "VerdictAccepted", Outcome.REJECTED: "VerdictRejected"}
_MADE: Final = ("run_id", "at", "code_version")
# Only the first row says what all have in common.
_SAME: Final[dict[str, Any]] = {
    "engine_run_id": sa.Text(),
    "engine_plan_version": sa.Text(),
    "engine_attempt_id": sa.BigInteger(),
    "engine_run_ref": sa.Text(),
    "engine_adapter_version": sa.Text(),
    "appended_at": Instant(),
    "number": sa.Integer(),
}
_PLAIN: Final = (*PLACE, "partition_values", "row_version", "step_id")
_VERDICT_ROW: Final[Mapping[str, Any]] = (
    {column.name: column.type for column in attempts.c}
    | {f"{STATE}{name}": partition_state.c[name].type for name in _RULED}
    | {"is_last": sa.Boolean(), "place": sa.Integer()}
    | dict.fromkeys((*_PLAIN, "event_id", "event_key", "event_data", "made_run_id", "made_code_version"), sa.Text())
    | {"made_at": Instant()}
    | _SAME
)


def record_verdicts(dialect: str) -> tuple[RowStatement, ...]:
    """Inserts attempts and their events, and brings states and statuses to what they lead to.

    The last one counts the statuses it brought on: there are fewer than partitions when one is newer already.
    """
    events = EventStatements(dialect)

    def heads(asked: sa.FromClause) -> Any:
        return events.advance_heads(_heads(_same(asked)))

    def told(asked: sa.FromClause) -> Any:
        return events.insert_events(_events(dialect, asked, _same(asked)), run_head)

    def all_at_once(rowset: Rowset) -> Any:
        asked = sa.select(rowset(_VERDICT_ROW)).cte("heard")
        same = _same(asked)
        moved = events.advance_heads(_heads(same)).returning(*(run_head.c[name] for name in HEAD)).cte("heads")
        inserted = events.insert_events(_events(dialect, asked, same), moved).cte("told")
        counted, ruled = _insert_attempts(asked).cte("counted"), _update_states(asked).cte("ruled")
        return _upsert_statuses(dialect, asked).add_cte(counted, ruled, inserted)

    def one(build: Callable[[sa.FromClause], Any]) -> Callable[[Rowset], Any]:
        return lambda rowset: build(rowset(_VERDICT_ROW))

    if dialect == "postgresql":
        return (RowStatement("record_verdicts", dialect, all_at_once),)
    steps: Mapping[str, Callable[[sa.FromClause], Any]] = {
        "insert_attempts": _insert_attempts,
        "update_judged": _update_states,
        "advance_heads": heads,
        "insert_events": told,
        "upsert_statuses": lambda asked: _upsert_statuses(dialect, asked),
    }
    return tuple(RowStatement(name, dialect, one(build)) for name, build in steps.items())


def _same(asked: sa.FromClause) -> sa.CTE:
    """What all rows have in common, as one row. Materialized, or SQLite would look for it again for each of them."""
    first = sa.select(*(asked.c[name] for name in _SAME)).where(asked.c.place == sa.literal_column("1"))
    return first.cte("same").prefix_with("MATERIALIZED")


def _heads(same: sa.FromClause) -> sa.FromClause:
    told = {"run_id": same.c.engine_run_id, "plan_version": same.c.engine_plan_version}
    named = [column.label(name) for name, column in told.items()]
    return sa.select(*named, same.c.number, same.c.appended_at).subquery("one_run")


def _events(dialect: str, asked: sa.FromClause, same: sa.FromClause) -> sa.FromClause:
    """The events that tell of the verdicts, as rows to append."""
    told: Mapping[str, sa.ColumnElement[Any]] = {
        "run_id": same.c.engine_run_id,
        "plan_version": same.c.engine_plan_version,
        "event_id": asked.c.event_id,
        "event_type": _either(asked, EVENTS),
        "step_id": asked.c.step_id,
        "logical_attempt_id": asked.c.attempt_no,
        "engine_attempt_id": same.c.engine_attempt_id,
        "event_data": asked.c.event_data,
        "engine_run_ref": same.c.engine_run_ref,
        "idempotency_key": asked.c.event_key,
        "emitted_at": instant_as_text(dialect, asked.c.judged_at),
        "adapter_version": same.c.engine_adapter_version,
        "caused_by_signal_id": sa.cast(sa.null(), sa.Text),
        "parent_event_id": sa.cast(sa.null(), sa.Text),
        "place": asked.c.place,
        "number": same.c.number,
        "appended_at": same.c.appended_at,
    }
    return (
        sa.select(*(told[name].label(name) for name in EVENT_ROW))
        .join_from(asked, same, sa.true())
        .subquery("events")
    )


def _upsert_statuses(dialect: str, asked: sa.FromClause) -> Any:
    """A verdict is its partition's newest finish, so it is the last attempt; what was made before it may leave."""
    given: Mapping[str, sa.ColumnElement[Any]] = {
        **{name: asked.c[name] for name in PLACE},
        **{f"last_materialization_{name}": asked.c[f"made_{name}"] for name in _MADE},
        "last_attempt_run_id": asked.c.run_id,
        "last_attempt_at": asked.c.judged_at,
        "last_attempt_outcome": _either(asked, OUTCOMES),
        "partition_values": asked.c.partition_values,
        "row_version": asked.c.row_version,
    }
    rows = sa.select(*given.values()).where(asked.c.is_last)
    insert = insert_into(dialect, partition_status)
    insert = insert.from_select(tuple(given), rows)
    new, made = insert.excluded, insert.excluded.last_materialization_at.is_not(None)
    kept = [f"last_materialization_{name}" for name in _MADE] + ["stale_since", "stale_reason_code"]
    changed: dict[str, Any] = {name: new[name] for name in given if name not in PLACE}
    changed |= {name: sa.case((made, new[name]), else_=partition_status.c[name]) for name in kept}
    older = partition_status.c.row_version < new.row_version
    return insert.on_conflict_do_update(index_elements=list(PLACE), set_=changed, where=older)


def _either(asked: sa.FromClause, words: Mapping[Outcome, str]) -> sa.ColumnElement[str]:
    accepted = asked.c.outcome == sa.literal_column(f"'{Outcome.ACCEPTED}'")
    return sa.case(
        (accepted, sa.literal_column(f"'{words[Outcome.ACCEPTED]}'")),
        else_=sa.literal_column(f"'{words[Outcome.REJECTED]}'"),
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
            partition_status.c.row_version,
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
