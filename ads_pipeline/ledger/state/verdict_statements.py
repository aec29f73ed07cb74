"""SQL statements that lock the state of verdicts' partitions, read all that decides their effects, and log them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from ads_pipeline.ledger.sql.ledger_tables import STATUS_KEY, attempts
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Statement, insert, names
from ads_pipeline.ledger.write_steps.partition_status import FOLDED_COLUMNS


class VerdictRow(NamedTuple):
    """The facts under the lock of a verdict's partition, as `READ_VERDICT_ROWS` selects them.

    `prior_…` are of the earlier delivery of the verdict, `last_attempt_no` and the next two of the partition's last
    attempt, the figures of the attempt that last gave a run authority. `folded` has `FOLDED_COLUMNS` of its status.
    """

    status: str | None
    current_run_id: str | None
    schema_version: str | None
    record_count: int | None
    updated_at: datetime | None
    error_message: str | None
    attempt_count: int | None
    ordinal: int | None
    run_schema_version: str | None
    run_record_count: int | None
    prior_outcome: str | None
    prior_effect: str | None
    prior_attempt_no: int | None
    last_attempt_no: int | None
    current_ordinal: int | None
    message_ordinal: int | None
    promoted_run_id: str | None
    rows_read: int | None
    cost_micros: int | None
    conversions: float | None
    conversions_value: float | None
    now: datetime
    folded: Sequence[Any]


# The statement sees the other tables as of its start. After it waited for a lock, the last attempt may be missing.
# The caller then executes it again, under the lock.
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
        clock_timestamp() AS now, {names(FOLDED_COLUMNS, prefix="partition_status.")}
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

INSERT_ATTEMPTS: Final = insert(attempts)
