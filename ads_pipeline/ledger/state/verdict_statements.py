"""SQL statements that lock the state of verdicts' partitions, and record the verdicts.

One given row holds the attempt of a verdict and the state after it. `partition_status` writes the status row.
"""

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa

from ads_pipeline.ledger.sql.ledger_tables import STATUS_KEY, attempts
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Columns, RowWrite, Statement, Values, columns_of, names
from ads_pipeline.ledger.write_steps.partition_status import FOLDED_COLUMNS

# One row per verdict: its locked state, status and run, its earlier delivery, the last attempt, and the figures of
# the attempt that last gave a run authority. The statement sees the other tables as of its start. After it waited for
# a lock, the last attempt may be missing. The caller then executes it again, under the lock.
READ_VERDICT_ROWS: Final = Statement(
    "read_verdict_rows",
    {**RUN_COLUMNS, "validation_id": "text", **dict.fromkeys(STATUS_KEY, "text"), "position": "integer"},
    f"""
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
        {names(FOLDED_COLUMNS, prefix="partition_status.")}, clock_timestamp() AS now
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

# The attempt, and the state after it. The state is written from the last row of each partition.
_VERDICT: Final[Columns] = {
    **columns_of(attempts),
    "state_status": "text",
    "state_current_run_id": "text",
    "state_schema_version": "text",
    "state_record_count": "bigint",
    "state_error_message": "text",
    "is_last": "boolean",
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
_RECORD_ON_POSTGRES: Final = Statement(
    "record_verdicts",
    _VERDICT,
    f"WITH given AS (SELECT * FROM given), new_attempts AS ({_INSERT_ATTEMPTS}) {_UPDATE_STATES}",
)
_ATTEMPTS_ON_SQLITE: Final = RowWrite("insert_attempts", _VERDICT, _INSERT_ATTEMPTS)
_STATES_ON_SQLITE: Final = RowWrite("update_judged_states", _VERDICT, _UPDATE_STATES)


def write_verdicts(connection: sa.Connection, rows: Sequence[Values]) -> None:
    """Write the attempts of verdicts, and the states after them."""
    if connection.dialect.name != "sqlite":
        _RECORD_ON_POSTGRES.execute(connection, rows)
        return
    _ATTEMPTS_ON_SQLITE.write(connection, rows)
    _STATES_ON_SQLITE.write(connection, rows)
