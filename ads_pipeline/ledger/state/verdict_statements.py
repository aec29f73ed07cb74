"""SQL statements that lock the state of verdicts' partitions, and record the verdicts.

One given row holds everything that a verdict writes: attempt, state, status and event. Postgres writes all of it in
one statement, SQLite in five.
"""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from ads_pipeline.ledger.sql.state_tables import STATUS_KEY, attempts, partition_status, run_events
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Columns, RowWrite, Statement, Values, columns_of, names
from ads_pipeline.ledger.write_steps.event_rows import (
    ADVANCE_HEAD_ON_SQLITE,
    ADVANCE_HEAD_TEXT,
    FROM_HEADS_ON_POSTGRES,
    FROM_HEADS_ON_SQLITE,
    INSERT_OWN_EVENTS_TEXT,
    ORIGIN,
    OWN_COLUMNS,
)

# One row per verdict: its locked state, status and run, its earlier delivery, the last attempt, and the figures of
# the attempt that last gave a run authority. The statement sees the other tables as of its start. After it waited for
# a lock, the last attempt may be missing. The caller then executes it again, under the lock.
READ_VERDICT_ROWS: Final = Statement(
    "read_verdict_rows",
    {**RUN_COLUMNS, "validation_id": "text", **dict.fromkeys(STATUS_KEY, "text"), "position": "integer"},
    """
    WITH given AS MATERIALIZED (SELECT * FROM given), locked AS (
        SELECT * FROM partition_state
        WHERE (source, customer_id, query_name, logical_date) IN (
            SELECT source, customer_id, query_name, logical_date FROM given
        )
        ORDER BY source, customer_id, query_name, logical_date FOR UPDATE
    )
    SELECT
        locked.status, locked.current_run_id, locked.schema_version, locked.record_count, locked.updated_at,
        locked.error_message, locked.attempt_count,
        runs.ordinal, runs.schema_version AS run_schema_version, runs.record_count AS run_record_count,
        prior.outcome AS prior_outcome, prior.effect AS prior_effect, prior.attempt_no AS prior_attempt_no,
        last.attempt_no AS last_attempt_no, last.current_ordinal, last.message_ordinal,
        promoted.run_id AS promoted_run_id, promoted.rows_read, promoted.cost_micros, promoted.conversions,
        promoted.conversions_value,
        partition_status.row_version, clock_timestamp() AS now
    FROM given
    LEFT JOIN locked USING (source, customer_id, query_name, logical_date)
    LEFT JOIN runs USING (source, customer_id, query_name, logical_date, run_id)
    LEFT JOIN attempts AS prior USING (source, customer_id, query_name, logical_date, run_id, validation_id)
    LEFT JOIN attempts AS last
        ON (last.source, last.customer_id, last.query_name, last.logical_date) =
            (given.source, given.customer_id, given.query_name, given.logical_date)
            AND last.attempt_no = locked.attempt_count
    LEFT JOIN attempts AS promoted
        ON (promoted.source, promoted.customer_id, promoted.query_name, promoted.logical_date) =
            (given.source, given.customer_id, given.query_name, given.logical_date) AND promoted.attempt_no =
        CASE WHEN last.effect = 'promoted' THEN last.attempt_no ELSE (
            SELECT earlier.attempt_no FROM attempts AS earlier
            WHERE (earlier.source, earlier.customer_id, earlier.query_name, earlier.logical_date) =
                (given.source, given.customer_id, given.query_name, given.logical_date)
                AND earlier.effect = 'promoted'
            ORDER BY earlier.attempt_no DESC LIMIT 1
        ) END
    LEFT JOIN partition_status USING (tenant_id, workspace_id, asset_key, partition_key)
    ORDER BY given.position
    """,
)

# Everything that a verdict writes: the attempt, the state after it, the status and the event. State and status are
# written from the last row of each partition.
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
    "materialization_at": "instant",
    "materialization_code_version": "text",
    **columns_of(run_events, *OWN_COLUMNS),
    "is_last": "boolean",
    "position": "integer",
}
_INSERT_ATTEMPTS: Final = f"""
    INSERT INTO attempts ({names(columns_of(attempts))})
    SELECT {names(columns_of(attempts), prefix="given.")} FROM given
    """
_UPDATE_STATES: Final = """
    UPDATE partition_state
    SET status = given.state_status, current_run_id = given.state_current_run_id,
        schema_version = given.state_schema_version, record_count = given.state_record_count,
        error_message = given.state_error_message, updated_at = given.judged_at,
        attempt_count = given.attempt_no
    FROM given
    WHERE (partition_state.source, partition_state.customer_id, partition_state.query_name,
        partition_state.logical_date) = (given.source, given.customer_id, given.query_name, given.logical_date)
        AND given.is_last
    """
# A materialization replaces the last one and its staleness. Any other attempt keeps them.
_UPSERT_STATUSES: Final = """
    INSERT INTO partition_status (
        tenant_id, workspace_id, asset_key, partition_key, last_materialization_run_id, last_materialization_at,
            last_materialization_code_version,
        last_attempt_run_id, last_attempt_at, last_attempt_outcome, partition_values, row_version
    )
    SELECT
        given.tenant_id, given.workspace_id, given.asset_key, given.partition_key, given.materialization_run_id,
            given.materialization_at,
        given.materialization_code_version, given.run_id, given.judged_at, given.attempt_outcome,
        given.partition_values, given.row_version
    FROM given WHERE given.is_last
    ON CONFLICT (tenant_id, workspace_id, asset_key, partition_key) DO UPDATE
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
_RECORD_ON_POSTGRES: Final = Statement(
    "record_verdicts",
    _VERDICT,
    f"""
    WITH given AS (SELECT * FROM given), shared AS MATERIALIZED (SELECT * FROM shared),
    heads AS ({ADVANCE_HEAD_TEXT} RETURNING engine_run_id, last_seq, last_at),
    new_events AS ({INSERT_OWN_EVENTS_TEXT} {FROM_HEADS_ON_POSTGRES}),
    new_attempts AS ({_INSERT_ATTEMPTS}),
    new_states AS ({_UPDATE_STATES})
    {_UPSERT_STATUSES}
    """,
    shared=ORIGIN,
)
_ATTEMPTS_ON_SQLITE: Final = RowWrite("insert_attempts", _VERDICT, _INSERT_ATTEMPTS)
_STATES_ON_SQLITE: Final = RowWrite("update_judged_states", _VERDICT, _UPDATE_STATES)
_EVENTS_ON_SQLITE: Final = RowWrite(
    "insert_verdict_events", _VERDICT, f"{INSERT_OWN_EVENTS_TEXT} {FROM_HEADS_ON_SQLITE}", shared=ORIGIN
)
_STATUSES_ON_SQLITE: Final = RowWrite("upsert_statuses", _VERDICT, _UPSERT_STATUSES)


def write_verdicts(connection: sa.Connection, rows: Sequence[Values], origin: Values) -> int:
    """Write attempts, states, statuses and events of verdicts. Return the number of statuses written.

    It is too small when a status has a newer version.
    """
    if connection.dialect.name != "sqlite":
        return _RECORD_ON_POSTGRES.execute(connection, rows, origin).rowcount
    _ATTEMPTS_ON_SQLITE.write(connection, rows)
    _STATES_ON_SQLITE.write(connection, rows)
    ADVANCE_HEAD_ON_SQLITE.write(connection, [()], origin)
    _EVENTS_ON_SQLITE.write(connection, rows, origin)
    return _STATUSES_ON_SQLITE.write(connection, rows)
