"""Builds the questions about what is due: failures that may be tried again, and requests that wait for a run.

Whether a failed partition is terminal is computed here as `retry.terminal` does it, from what is planned for it, its
mark, its day and the policy of this moment; a test holds the two together.
"""

from datetime import date, timedelta
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.retry import FRESH_DAYS, WAITS, Lane, RetryPolicy, oldest_day
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.control.tables import claims, leases, parkings, requests, retry_schedule, terminal_marks
from ads_pipeline.ledger.row_mapping import key_of, same_key
from ads_pipeline.ledger.tables import Instant, partition_state

LOOKED_AT: Final = 10_000
NOW: Final[sa.BindParameter[Any]] = sa.bindparam("now", type_=Instant())


def due(policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int) -> sa.Select[Any]:
    """The failed partitions that may be tried again, longest due first."""
    return (
        sa.select(*key_of(retry_schedule))
        .join_from(retry_schedule, partition_state, same_key(partition_state, retry_schedule))
        .where(
            retry_schedule.c.source == source,
            retry_schedule.c.due_at <= NOW,
            partition_state.c.status == str(Status.FAILED),
            partition_state.c.attempt_count == retry_schedule.c.attempt_no,
            _has_tries(policy),
            retry_schedule.c.logical_date > oldest_day(policy, today),
            _in_lane(retry_schedule, lane, today),
            *_free(retry_schedule),
        )
        .order_by(retry_schedule.c.due_at, *key_of(retry_schedule))
        .limit(limit)
    )


def wanted(policy: RetryPolicy, lane: Lane, *, source: str, today: date, limit: int) -> sa.Select[Any]:
    """The requests that no verdict has answered and nothing holds back, oldest first.

    One whose fetch failed since it was made waits as any failure does.
    """
    failing = sa.exists().where(
        same_key(retry_schedule, requests),
        retry_schedule.c.failed_at > requests.c.requested_at,
        sa.or_(retry_schedule.c.due_at.is_(None), retry_schedule.c.due_at > NOW, sa.not_(_has_tries(policy))),
    )
    return (
        sa.select(requests)
        .join_from(requests, partition_state, same_key(partition_state, requests))
        .where(
            requests.c.source == source,
            partition_state.c.attempt_count == requests.c.attempt_no,
            _in_lane(requests, lane, today),
            sa.not_(failing),
            *_free(requests),
        )
        .order_by(requests.c.requested_at, *key_of(requests))
        .limit(limit)
    )


def unplanned(limit: int) -> sa.Select[Any]:
    """The failed partitions of whose last failure nothing was made yet."""
    planned = sa.exists().where(
        same_key(retry_schedule, partition_state), retry_schedule.c.attempt_no == partition_state.c.attempt_count
    )
    return (
        sa.select(*key_of(partition_state))
        .where(partition_state.c.status == sa.literal_column(f"'{Status.FAILED}'"), sa.not_(planned))
        .order_by(*key_of(partition_state))
        .limit(limit)
    )


def answered() -> tuple[sa.Delete, ...]:
    """Drops the requests that a verdict has answered, and the plans of what is a success now.

    Only of the oldest requests: those are what is asked for next, and a backfill may leave a million open ones.
    """
    in_order = requests.c.source, requests.c.requested_at
    oldest = sa.select(requests).order_by(*in_order).limit(LOOKED_AT).subquery("oldest")
    closed = (
        sa.select(*key_of(oldest))
        .join_from(oldest, partition_state, same_key(partition_state, oldest))
        .where(partition_state.c.attempt_count > oldest.c.attempt_no)
    )
    succeeded = sa.exists().where(
        same_key(partition_state, retry_schedule),
        partition_state.c.status == str(Status.SUCCESS),
        partition_state.c.updated_at > retry_schedule.c.failed_at,
    )
    drop_requests = sa.delete(requests).where(sa.tuple_(*key_of(requests)).in_(closed))
    return drop_requests, sa.delete(retry_schedule).where(succeeded)


def at_work(source: str, today: date) -> sa.Select[Any]:
    """How many partitions are claimed by live runs, by lane."""
    fresh = claims.c.logical_date >= today - timedelta(days=FRESH_DAYS)
    lane = sa.case((fresh, str(Lane.FRESH)), else_=str(Lane.BACKFILL)).label("lane")
    return (
        sa.select(lane, sa.func.count().label("partitions"))
        .join_from(claims, leases, leases.c.run_id == claims.c.run_id)
        .where(claims.c.source == source, _alive())
        .group_by(lane)
    )


def _has_tries(policy: RetryPolicy) -> sa.ColumnElement[bool]:
    """A wait is no attempt, so the limit of attempts does not end it."""
    return sa.or_(retry_schedule.c.failures < policy.max_attempts, retry_schedule.c.error_class.in_(sorted(WAITS)))


def _in_lane(table: sa.Table, lane: Lane, today: date) -> sa.ColumnElement[bool]:
    first = today - timedelta(days=FRESH_DAYS)
    return table.c.logical_date >= first if lane is Lane.FRESH else table.c.logical_date < first


def _free(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """Not marked as terminal, not parked, and no live run at it."""
    marked = sa.exists().where(same_key(terminal_marks, table))
    of_customer = sa.and_(parkings.c.scope == "customer", parkings.c.name == table.c.customer_id)
    of_query = sa.and_(parkings.c.scope == "query", parkings.c.name == table.c.query_name)
    parked = sa.exists().where(parkings.c.source == table.c.source, sa.or_(of_customer, of_query))
    held = sa.exists().where(same_key(claims, table), leases.c.run_id == claims.c.run_id, _alive())
    return [sa.not_(marked), sa.not_(parked), sa.not_(held)]


def _alive() -> sa.ColumnElement[bool]:
    return sa.and_(leases.c.ended_at.is_(None), leases.c.expires_at > NOW)
