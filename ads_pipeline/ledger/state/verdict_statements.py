"""SQL statements that lock the state of verdicts' partitions, and record the verdicts.

One rowset row holds everything that a verdict writes: attempt, state, status and event. Postgres writes all of it in
one statement, SQLite in five.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.ledger.events.append_statements import EVENT_COLUMNS, HEAD_COLUMNS, EventStatements
from ads_pipeline.ledger.events.event_rows import ORIGIN_COLUMNS, OWN_COLUMNS
from ads_pipeline.ledger.row_mapping import KEY_TYPES, insert_into, key_of_table, same_key
from ads_pipeline.ledger.rowsets import Rowset, RowStatement
from ads_pipeline.ledger.status.partition_status import ATTEMPT_OUTCOMES, STATUS_KEY, match_status_key
from ads_pipeline.ledger.tables import KEY, Instant, attempts, partition_state, partition_status, run_head, runs

_STATE_COLUMNS: Final = ("status", "current_run_id", "schema_version", "record_count", "error_message")
STATE_PREFIX: Final = "state_"  # separates the state's columns from the attempt's columns of the same name
ORIGIN_PREFIX: Final = "origin_"  # separates the engine's run from the raw run
_MATERIALIZATION: Final = ("run_id", "at", "code_version")
# The values that all rows share. Only the first row carries them.
_SHARED_COLUMNS: Final[dict[str, Any]] = {
    **{f"{ORIGIN_PREFIX}{name}": EVENT_COLUMNS[name] for name in ORIGIN_COLUMNS},
    **{name: EVENT_COLUMNS[name] for name in ("appended_at", "event_count")},
}
_TEXT_COLUMNS: Final = (
    *(*STATUS_KEY, "partition_values", "row_version", "materialization_run_id", "materialization_code_version"),
)
_VERDICT_ROW: Final[Mapping[str, Any]] = (
    {column.name: column.type for column in attempts.c}
    | {f"{STATE_PREFIX}{name}": partition_state.c[name].type for name in _STATE_COLUMNS}
    | {name: EVENT_COLUMNS[name] for name in (*OWN_COLUMNS, "position")}
    | {"is_last": sa.Boolean()}
    | dict.fromkeys(_TEXT_COLUMNS, sa.Text())
    | {"materialization_at": Instant()}
    | _SHARED_COLUMNS
)


def recording_statements(dialect: str) -> tuple[RowStatement, ...]:
    """The statements that insert attempts and events, and update states and statuses.

    The last one returns the number of statuses written. It is too small when a status already has a newer version.
    """
    events = EventStatements(dialect)

    def advance_heads(verdicts: sa.FromClause) -> Any:
        return events.advance_heads(_run_of_events(_shared_values(verdicts)))

    def insert_events(verdicts: sa.FromClause) -> Any:
        return events.insert_events(_events(verdicts, _shared_values(verdicts)), run_head)

    def record_in_one(rowset: Rowset) -> Any:
        verdicts = sa.select(rowset(_VERDICT_ROW)).cte("verdicts")
        shared = _shared_values(verdicts)
        advanced = events.advance_heads(_run_of_events(shared))
        heads = advanced.returning(*(run_head.c[name] for name in HEAD_COLUMNS)).cte("heads")
        inserted_events = events.insert_events(_events(verdicts, shared), heads).cte("inserted_events")
        inserted_attempts = _insert_attempts(verdicts).cte("inserted_attempts")
        updated_states = _update_states(verdicts).cte("updated_states")
        return _upsert_statuses(dialect, verdicts).add_cte(inserted_attempts, updated_states, inserted_events)

    def with_rowset(build: Callable[[sa.FromClause], Any]) -> Callable[[Rowset], Any]:
        return lambda rowset: build(rowset(_VERDICT_ROW))

    if dialect == "postgresql":
        return (RowStatement("record_verdicts", dialect, record_in_one),)
    steps: Mapping[str, Callable[[sa.FromClause], Any]] = {
        "insert_attempts": _insert_attempts,
        "update_judged_states": _update_states,
        "advance_heads": advance_heads,
        "insert_events": insert_events,
        "upsert_statuses": lambda verdicts: _upsert_statuses(dialect, verdicts),
    }
    return tuple(RowStatement(name, dialect, with_rowset(build)) for name, build in steps.items())


def _shared_values(verdicts: sa.FromClause) -> sa.CTE:
    """One row with the values that all rows share. Not materialized, SQLite would search it again for each row."""
    first = sa.select(*(verdicts.c[name] for name in _SHARED_COLUMNS)).where(
        verdicts.c.position == sa.literal_column("1")
    )
    return first.cte("shared").prefix_with("MATERIALIZED")


def _run_of_events(shared: sa.FromClause) -> sa.FromClause:
    columns = [shared.c[f"{ORIGIN_PREFIX}{name}"].label(name) for name in ("run_id", "plan_version")]
    return sa.select(*columns, shared.c.event_count, shared.c.appended_at).subquery("run_of_events")


def _events(verdicts: sa.FromClause, shared: sa.FromClause) -> sa.FromClause:
    """The event rows of the verdicts."""
    origin = [shared.c[f"{ORIGIN_PREFIX}{name}"].label(name) for name in ORIGIN_COLUMNS]
    own = [verdicts.c[name] for name in (*OWN_COLUMNS, "position")]
    return (
        sa.select(*origin, *own, shared.c.event_count, shared.c.appended_at)
        .join_from(verdicts, shared, sa.true())
        .subquery("events")
    )


def _upsert_statuses(dialect: str, verdicts: sa.FromClause) -> Any:
    """Write the last attempt of each partition. A materialization also replaces the last one and its staleness."""
    columns: Mapping[str, sa.ColumnElement[Any]] = {
        **{name: verdicts.c[name] for name in STATUS_KEY},
        **{f"last_materialization_{name}": verdicts.c[f"materialization_{name}"] for name in _MATERIALIZATION},
        "last_attempt_run_id": verdicts.c.run_id,
        "last_attempt_at": verdicts.c.judged_at,
        "last_attempt_outcome": _by_outcome(verdicts, ATTEMPT_OUTCOMES),
        "partition_values": verdicts.c.partition_values,
        "row_version": verdicts.c.row_version,
    }
    rows = sa.select(*columns.values()).where(verdicts.c.is_last)
    insert = insert_into(dialect, partition_status)
    insert = insert.from_select(tuple(columns), rows)
    new, materializes = insert.excluded, insert.excluded.last_materialization_at.is_not(None)
    conditional = [f"last_materialization_{name}" for name in _MATERIALIZATION] + ["stale_since", "stale_reason_code"]
    changes: dict[str, Any] = {name: new[name] for name in columns if name not in STATUS_KEY}
    changes |= {name: sa.case((materializes, new[name]), else_=partition_status.c[name]) for name in conditional}
    is_newer = partition_status.c.row_version < new.row_version
    return insert.on_conflict_do_update(index_elements=list(STATUS_KEY), set_=changes, where=is_newer)


def _by_outcome(verdicts: sa.FromClause, texts: Mapping[Outcome, str]) -> sa.ColumnElement[str]:
    is_accepted = verdicts.c.outcome == sa.literal_column(f"'{Outcome.ACCEPTED}'")
    return sa.case(
        (is_accepted, sa.literal_column(f"'{texts[Outcome.ACCEPTED]}'")),
        else_=sa.literal_column(f"'{texts[Outcome.REJECTED]}'"),
    )


def _insert_attempts(verdicts: sa.FromClause) -> sa.Insert:
    names = tuple(column.name for column in attempts.c)
    return sa.insert(attempts).from_select(names, sa.select(*(verdicts.c[name] for name in names)))


def _update_states(verdicts: sa.FromClause) -> sa.Update:
    return (
        sa.update(partition_state)
        .values(
            updated_at=verdicts.c.judged_at,
            attempt_count=verdicts.c.attempt_no,
            **{name: verdicts.c[f"{STATE_PREFIX}{name}"] for name in _STATE_COLUMNS},
        )
        .where(same_key(partition_state, verdicts), verdicts.c.is_last)
    )


def locked_states(requested: sa.FromClause) -> sa.Select[Any]:
    """The state rows of the requested keys, locked in key order to prevent deadlocks.

    SQLite has no row locks. There, each write transaction locks the whole database.
    """
    return (
        sa.select(partition_state)
        .where(sa.tuple_(*key_of_table(partition_state)).in_(sa.select(*key_of_table(requested))))
        .order_by(*key_of_table(partition_state))
        .with_for_update(of=partition_state)
    )


def locked_verdict_rows(rowset: Rowset, clock: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """One row per verdict: its locked state, status and run, its earlier delivery, and the last attempt.

    The statement sees the other tables as of its start. After it waited for a lock, the last attempt may be missing.
    The caller then runs it again, under the lock.
    """
    columns: dict[str, Any] = dict.fromkeys((*STATUS_KEY, "run_id", "validation_id"), sa.Text())
    requested = rowset(dict(KEY_TYPES) | columns | {"position": sa.Integer()})
    locked = locked_states(requested).cte("locked")
    prior, last = attempts.alias("prior"), attempts.alias("last")
    same_verdict = sa.and_(
        same_key(prior, requested),
        prior.c.run_id == requested.c.run_id,
        prior.c.validation_id == requested.c.validation_id,
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
        .select_from(requested)
        .outerjoin(locked, same_key(locked, requested))
        .outerjoin(runs, sa.and_(same_key(runs, requested), runs.c.run_id == requested.c.run_id))
        .outerjoin(prior, same_verdict)
        .outerjoin(last, sa.and_(same_key(last, requested), last.c.attempt_no == locked.c.attempt_count))
        .outerjoin(partition_status, match_status_key(requested))
        .order_by(requested.c.position)
    )
