"""SQL statements that lock the state of verdicts' partitions, and record the verdicts.

One given row holds everything that a verdict writes: attempt, state, status and event. Postgres writes all of it in
one statement, SQLite in five.
"""

from typing import Final

from ads_pipeline.ledger.events.event_rows import OWN_COLUMNS
from ads_pipeline.ledger.statements import RUN_COLUMNS, Columns, Statement, columns_of, names
from ads_pipeline.ledger.tables import STATUS_KEY, attempts, partition_status, run_events

# One row per verdict: its locked state, status and run, its earlier delivery, the last attempt, and the figures of
# the attempt that last gave a run authority. The statement sees the other tables as of its start. After it waited for
# a lock, the last attempt may be missing. The caller then executes it again, under the lock.
READ_VERDICT_ROWS: Final = Statement(
    "read_verdict_rows",
    {**RUN_COLUMNS, "validation_id": "text", **dict.fromkeys(STATUS_KEY, "text"), "position": "integer"},
    """
    WITH locked AS (
        SELECT * FROM partition_state WHERE ({key}) IN (SELECT {key} FROM {given}) ORDER BY {key} {for_update}
    )
    SELECT
        locked.status, locked.current_run_id, locked.schema_version, locked.record_count, locked.updated_at,
        locked.error_message, locked.attempt_count,
        runs.ordinal, runs.schema_version AS run_schema_version, runs.record_count AS run_record_count,
        prior.outcome AS prior_outcome, prior.effect AS prior_effect, prior.attempt_no AS prior_attempt_no,
        last.attempt_no AS last_attempt_no, last.current_ordinal, last.message_ordinal,
        promoted.run_id AS promoted_run_id, promoted.rows_read, promoted.cost_micros, promoted.conversions,
        promoted.conversions_value,
        partition_status.row_version, {now} AS now
    FROM {given}
    LEFT JOIN locked USING ({key})
    LEFT JOIN runs USING ({key}, run_id)
    LEFT JOIN attempts AS prior USING ({key}, run_id, validation_id)
    LEFT JOIN attempts AS last ON ({last.key}) = ({given.key}) AND last.attempt_no = locked.attempt_count
    LEFT JOIN attempts AS promoted ON ({promoted.key}) = ({given.key}) AND promoted.attempt_no = (
        SELECT earlier.attempt_no FROM attempts AS earlier
        WHERE ({earlier.key}) = ({given.key}) AND earlier.effect = 'promoted'
        ORDER BY earlier.attempt_no DESC LIMIT 1
    )
    LEFT JOIN partition_status USING ({status_key})
    ORDER BY given.position
    """,
)

# Everything that a verdict writes: the attempt, the state after it, the status and the event. Only the first row
# carries the values that all rows share, which are those of the event's origin.
_SHARED_COLUMNS: Final[Columns] = {
    "origin_run_id": "text",
    "origin_plan_version": "text",
    "origin_engine_attempt_id": "bigint",
    "origin_engine_run_ref": "text",
    "origin_adapter_version": "text",
    "appended_at": "instant",
    "event_count": "integer",
}
_VERDICT: Final[Columns] = {
    **columns_of(attempts),
    "state_status": "text",
    "state_current_run_id": "text",
    "state_schema_version": "text",
    "state_record_count": "bigint",
    "state_error_message": "text",
    **columns_of(partition_status, *STATUS_KEY, "partition_values", "row_version"),
    "attempt_outcome": "text",
    "materialization_run_id": "text",
    "materialization_code_version": "text",
    "materialization_at": "instant",
    **columns_of(run_events, *OWN_COLUMNS),
    "is_last": "boolean",
    "position": "integer",
    **_SHARED_COLUMNS,
}
_SHARED: Final = f"shared AS MATERIALIZED (SELECT {names(_SHARED_COLUMNS)} FROM given WHERE position = 1)"
_INSERT_ATTEMPTS: Final = f"""
    INSERT INTO attempts ({names(columns_of(attempts))}) SELECT {names(columns_of(attempts))} FROM given
    """
_UPDATE_STATES: Final = """
    UPDATE partition_state
    SET status = state_status, current_run_id = state_current_run_id, schema_version = state_schema_version,
        record_count = state_record_count, error_message = state_error_message, updated_at = judged_at,
        attempt_count = attempt_no
    FROM given
    WHERE ({partition_state.key}) = ({given.key}) AND is_last
    """
_ADVANCE_HEAD: Final = """
    INSERT INTO run_head (run_id, plan_version, last_seq, last_at, opened_at)
    SELECT origin_run_id, origin_plan_version, event_count, appended_at, appended_at FROM shared WHERE true
    ON CONFLICT (run_id) DO UPDATE
    SET plan_version = excluded.plan_version,  -- a trigger refuses a different one
        last_seq = run_head.last_seq + excluded.last_seq,
        last_at = {greatest}(run_head.last_at, excluded.last_at)
    """
_INSERT_EVENTS: Final = f"""
    INSERT INTO run_events (
        run_id, run_seq, engine_attempt_id, engine_run_ref, adapter_version, persisted_at, {names(OWN_COLUMNS)}
    )
    SELECT
        heads.run_id, heads.last_seq - shared.event_count + position, shared.origin_engine_attempt_id,
        shared.origin_engine_run_ref, shared.origin_adapter_version, heads.last_at, {names(OWN_COLUMNS)}
    FROM given CROSS JOIN shared JOIN heads ON heads.run_id = shared.origin_run_id
    """
# A materialization replaces the last one and its staleness. Any other attempt keeps them.
_UPSERT_STATUSES: Final = """
    INSERT INTO partition_status (
        {status_key}, last_materialization_run_id, last_materialization_at, last_materialization_code_version,
        last_attempt_run_id, last_attempt_at, last_attempt_outcome, partition_values, row_version
    )
    SELECT
        {status_key}, materialization_run_id, materialization_at, materialization_code_version,
        run_id, judged_at, attempt_outcome, partition_values, row_version
    FROM given WHERE is_last
    ON CONFLICT ({status_key}) DO UPDATE
    SET last_materialization_run_id = CASE WHEN excluded.last_materialization_at IS NULL
            THEN partition_status.last_materialization_run_id ELSE excluded.last_materialization_run_id END,
        last_materialization_at = CASE WHEN excluded.last_materialization_at IS NULL
            THEN partition_status.last_materialization_at ELSE excluded.last_materialization_at END,
        last_materialization_code_version = CASE WHEN excluded.last_materialization_at IS NULL
            THEN partition_status.last_materialization_code_version
            ELSE excluded.last_materialization_code_version END,
        last_attempt_run_id = excluded.last_attempt_run_id,
        last_attempt_at = excluded.last_attempt_at,
        last_attempt_outcome = excluded.last_attempt_outcome,
        stale_since = CASE WHEN excluded.last_materialization_at IS NULL THEN partition_status.stale_since END,
        stale_reason_code = CASE WHEN excluded.last_materialization_at IS NULL
            THEN partition_status.stale_reason_code END,
        partition_values = excluded.partition_values,
        row_version = excluded.row_version
    WHERE partition_status.row_version < excluded.row_version
    """
# The last statement returns the number of statuses written. It is too small when a status has a newer version.
RECORD_ON_POSTGRES: Final = (
    Statement(
        "record_verdicts",
        _VERDICT,
        f"""
    WITH given AS (SELECT * FROM {{given}}),
    {_SHARED},
    heads AS ({_ADVANCE_HEAD} RETURNING run_id, last_seq, last_at),
    new_events AS ({_INSERT_EVENTS}),
    new_attempts AS ({_INSERT_ATTEMPTS}),
    new_states AS ({_UPDATE_STATES})
    {_UPSERT_STATUSES}
    """,
    ),
)
RECORD_ON_SQLITE: Final = tuple(
    Statement(name, _VERDICT, text.replace("FROM given", "FROM {given}"))
    for name, text in {
        "insert_attempts": _INSERT_ATTEMPTS,
        "update_judged_states": _UPDATE_STATES,
        "advance_head": f"WITH {_SHARED} {_ADVANCE_HEAD}",
        "insert_verdict_events": f"WITH {_SHARED}, heads AS (SELECT * FROM run_head) {_INSERT_EVENTS}",
        "upsert_statuses": _UPSERT_STATUSES,
    }.items()
)
