"""SQL statements that append run events.

The `run_head` row of a run is the lock on its event order. A writer takes this lock after all its other locks and
holds it until the commit. So events of a run become visible in the order of their `run_seq`.
"""

from typing import Final

from ads_pipeline.ledger.statements import Columns, Statement, columns_of, names
from ads_pipeline.ledger.tables import run_events

_GIVEN_EVENT: Final = [column.name for column in run_events.c if column.name not in {"run_seq", "persisted_at"}]
_EVENT: Final[Columns] = {
    **columns_of(run_events, *_GIVEN_EVENT),
    "plan_version": "text",
    "position": "integer",  # among the events of the same run in this call, from 1
    "event_count": "integer",  # of the same run in this call
    "appended_at": "instant",  # null: the database's clock
}
# Add the number of each run's events to its head, and insert missing heads. max() gives each run one time. Without
# it, every row would read the clock again.
_ADVANCE_HEADS: Final = """
    INSERT INTO run_head (run_id, plan_version, last_seq, last_at, opened_at)
    SELECT run_id, plan_version, event_count, max(coalesce(appended_at, {now})), max(coalesce(appended_at, {now}))
    FROM given WHERE true GROUP BY run_id, plan_version, event_count ORDER BY run_id
    ON CONFLICT (run_id) DO UPDATE
    SET plan_version = excluded.plan_version,  -- a trigger refuses a different one
        last_seq = run_head.last_seq + excluded.last_seq,
        last_at = {greatest}(run_head.last_at, excluded.last_at)
    """
_INSERT_EVENTS: Final = f"""
    INSERT INTO run_events (run_seq, persisted_at, {names(_GIVEN_EVENT)})
    SELECT heads.last_seq - event_count + position, heads.last_at, {names(_GIVEN_EVENT, prefix="given.")}
    FROM given JOIN {{heads}} ON heads.run_id = given.run_id
    RETURNING run_id, run_seq, idempotency_key
    """
# The last statement returns the assigned `run_seq`.
APPEND_ON_POSTGRES: Final = (
    Statement(
        "append_events",
        _EVENT,
        f"""
    WITH given AS (SELECT * FROM {{given}}), heads AS ({_ADVANCE_HEADS} RETURNING run_id, last_seq, last_at)
    {_INSERT_EVENTS}
    """,
    ),
)
APPEND_ON_SQLITE: Final = (
    Statement("advance_heads", _EVENT, _ADVANCE_HEADS.replace("FROM given", "FROM {given}")),
    Statement(
        "insert_events",
        _EVENT,
        _INSERT_EVENTS.replace("FROM given", "FROM {given}").replace("{heads}", "run_head AS heads"),
    ),
)
# For each event its run's locked head, and the existing event with the same key. The statement sees events as of its
# start, but the head as of the moment when it got the lock. `seen_seq` is the head as of the start. If it differs
# from `last_seq`, another writer appended while the statement waited.
FIND_EXISTING: Final = Statement(
    "find_existing_events",
    {"position": "integer", "run_id": "text", "idempotency_key": "text"},
    """
    WITH locked AS (
        SELECT * FROM run_head WHERE run_id IN (SELECT run_id FROM {given}) ORDER BY run_id {for_update}
    )
    SELECT
        locked.plan_version, locked.last_seq, locked.retired_at, seen.last_seq AS seen_seq, prior.run_seq,
        prior.event_data
    FROM {given}
    LEFT JOIN locked USING (run_id)
    LEFT JOIN run_head AS seen USING (run_id)
    LEFT JOIN run_events AS prior USING (run_id, idempotency_key)
    ORDER BY given.position
    """,
)
# Insert heads for unknown runs, so that there is a row to lock.
INSERT_MISSING_HEADS: Final = Statement(
    "insert_missing_heads",
    {"run_id": "text", "plan_version": "text", "appended_at": "instant"},
    """
    INSERT INTO run_head (run_id, plan_version, last_seq, last_at, opened_at)
    SELECT run_id, plan_version, 0, appended_at, appended_at FROM {given} WHERE true ORDER BY run_id
    ON CONFLICT DO NOTHING
    """,
)
COUNT_CONFLICTS: Final = Statement(
    "count_conflicts",
    {"run_id": "text", "conflicts": "integer"},
    """
    UPDATE run_head SET payload_conflicts = payload_conflicts + given.conflicts
    FROM {given} WHERE run_head.run_id = given.run_id
    """,
)


def append_statements(dialect: str) -> tuple[Statement, ...]:
    return APPEND_ON_SQLITE if dialect == "sqlite" else APPEND_ON_POSTGRES
