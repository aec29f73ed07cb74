"""Reads the facts from which `domain.readability` derives the condition of each day of a query."""

from collections.abc import Collection, Iterator, Mapping
from datetime import date
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.readability import DayFacts
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.tables import Day, Instant, runs

# One row for each recorded partition of a query. The joined attempt is the last verdict on the newest judged run.
# Most partitions have a single accepted run and skip that lookup. A withdrawal counts until a verdict follows it.
_DAY_FACTS: Final = """
SELECT
    state.customer_id,
    state.logical_date,
    state.status,
    state.attempt_count,
    state.record_count,
    state.updated_at,
    COALESCE(pointer.availability = 'published', FALSE) AS is_published,
    EXISTS (
        SELECT 1 FROM demotions
        WHERE demotions.source = state.source AND demotions.customer_id = state.customer_id
          AND demotions.query_name = state.query_name AND demotions.logical_date = state.logical_date
          AND demotions.run_id = state.current_run_id
    ) AS demotion_pending,
    state.status <> 'success' AND EXISTS (
        SELECT 1 FROM runs
        WHERE runs.source = state.source AND runs.customer_id = state.customer_id
          AND runs.query_name = state.query_name AND runs.logical_date = state.logical_date
          AND NOT EXISTS (
              SELECT 1 FROM attempts
              WHERE attempts.source = runs.source AND attempts.customer_id = runs.customer_id
                AND attempts.query_name = runs.query_name AND attempts.logical_date = runs.logical_date
                AND attempts.run_id = runs.run_id
          )
    ) AS has_unjudged_run,
    newest.outcome,
    newest.reason,
    newest.judged_at,
    state.attempt_count > 1 AND EXISTS (
        SELECT 1 FROM attempts AS earlier
        WHERE earlier.source = state.source AND earlier.customer_id = state.customer_id
          AND earlier.query_name = state.query_name AND earlier.logical_date = state.logical_date
          AND earlier.outcome = 'accepted' AND earlier.run_id <> state.current_run_id
    ) AS is_restated,
    CASE WHEN state.status = 'pending' THEN (
        SELECT action.operator FROM control_action_partitions AS changed
        JOIN control_actions AS action ON action.action_id = changed.action_id
        WHERE changed.source = state.source AND changed.customer_id = state.customer_id
          AND changed.query_name = state.query_name AND changed.logical_date = state.logical_date
          AND changed.attempt_no = state.attempt_count AND action.action = 'withdraw'
        ORDER BY action.performed_at DESC LIMIT 1
    ) END AS withdrawn_by
FROM partition_state AS state
LEFT JOIN warehouse_pointer AS pointer
    ON pointer.source = state.source AND pointer.customer_id = state.customer_id
   AND pointer.query_name = state.query_name AND pointer.logical_date = state.logical_date
LEFT JOIN attempts AS newest
    ON (state.status = 'failed' OR state.attempt_count > 1)
   AND newest.source = state.source AND newest.customer_id = state.customer_id
   AND newest.query_name = state.query_name AND newest.logical_date = state.logical_date
   AND newest.attempt_no = (
        SELECT attempt_no FROM attempts AS each
        WHERE each.source = state.source AND each.customer_id = state.customer_id
          AND each.query_name = state.query_name AND each.logical_date = state.logical_date
        ORDER BY each.ordinal DESC, each.attempt_no DESC LIMIT 1
   )
WHERE state.source = :source AND state.query_name = :query_name
  AND state.logical_date BETWEEN :since AND :until
"""
_TYPES: Final[Mapping[str, Any]] = {
    "logical_date": Day,
    "updated_at": Instant,
    "judged_at": Instant,
    "is_published": sa.Boolean,
    "demotion_pending": sa.Boolean,
    "has_unjudged_run": sa.Boolean,
    "is_restated": sa.Boolean,
}
DAY_FACTS: Final = sa.text(_DAY_FACTS).columns(**_TYPES)
DAY_FACTS_OF_CUSTOMERS: Final = (
    sa.text(f"{_DAY_FACTS} AND state.customer_id IN :customers")
    .bindparams(sa.bindparam("customers", expanding=True))
    .columns(**_TYPES)
)


def read_day_facts(
    engine: sa.Engine,
    *,
    source: str,
    query_name: str,
    since: date,
    until: date,
    customers: Collection[str] | None = None,
) -> Iterator[DayFacts]:
    """Yield the facts of each recorded partition of a query, in no order. All reads see one moment.

    With `customers`, only theirs.
    """
    statement = (DAY_FACTS if customers is None else DAY_FACTS_OF_CUSTOMERS).bindparams(
        sa.bindparam("source", source),
        sa.bindparam("query_name", query_name),
        sa.bindparam("since", since, Day()),
        sa.bindparam("until", until, Day()),
    )
    if customers is not None:
        statement = statement.bindparams(customers=list(customers))
    with database.open_snapshot(engine) as connection:
        for row in connection.execute(statement):
            customer, day, status, count, records, updated, published, demoting, unjudged, *newest, restated, by = row
            outcome, reason, judged_at = newest
            yield DayFacts(
                customer,
                day,
                Status(status),
                count,
                records,
                updated,
                published,
                demoting,
                unjudged,
                outcome and Outcome(outcome),
                None if reason is None else Reason.from_json(reason),
                judged_at,
                restated,
                by,
            )


def read_first_days(engine: sa.Engine, source: str, customers: Collection[str] | None = None) -> dict[str, date]:
    """Return the first day of each customer for which a run was registered, in any query."""
    statement = sa.select(runs.c.customer_id, sa.func.min(runs.c.logical_date, type_=Day()))
    statement = statement.where(runs.c.source == source).group_by(runs.c.customer_id)
    if customers is not None:
        statement = statement.where(runs.c.customer_id.in_(customers))
    return dict(map(tuple, database.fetch(engine, statement)))
