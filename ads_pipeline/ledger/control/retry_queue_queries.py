"""Queries of the retry queue: due retries, due requests, unscheduled failures and finished rows.

The SQL repeats the rule of `domain.retry.terminal_reason` over schedule, mark, date and current policy. A property
test compares the two.
"""

from datetime import date, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import FRESH_DAYS, WAITING_CLASSES, Lane, RetryPolicy, newest_expired_day
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.control.tables import claims, leases, parkings, requests, retry_schedule, terminal_marks
from ads_pipeline.ledger.row_mapping import KEY_TYPES, key_of_table, same_key
from ads_pipeline.ledger.tables import KEY, Instant, partition_state

REQUESTS_PER_CLEANUP: Final = 10_000  # a backfill may leave a million open requests
NOW: Final[sa.BindParameter[Any]] = sa.bindparam("now", type_=Instant())


def select_due(policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int) -> sa.Select[Any]:
    """Select the scheduled retries that are due, the longest due first."""
    return (
        sa.select(retry_schedule)
        .join_from(retry_schedule, partition_state, same_key(partition_state, retry_schedule))
        .where(
            retry_schedule.c.source == source,
            retry_schedule.c.due_at <= NOW,
            _needs_retry(),
            partition_state.c.attempt_count == retry_schedule.c.attempt_no,
            _has_attempts_left(policy),
            retry_schedule.c.logical_date > newest_expired_day(policy, today),
            _in_lane(retry_schedule, lane, today),
            *_unblocked_conditions(retry_schedule),
        )
        .order_by(retry_schedule.c.due_at, *key_of_table(retry_schedule))
        .limit(limit)
    )


def select_due_requests(policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int) -> sa.Select[Any]:
    """Select the open requests that can run now, the oldest first.

    A request whose fetch failed after it was made waits for the retry of that failure.
    """
    waits_for_retry = sa.exists().where(
        same_key(retry_schedule, requests),
        retry_schedule.c.failed_at > requests.c.requested_at,
        sa.or_(retry_schedule.c.due_at.is_(None), retry_schedule.c.due_at > NOW, sa.not_(_has_attempts_left(policy))),
    )
    return (
        sa.select(requests)
        .join_from(requests, partition_state, same_key(partition_state, requests))
        .where(
            requests.c.source == source,
            partition_state.c.attempt_count == requests.c.attempt_no,
            _in_lane(requests, lane, today),
            sa.not_(waits_for_retry),
            *_unblocked_conditions(requests),
        )
        .order_by(requests.c.requested_at, *key_of_table(requests))
        .limit(limit)
    )


def select_unscheduled(limit: int) -> sa.Select[Any]:
    """Select the failed partitions whose last failure has no scheduled retry, in key order."""
    scheduled = sa.exists().where(
        same_key(retry_schedule, partition_state), retry_schedule.c.attempt_no == partition_state.c.attempt_count
    )
    return (
        sa.select(*key_of_table(partition_state))
        .where(partition_state.c.status == sa.literal_column(f"'{Status.FAILED}'"), sa.not_(scheduled))
        .order_by(*key_of_table(partition_state))
        .limit(limit)
    )


def select_unscheduled_in_lane(
    policy: RetryPolicy, lane: Lane, *, source: str, today: date, after: PartitionKey | None, limit: int
) -> sa.Select[Any]:
    """Select the unscheduled failures of a lane that may be retried by the policy, after a key."""
    statement = select_unscheduled(limit).where(
        partition_state.c.source == source,
        partition_state.c.logical_date > newest_expired_day(policy, today),
        _in_lane(partition_state, lane, today),
        *_unblocked_conditions(partition_state),
    )
    if after is None:
        return statement
    position = sa.tuple_(*(sa.literal(getattr(after, name), KEY_TYPES[name]) for name in KEY))
    return statement.where(sa.tuple_(*key_of_table(partition_state)) > position)


def delete_finished() -> tuple[sa.Delete, ...]:
    """Delete the closed ones among the oldest requests, and the schedules of partitions that succeeded since."""
    order = requests.c.source, requests.c.requested_at
    oldest = sa.select(requests).order_by(*order).limit(REQUESTS_PER_CLEANUP).subquery("oldest")
    closed = (
        sa.select(*key_of_table(oldest))
        .join_from(oldest, partition_state, same_key(partition_state, oldest))
        .where(partition_state.c.attempt_count > oldest.c.attempt_no)
    )
    succeeded = sa.exists().where(
        same_key(partition_state, retry_schedule),
        partition_state.c.status == str(Status.SUCCESS),
        partition_state.c.updated_at > retry_schedule.c.failed_at,
    )
    delete_requests = sa.delete(requests).where(sa.tuple_(*key_of_table(requests)).in_(closed))
    return delete_requests, sa.delete(retry_schedule).where(succeeded)


def count_claimed(source: str, today: date) -> sa.Select[Any]:
    """Count the partitions that live runs have claimed, by lane."""
    fresh = claims.c.logical_date >= today - timedelta(days=FRESH_DAYS)
    lane = sa.case((fresh, str(Lane.FRESH)), else_=str(Lane.BACKFILL)).label("lane")
    return (
        sa.select(lane, sa.func.count().label("partitions"))
        .join_from(claims, leases, leases.c.run_id == claims.c.run_id)
        .where(claims.c.source == source, _is_live())
        .group_by(lane)
    )


def _needs_retry() -> sa.ColumnElement[bool]:
    """Failed, or pending after a failed fetch that nobody requested. A request waits for its own retry instead."""
    has_request = sa.exists().where(
        same_key(requests, partition_state), requests.c.attempt_no == partition_state.c.attempt_count
    )
    is_pending = sa.and_(partition_state.c.status == str(Status.PENDING), sa.not_(has_request))
    return sa.or_(partition_state.c.status == str(Status.FAILED), is_pending)


def _has_attempts_left(policy: RetryPolicy) -> sa.ColumnElement[bool]:
    """The attempt limit does not apply to waiting classes, because waiting is not an attempt."""
    return sa.or_(
        retry_schedule.c.failures < policy.max_attempts, retry_schedule.c.error_class.in_(sorted(WAITING_CLASSES))
    )


def _in_lane(table: sa.Table, lane: Lane, today: date) -> sa.ColumnElement[bool]:
    first = today - timedelta(days=FRESH_DAYS)
    return table.c.logical_date >= first if lane is Lane.FRESH else table.c.logical_date < first


def _unblocked_conditions(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """Neither marked as terminal, nor parked, nor claimed by a live run."""
    marked = sa.exists().where(same_key(terminal_marks, table))
    customer_parked = sa.and_(parkings.c.scope == "customer", parkings.c.name == table.c.customer_id)
    query_parked = sa.and_(parkings.c.scope == "query", parkings.c.name == table.c.query_name)
    source_parked = parkings.c.scope == "source"
    parked = sa.exists().where(
        parkings.c.source == table.c.source, sa.or_(customer_parked, query_parked, source_parked)
    )
    claimed = sa.exists().where(same_key(claims, table), leases.c.run_id == claims.c.run_id, _is_live())
    return [sa.not_(marked), sa.not_(parked), sa.not_(claimed)]


def _is_live() -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.ended_at.is_(None), leases.c.expires_at > NOW)
