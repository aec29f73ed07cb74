"""Reads the facts from which `domain.readability` derives the condition of each day of a query."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.readability import Condition, DayFacts, Withdrawal
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.ledger import database
from ads_pipeline.ledger.state.day_windows import DayWindow
from ads_pipeline.ledger.tables import Day, Instant, runs

# One row for each partition of `{rows}`. The joined attempt is the last verdict on the newest judged run. Most
# partitions have a single accepted run and skip that lookup. A withdrawal counts until a verdict follows it.
_DAY_FACTS: Final = """
SELECT
    state.customer_id,
    state.logical_date,
    state.status,
    state.attempt_count,
    state.record_count,
    state.updated_at,
    COALESCE(pointer.availability = 'published', FALSE) AS is_published,
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
    state.attempt_count > 1 AND EXISTS (
        SELECT 1 FROM attempts AS earlier
        WHERE earlier.source = state.source AND earlier.customer_id = state.customer_id
          AND earlier.query_name = state.query_name AND earlier.logical_date = state.logical_date
          AND earlier.outcome = 'accepted' AND earlier.run_id <> state.current_run_id
    ) AS is_restated,
    newest.outcome,
    newest.reason,
    newest.judged_at,
    demotion.reason AS demotion,
    demotion.started_at,
    withdrawal.operator,
    withdrawal.reason AS withdrawn_because,
    withdrawal.performed_at
FROM {rows}
LEFT JOIN warehouse_pointer AS pointer
    ON pointer.source = state.source AND pointer.customer_id = state.customer_id
   AND pointer.query_name = state.query_name AND pointer.logical_date = state.logical_date
LEFT JOIN demotions AS demotion
    ON demotion.source = state.source AND demotion.customer_id = state.customer_id
   AND demotion.query_name = state.query_name AND demotion.logical_date = state.logical_date
   AND demotion.run_id = state.current_run_id
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
LEFT JOIN control_actions AS withdrawal
    ON state.status = 'pending' AND withdrawal.action_id = (
        SELECT action.action_id FROM control_action_partitions AS changed
        JOIN control_actions AS action ON action.action_id = changed.action_id
        WHERE changed.source = state.source AND changed.customer_id = state.customer_id
          AND changed.query_name = state.query_name AND changed.logical_date = state.logical_date
          AND changed.attempt_no = state.attempt_count AND action.action = 'withdraw'
        ORDER BY action.performed_at DESC LIMIT 1
    )
WHERE {selection} AND {customers}
"""
_ALL: Final = "partition_state AS state"
_IN_WINDOW: Final = """state.source = :source AND state.query_name = :query_name
  AND state.logical_date BETWEEN :since AND :until"""
_TYPES: Final[Mapping[str, Any]] = {
    "logical_date": Day,
    "updated_at": Instant,
    "is_published": sa.Boolean,
    "has_unjudged_run": sa.Boolean,
    "is_restated": sa.Boolean,
    "judged_at": Instant,
    "started_at": Instant,
    "performed_at": Instant,
}
# Only some of the partitions, each from an index that holds few others. SQLite has no statistics, and would otherwise
# read all partitions of the query. So the query name is compared as an expression, which no index covers, and the
# states are joined only by the columns of the selection.
_SELECTED: Final = """({selections}) AS selected
JOIN partition_state AS state
    ON state.source = selected.source AND state.customer_id = selected.customer_id
   AND state.query_name = selected.query_name AND state.logical_date = selected.logical_date"""
_SELECTED_IN_WINDOW: Final = "selected.logical_date BETWEEN :since AND :until"
_NOT_ACCEPTED: Final = """
    SELECT source, customer_id, query_name, logical_date FROM partition_state
    WHERE source = :source AND query_name || '' = :query_name AND status <> 'success'"""
_BEING_DEMOTED: Final = """
    SELECT source, customer_id, query_name, logical_date FROM demotions
    WHERE source = :source AND query_name = :query_name"""
_NEWEST_RUN_REJECTED: Final = """
    SELECT rejected.source, rejected.customer_id, rejected.query_name, rejected.logical_date
    FROM attempts AS rejected
    WHERE rejected.source = :source AND rejected.query_name || '' = :query_name AND rejected.outcome = 'rejected'
      AND NOT EXISTS (
          SELECT 1 FROM attempts AS later
          WHERE later.source = rejected.source AND later.customer_id = rejected.customer_id
            AND later.query_name = rejected.query_name AND later.logical_date = rejected.logical_date
            AND (later.ordinal > rejected.ordinal
                 OR later.ordinal = rejected.ordinal AND later.attempt_no > rejected.attempt_no)
      )"""
_NOT_LOADED: Final = """
    SELECT accepted.source, accepted.customer_id, accepted.query_name, accepted.logical_date
    FROM partition_state AS accepted
    LEFT JOIN warehouse_pointer AS shown
        ON shown.source = accepted.source AND shown.customer_id = accepted.customer_id
       AND shown.query_name = accepted.query_name AND shown.logical_date = accepted.logical_date
    WHERE accepted.source = :source AND accepted.query_name = :query_name
      AND accepted.logical_date BETWEEN :since AND :until
      AND accepted.status = 'success' AND COALESCE(shown.availability, '') <> 'published'"""
# Which partitions may have a condition. The others are read completely.
_CANDIDATES: Final[Mapping[Condition, tuple[str, ...]]] = {
    Condition.REJECTED: (_NOT_ACCEPTED,),
    Condition.MISSING: (_NOT_ACCEPTED,),
    Condition.LATE: (_NOT_ACCEPTED,),
    Condition.PARKED: (_NOT_ACCEPTED,),
    Condition.HIDDEN: (_NOT_ACCEPTED, _BEING_DEMOTED),
    Condition.REJECTED_RERUN: (_NEWEST_RUN_REJECTED,),
    Condition.IN_PROGRESS: (_NOT_ACCEPTED, _NOT_LOADED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDays:
    """The first day with a registered run, of each customer and query."""

    days: Mapping[tuple[str, str], date]  # by customer and query

    @property
    def customers(self) -> list[str]:
        return sorted({customer for customer, _query in self.days})

    def of_query(self, query_name: str) -> dict[str, date]:
        """The first expected day of each customer: of the query, or of any query when the query has no run yet."""
        first: dict[str, date] = {}
        for (customer, _query), day in self.days.items():
            first[customer] = min(first.get(customer, day), day)
        return {customer: self.days.get((customer, query_name), day) for customer, day in first.items()}


def read_day_facts(
    engine: sa.Engine, window: DayWindow, conditions: Collection[Condition] | None = None
) -> Iterator[DayFacts]:
    """Yield the facts of each recorded partition of a query, in no order. All reads see one moment.

    With `conditions`, only those of partitions that may have one of them. For the conditions that need an operator
    this takes a small part of the time, because most partitions are readable.
    """
    rows, selection = _select_rows(conditions)
    text = _DAY_FACTS.replace("{rows}", rows).replace("{selection}", selection)
    statement = window.select(text, "state.customer_id", **_TYPES)
    with database.open_snapshot(engine) as connection:
        for row in connection.execute(statement):
            yield _decode(row)


def _select_rows(conditions: Collection[Condition] | None) -> tuple[str, str]:
    """The partitions that may have one of the conditions, as the FROM and the WHERE of the statement."""
    if conditions is None or not _CANDIDATES.keys() >= set(conditions):
        return _ALL, _IN_WINDOW
    selections = dict.fromkeys(text for condition in sorted(conditions) for text in _CANDIDATES[condition])
    return _SELECTED.replace("{selections}", "\n    UNION".join(selections)), _SELECTED_IN_WINDOW


def _decode(row: Sequence[Any]) -> DayFacts:
    customer, day, status, count, records, updated, published, unjudged, restated = row[:9]
    outcome, reason, judged_at, demotion, started_at, operator, withdrawn_because, performed_at = row[9:]
    facts = DayFacts(customer, day, Status(status), count, records, updated, published, unjudged, restated)
    if outcome is not None:
        facts = facts._replace(
            newest_outcome=Outcome(outcome), newest_reason=_parse_reason(reason), newest_judged_at=judged_at
        )
    if demotion is not None:
        facts = facts._replace(demotion=_parse_reason(demotion), demotion_started_at=started_at)
    if operator is not None:
        facts = facts._replace(withdrawal=Withdrawal(operator, withdrawn_because, performed_at))
    return facts


def _parse_reason(text: str | None) -> Reason | None:
    return None if text is None else Reason.from_json(text)


def read_first_days(engine: sa.Engine, source: str, customers: Collection[str] | None = None) -> FirstDays:
    """Return the first day of each customer and query for which a run was registered."""
    key = runs.c.customer_id, runs.c.query_name
    statement = sa.select(*key, sa.func.min(runs.c.logical_date, type_=Day())).where(runs.c.source == source)
    if customers is not None:
        statement = statement.where(runs.c.customer_id.in_(customers))
    rows = database.fetch(engine, statement.group_by(*key))
    return FirstDays(days={(customer, query_name): day for customer, query_name, day in map(tuple, rows)})
