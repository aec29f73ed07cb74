"""Queries of the retry queue: due retries, due requests, unscheduled failures and finished rows.

The SQL repeats the rule of `retry_policy.terminal_reason` over schedule, mark, date and current policy. A property
test compares the two. Lanes and the age limit are windows of days: `:since` to `:until`.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from ads_pipeline.domain.fetching.retry_policy import (
    FRESH_DAYS,
    PENDING_CLASSES,
    WAITING_CLASSES,
    Lane,
    RetryPolicy,
    newest_expired_day,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.sql.ledger_tables import Day, Instant
from ads_pipeline.ledger.sql.statements import KEY_COLUMNS, Statement, query

REQUESTS_PER_CLEANUP: Final = 10_000  # a backfill may leave a million open requests
_TYPES: Final[Mapping[str, TypeEngine[Any]]] = {
    "now": Instant(),
    "since": Day(),
    "lane_since": Day(),
    "until": Day(),
    "logical_date": Day(),
}
_IS_LIVE: Final = "ended_at IS NULL AND expires_at > :now"
# The attempt limit does not apply to waiting classes, because waiting is not an attempt.
_HAS_ATTEMPTS_LEFT: Final = "(failures < :max_attempts OR error_class IN :waiting_classes)"


def _is_marked(table: str) -> str:
    """Marked as terminal, by the log of actions. It has only marks and clearings that changed something, in turn."""
    return f"""((
        SELECT sum(CASE action WHEN 'mark_terminal' THEN 1 WHEN 'clear_terminal' THEN -1 ELSE 0 END)
        FROM control_action_partitions AS changed JOIN control_actions USING (action_id)
        WHERE (changed.source, changed.customer_id, changed.query_name, changed.logical_date) =
            ({table}.source, {table}.customer_id, {table}.query_name, {table}.logical_date)
    ) = 1)"""


def _is_unblocked(table: str) -> str:
    """Neither marked as terminal, nor parked, nor claimed by a live run."""
    return f"""
        {_is_marked(table)} IS NOT TRUE
        AND NOT EXISTS (
            SELECT 1 FROM parkings WHERE parkings.source = {table}.source AND (
                scope = 'source' OR scope = 'customer' AND parkings.name = {table}.customer_id
                OR scope = 'query' AND parkings.name = {table}.query_name))
        AND NOT EXISTS (
            SELECT 1 FROM claims JOIN leases ON leases.engine_run_id = claims.engine_run_id
            WHERE (claims.source, claims.customer_id, claims.query_name, claims.logical_date) =
                ({table}.source, {table}.customer_id, {table}.query_name, {table}.logical_date)
            AND {_IS_LIVE})"""


# The given partitions that are marked as terminal.
READ_MARKED: Final = Statement(
    "marked_partitions",
    KEY_COLUMNS,
    f"""
    SELECT source, customer_id, query_name, logical_date FROM given WHERE {_is_marked("given")}
    """,
)
_WITH_STATE: Final = """
    JOIN partition_state
        ON (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date) =
                (retry_queue.source, retry_queue.customer_id, retry_queue.query_name, retry_queue.logical_date)
    """
# The scheduled retries that are due, the longest due first. A pending partition without a request is due after a
# failed fetch too; with a request, it waits for the retry of that. What had to wait, was parked or is forgiven has no
# age limit.
_DUE: Final = f"""
    SELECT retry_queue.* FROM retry_queue {_WITH_STATE}
    WHERE retry_queue.source = :source AND due_at <= :now AND attempt_count = attempt_no
        AND retry_queue.logical_date BETWEEN :lane_since AND :until AND {_HAS_ATTEMPTS_LEFT}
        AND (retry_queue.logical_date >= :since
            OR status = 'pending' AND (failures = 0 OR error_class IN :pending_classes))
        AND (status = 'failed' OR status = 'pending' AND requested_no IS DISTINCT FROM attempt_count)
        AND {_is_unblocked("retry_queue")}
    ORDER BY due_at, retry_queue.source, retry_queue.customer_id, retry_queue.query_name,
        retry_queue.logical_date LIMIT :limit
    """
# The open requests that can run now, the oldest first. A request whose fetch failed after it was made waits for the
# retry of that failure.
_DUE_REQUESTS: Final = f"""
    SELECT retry_queue.* FROM retry_queue {_WITH_STATE}
    WHERE retry_queue.source = :source AND requested_at IS NOT NULL AND attempt_count = requested_no
        AND retry_queue.logical_date BETWEEN :since AND :until
        AND (failed_at > requested_at
            AND (due_at IS NULL OR due_at > :now OR NOT {_HAS_ATTEMPTS_LEFT})) IS NOT TRUE
        AND {_is_unblocked("retry_queue")}
    ORDER BY requested_at, retry_queue.source, retry_queue.customer_id, retry_queue.query_name,
        retry_queue.logical_date LIMIT :limit
    """
_IS_UNSCHEDULED: Final = """
    status = 'failed' AND NOT EXISTS (
        SELECT 1 FROM retry_queue
        WHERE (retry_queue.source, retry_queue.customer_id, retry_queue.query_name, retry_queue.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
            AND attempt_no = attempt_count)"""
# The failed partitions whose last failure has no scheduled retry, in key order.
SELECT_UNSCHEDULED: Final = query(
    f"""
    SELECT source, customer_id, query_name, logical_date
    FROM partition_state WHERE {_IS_UNSCHEDULED} ORDER BY source, customer_id, query_name, logical_date LIMIT :limit
    """
)
_UNSCHEDULED_IN_LANE: Final = f"""
    SELECT source, customer_id, query_name, logical_date FROM partition_state
    WHERE source = :source AND logical_date BETWEEN :since AND :until AND {_IS_UNSCHEDULED}
        AND {_is_unblocked("partition_state")}
        AND (source, customer_id, query_name, logical_date) > (:source, :customer_id, :query_name, :logical_date)
    ORDER BY source, customer_id, query_name, logical_date LIMIT :limit
    """
_COUNT_CLAIMED: Final = query(
    f"""
    SELECT CASE WHEN logical_date >= :since THEN '{Lane.FRESH}' ELSE '{Lane.BACKFILL}' END AS lane,
        count(*) AS partitions
    FROM claims JOIN leases ON leases.engine_run_id = claims.engine_run_id
    WHERE claims.source = :source AND {_IS_LIVE} GROUP BY lane
    """,
    now=Instant(),
    since=Day(),
)
# A row is finished when its request is closed and the partition succeeded after its last failure.
_IS_FINISHED: Final = """
    EXISTS (
        SELECT 1 FROM partition_state
        WHERE (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date) =
                (retry_queue.source, retry_queue.customer_id, retry_queue.query_name, retry_queue.logical_date)
            AND (failed_at IS NULL OR status = 'success' AND partition_state.updated_at > failed_at)
            AND (requested_no IS NULL OR attempt_count > requested_no))
    """
# Delete the finished ones among the oldest requests and among the planned retries.
DELETE_FINISHED: Final = (
    query(
        f"""
        DELETE FROM retry_queue WHERE (source, customer_id, query_name, logical_date) IN (
            SELECT oldest.source, oldest.customer_id, oldest.query_name, oldest.logical_date FROM (
                SELECT * FROM retry_queue WHERE requested_at IS NOT NULL
                ORDER BY source, requested_at LIMIT {REQUESTS_PER_CLEANUP}
            ) AS oldest)
            AND {_IS_FINISHED}
        """
    ),
    query(f"DELETE FROM retry_queue WHERE failed_at IS NOT NULL AND {_IS_FINISHED}"),
)


def select_due(policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int) -> sa.TextualSelect:
    """Select the scheduled retries that are due, the longest due first."""
    days = _days_of(lane, today, policy) | {"lane_since": _days_of(lane, today)["since"]}
    return _bind(_DUE, source, limit, days, policy)


def select_due_requests(policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int) -> sa.TextualSelect:
    """Select the open requests that can run now, the oldest first. A request has no age limit."""
    return _bind(_DUE_REQUESTS, source, limit, _days_of(lane, today), policy)


def select_unscheduled_in_lane(
    policy: RetryPolicy, lane: Lane, *, source: str, today: date, after: PartitionKey | None, limit: int
) -> sa.TextualSelect:
    """Select the unscheduled failures of a lane that may be retried by the policy, after a key."""
    days = _days_of(lane, today, policy)
    position: dict[str, Any] = {"customer_id": "", "query_name": "", "logical_date": date.min}  # before every key
    if after is not None:
        position = {name: getattr(after, name) for name in position}
    return _bind(_UNSCHEDULED_IN_LANE, source, limit, days).bindparams(**position)


def count_claimed(source: str, today: date) -> sa.TextualSelect:
    """Count the partitions that live runs have claimed, by lane."""
    return _COUNT_CLAIMED.bindparams(source=source, since=today - timedelta(days=FRESH_DAYS))


def _days_of(lane: Lane, today: date, policy: RetryPolicy | None = None) -> dict[str, date]:
    """The days of a lane, with a policy only those that are not too old for a retry."""
    fresh, day = today - timedelta(days=FRESH_DAYS), timedelta(days=1)
    since, until = (fresh, date.max) if lane is Lane.FRESH else (date.min, fresh - day)
    return {"since": since if policy is None else max(since, newest_expired_day(policy, today) + day), "until": until}


def _bind(
    text: str, source: str, limit: int, days: dict[str, date], policy: RetryPolicy | None = None
) -> sa.TextualSelect:
    values: dict[str, Any] = {"source": source, "limit": limit} | days
    typed = (sa.bindparam(name, type_=kind) for name, kind in _TYPES.items() if f":{name}" in text)
    statement = query(text).bindparams(*typed)
    if policy is not None:
        values |= {"max_attempts": policy.max_attempts, "waiting_classes": sorted(WAITING_CLASSES)}
        statement = statement.bindparams(sa.bindparam("waiting_classes", expanding=True))
        if ":pending_classes" in text:
            values["pending_classes"] = sorted(PENDING_CLASSES)
            statement = statement.bindparams(sa.bindparam("pending_classes", expanding=True))
    return statement.bindparams(**values)
