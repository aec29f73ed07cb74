"""Reads the days of a query: the facts from which `readability` derives conditions, and the absent days."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.conditions import Condition
from ads_pipeline.domain.days.day_facts import Acknowledgement, DayFacts, Withdrawal
from ads_pipeline.domain.days.expected_days import ExpectedDays
from ads_pipeline.domain.days.settlement import ONE_DAY
from ads_pipeline.domain.fetching.retry_policy import RETRY_POLICY
from ads_pipeline.domain.reason import Reason
from ads_pipeline.domain.transitions import Action, Outcome, Status
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import Day, instant_text, partition_state
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.sql.statements import Statement, query_days
from ads_pipeline.ledger.state.first_days import FirstDays, read_first_days
from ads_pipeline.ledger.state.visibility import is_judged

CUSTOMERS_PER_QUERY: Final = 1_000
ACKNOWLEDGE: Final = Action.ACKNOWLEDGE.name.lower()  # as the log has it
# One row for each partition. The joined attempt is the last verdict on the newest judged run. Most
# partitions have a single accepted run and skip that lookup. A withdrawal counts until a verdict follows it, and so
# does the newest failed fetch. The unjudged run is the newest one; of a success, only one after the accepted run.
_FACTS: Final = """
SELECT
    partition_state.customer_id, partition_state.logical_date, status, attempt_count, partition_state.record_count,
    updated_at, COALESCE(availability = 'published', FALSE) AS is_published,
    unjudged.run_id IS NOT NULL AS has_unjudged_run,
    attempt_count > 1 AND EXISTS (
        SELECT 1 FROM attempts AS earlier
        WHERE (earlier.source, earlier.customer_id, earlier.query_name, earlier.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
            AND earlier.outcome = 'accepted' AND earlier.run_id <> current_run_id
            AND warehouse_pointer.run_id = current_run_id
    ) AS is_restated,
    newest.outcome, newest.reason, newest.judged_at, demotions.reason AS demotion, demotions.started_at,
    withdrawal.operator, withdrawal.reason AS withdrawn_because, withdrawal.performed_at,
    failed.error_message, failed.failed_at, failed.error_class, failed.wait_until, accepted.extracted_at,
    unjudged.schema_version AS unjudged_version,
    unjudged.registered_at, COALESCE(unjudged.ordinal > newest.ordinal, TRUE) AS unjudged_is_newest,
    COALESCE(warehouse_pointer.run_id = current_run_id, FALSE) AS is_loaded,
    partition_state.schema_version, unloadable.finished_at
"""
# A CASE repeats the condition of its join: SQLite would otherwise look for the row of every partition before it reads
# the condition, which takes a third of the time.
_JOINED: Final = f"""
LEFT JOIN warehouse_pointer
    ON (warehouse_pointer.source, warehouse_pointer.customer_id, warehouse_pointer.query_name,
        warehouse_pointer.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
LEFT JOIN demotions
    ON (demotions.source, demotions.customer_id, demotions.query_name, demotions.logical_date, demotions.run_id) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date, current_run_id)
LEFT JOIN runs AS accepted
    ON status = 'success'
    AND (accepted.source, accepted.customer_id, accepted.query_name, accepted.logical_date, accepted.run_id) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date, current_run_id)
LEFT JOIN runs AS unjudged
    ON (unjudged.source, unjudged.customer_id, unjudged.query_name, unjudged.logical_date) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date)
        AND unjudged.ordinal = (
        SELECT each.ordinal FROM runs AS each
        WHERE (each.source, each.customer_id, each.query_name, each.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
            AND each.ordinal > COALESCE(accepted.ordinal, 0)
            AND NOT {is_judged("each")}
        ORDER BY each.ordinal DESC LIMIT 1
    )
LEFT JOIN finished_attempts AS unloadable
    ON status = 'success'
    AND COALESCE(availability = 'published' AND warehouse_pointer.run_id = current_run_id, FALSE) IS FALSE
    AND unloadable.asset = 'warehouse'
    AND (unloadable.source, unloadable.customer_id, unloadable.query_name, unloadable.logical_date) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date)
    AND unloadable.finished_at = CASE
        WHEN COALESCE(availability = 'published' AND warehouse_pointer.run_id = current_run_id, FALSE) IS FALSE
        THEN (
        SELECT each.finished_at FROM finished_attempts AS each
        WHERE each.asset = 'warehouse'
        AND (each.source, each.customer_id, each.query_name, each.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
            AND each.attempt_id = current_run_id AND each.outcome = 'FAILED'
            AND each.finished_at >= COALESCE(warehouse_pointer.changed_at, each.finished_at)
        ORDER BY each.finished_at LIMIT 1
    ) END
LEFT JOIN attempts AS newest
    ON (status <> 'success' OR attempt_count > 1)
    AND (newest.source, newest.customer_id, newest.query_name, newest.logical_date) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date)
    AND newest.attempt_no = CASE WHEN status <> 'success' OR attempt_count > 1 THEN (
        SELECT attempt_no
        FROM attempts AS each
        WHERE (each.source, each.customer_id, each.query_name, each.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
        ORDER BY each.ordinal DESC, each.attempt_no DESC LIMIT 1
    ) END
LEFT JOIN control_actions AS withdrawal
    ON status = 'pending' AND withdrawal.action_id = CASE WHEN status = 'pending' THEN (
        SELECT action.action_id FROM control_action_partitions AS changed
        JOIN control_actions AS action ON action.action_id = changed.action_id
        WHERE (changed.source, changed.customer_id, changed.query_name, changed.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
            AND changed.attempt_no = attempt_count AND action.action = 'withdraw'
        ORDER BY action.performed_at DESC LIMIT 1
    ) END
LEFT JOIN failed_fetches AS failed
    ON status = 'pending' AND (failed.source, failed.customer_id, failed.query_name, failed.logical_date) =
        (partition_state.source, partition_state.customer_id, partition_state.query_name,
            partition_state.logical_date)
    AND (attempt_count = 0 OR failed.failed_at >= updated_at)
    AND (failed.finished_at, failed.attempt_id) = (
        SELECT each.finished_at, each.attempt_id FROM failed_fetches AS each
        WHERE (each.source, each.customer_id, each.query_name, each.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
        ORDER BY each.failed_at DESC, each.attempt_id DESC LIMIT 1
    )
"""
_FACT_FLAGS: Final = ("is_published", "has_unjudged_run", "is_restated", "unjudged_is_newest", "is_loaded")
_IN_WINDOW: Final = """
WHERE partition_state.source = :source AND partition_state.query_name = :query_name
    AND partition_state.logical_date BETWEEN :since AND :until AND partition_state.customer_id IN :customers
"""
# Only some of the partitions, each from an index that holds few others. SQLite has no statistics, and would otherwise
# read all partitions of the query. So the query name is compared as an expression, which no index covers, and the
# states are joined only by the columns of the selection.
_SELECTED_STATES: Final = """
JOIN partition_state
    ON (partition_state.source, partition_state.customer_id, partition_state.query_name, partition_state.logical_date)
        = (selected.source, selected.customer_id, selected.query_name, selected.logical_date)
"""
_SELECTED_IN_WINDOW: Final = """
WHERE selected.logical_date BETWEEN :since AND :until AND partition_state.customer_id IN :customers
"""
_NOT_ACCEPTED: Final = """
    SELECT source, customer_id, query_name, logical_date FROM partition_state
    WHERE source = :source AND query_name || '' = :query_name AND status <> 'success'"""
_BEING_DEMOTED: Final = """
    SELECT source, customer_id, query_name, logical_date
    FROM demotions WHERE source = :source AND query_name = :query_name
    """
_NEWEST_RUN_REJECTED: Final = """
    SELECT rejected.source, rejected.customer_id, rejected.query_name, rejected.logical_date FROM attempts AS rejected
    WHERE rejected.source = :source AND rejected.query_name || '' = :query_name AND rejected.outcome = 'rejected'
        AND NOT EXISTS (
            SELECT 1 FROM attempts AS later
            WHERE (later.source, later.customer_id, later.query_name, later.logical_date) =
                (rejected.source, rejected.customer_id, rejected.query_name, rejected.logical_date)
                AND (later.ordinal, later.attempt_no) > (rejected.ordinal, rejected.attempt_no)
        )"""
# Readers do not see the accepted run. This and the next look at every partition of the days, because no index of the
# states knows the pointers and the verdicts.
_NOT_LOADED: Final = """
    SELECT accepted.source, accepted.customer_id, accepted.query_name, accepted.logical_date
    FROM partition_state AS accepted
    LEFT JOIN warehouse_pointer AS shown
        ON (shown.source, shown.customer_id, shown.query_name, shown.logical_date) =
            (accepted.source, accepted.customer_id, accepted.query_name, accepted.logical_date)
    WHERE accepted.source = :source AND accepted.query_name = :query_name
        AND accepted.logical_date BETWEEN :since AND :until
        AND accepted.status = 'success'
        AND COALESCE(shown.availability = 'published' AND shown.run_id = accepted.current_run_id, FALSE) IS FALSE"""
# A registered run has no verdict.
_UNJUDGED: Final = f"""
    SELECT waiting.source, waiting.customer_id, waiting.query_name, waiting.logical_date FROM runs AS waiting
    WHERE waiting.source = :source AND waiting.query_name || '' = :query_name
        AND waiting.logical_date BETWEEN :since AND :until AND NOT {is_judged("waiting")}"""
# Which partitions may have a condition. Of the other conditions, all partitions are read.
_CANDIDATES: Final[Mapping[Condition, tuple[str, ...]]] = {
    Condition.REJECTED: (_NOT_ACCEPTED,),
    Condition.BLOCKED: (_NOT_ACCEPTED, _NOT_LOADED, _BEING_DEMOTED),
    Condition.MISSING: (_NOT_ACCEPTED,),
    Condition.LATE: (_NOT_ACCEPTED,),
    Condition.PARKED: (_NOT_ACCEPTED,),
    Condition.REJECTED_RERUN: (_NEWEST_RUN_REJECTED,),
    Condition.BLOCKED_RERUN: (_UNJUDGED, _NOT_LOADED),
    Condition.IN_PROGRESS: (_NOT_ACCEPTED, _NOT_LOADED),
    Condition.ACKNOWLEDGED: (_NOT_ACCEPTED, _NOT_LOADED, _BEING_DEMOTED),
    Condition.ACKNOWLEDGED_RERUN: (_NEWEST_RUN_REJECTED, _UNJUDGED, _NOT_LOADED),
    Condition.HIDDEN: (_NOT_ACCEPTED, _BEING_DEMOTED),
    Condition.UNRECOVERABLE: (_NOT_ACCEPTED,),
}
# The days whose newest event is the action of an operator who acknowledged them or marked them as terminal. A verdict
# is later by its number, other events by their time. Automatic retries are no news, and neither is a fetch that fails
# as an earlier one did. Such days need not have a state row.
_ACKNOWLEDGED: Final = """
SELECT acted.customer_id, acted.logical_date, acknowledgement.operator, acknowledgement.reason,
    acknowledgement.performed_at, acknowledgement.action
FROM control_actions AS acknowledgement
JOIN control_action_partitions AS acted ON acted.action_id = acknowledgement.action_id
WHERE acknowledgement.action IN ('acknowledge', 'mark_terminal')
    AND acted.source = :source AND acted.query_name = :query_name
    AND acted.logical_date BETWEEN :since AND :until AND acted.customer_id IN :customers
    AND NOT EXISTS (
        SELECT 1 FROM control_action_partitions AS changed
        JOIN control_actions AS action ON action.action_id = changed.action_id
        WHERE (changed.source, changed.customer_id, changed.query_name, changed.logical_date) =
            (acted.source, acted.customer_id, acted.query_name, acted.logical_date)
            AND action.operator <> :retry_policy
            AND (action.performed_at, action.action_id)
                > (acknowledgement.performed_at, acknowledgement.action_id)
    )
    AND NOT EXISTS (
        SELECT 1 FROM attempts
        WHERE (attempts.source, attempts.customer_id, attempts.query_name, attempts.logical_date) =
            (acted.source, acted.customer_id, acted.query_name, acted.logical_date)
            AND attempts.attempt_no > acted.attempt_no
    )
    AND NOT EXISTS (
        SELECT 1 FROM runs
        WHERE (runs.source, runs.customer_id, runs.query_name, runs.logical_date) =
            (acted.source, acted.customer_id, acted.query_name, acted.logical_date)
            AND registered_at > acknowledgement.performed_at
    )
    AND NOT EXISTS (
        SELECT 1 FROM warehouse_pointer
        WHERE (warehouse_pointer.source, warehouse_pointer.customer_id, warehouse_pointer.query_name,
            warehouse_pointer.logical_date) = (acted.source, acted.customer_id, acted.query_name, acted.logical_date)
            AND changed_at > acknowledgement.performed_at
    )
    AND NOT EXISTS (
        SELECT 1 FROM demotions
        WHERE (demotions.source, demotions.customer_id, demotions.query_name, demotions.logical_date) =
            (acted.source, acted.customer_id, acted.query_name, acted.logical_date)
            AND started_at > acknowledgement.performed_at
    )
    AND NOT EXISTS (
        SELECT 1 FROM failed_fetches AS failed
        WHERE (failed.source, failed.customer_id, failed.query_name, failed.logical_date) =
            (acted.source, acted.customer_id, acted.query_name, acted.logical_date)
            AND failed.failed_at > acknowledgement.performed_at AND NOT EXISTS (
                SELECT 1 FROM failed_fetches AS earlier
                WHERE (earlier.source, earlier.customer_id, earlier.query_name, earlier.logical_date) =
                    (failed.source, failed.customer_id, failed.query_name, failed.logical_date)
                    AND earlier.error_class = failed.error_class
                    AND earlier.failed_at <= acknowledgement.performed_at
            )
    )
"""
# The successes of the given days whose accepted run was extracted before a time.
_UNSETTLED: Final = Statement(
    "unsettled_days",
    {"source": "text", "query_name": "text", "logical_date": "day", "settles_at": "instant"},
    """
    SELECT accepted.customer_id, accepted.logical_date, accepted.extracted_at FROM given
    JOIN partition_state ON partition_state.source = given.source
        AND partition_state.query_name = given.query_name AND partition_state.logical_date = given.logical_date
    JOIN runs AS accepted
        ON (accepted.source, accepted.customer_id, accepted.query_name, accepted.logical_date) =
            (partition_state.source, partition_state.customer_id, partition_state.query_name,
                partition_state.logical_date)
            AND accepted.run_id = current_run_id
    WHERE status = 'success' AND accepted.extracted_at < settles_at
    """,
)
_RECORDED_DAYS: Final = """SELECT customer_id, logical_date FROM partition_state
WHERE source = :source AND query_name = :query_name AND logical_date BETWEEN :since AND :until
    AND customer_id IN :customers ORDER BY customer_id, logical_date"""


class Days:
    """The days of one query at a time."""

    def __init__(self, engine: database.Reading) -> None:
        self._engine = engine

    def facts(self, window: DayWindow, conditions: Collection[Condition] | None = None) -> Iterator[DayFacts]:
        """Yield the facts of each recorded partition of a query, in no order. All reads see one moment.

        With `conditions`, only those of partitions that may have one of them. For the conditions that need an
        operator this takes a small part of the time, because most partitions are readable.
        """
        statement = query_days(
            _select_facts(conditions), window, customer_column="partition_state.customer_id", flags=_FACT_FLAGS
        )
        with database.open_snapshot(self._engine) as connection:
            yield from map(_decode, connection.execute(statement))

    def acknowledged(self, window: DayWindow) -> dict[tuple[str, date], Acknowledgement]:
        """The acknowledgement of each customer and day that nothing has happened to since.

        Read it after the facts: then an event that is in the facts has undone it here.
        """
        statement = query_days(_ACKNOWLEDGED, window, customer_column="acted.customer_id")
        rows = database.fetch(self._engine, statement.bindparams(retry_policy=RETRY_POLICY))
        return {
            (row.customer_id, row.logical_date): Acknowledgement(
                row.operator, row.reason, row.performed_at, row.action != ACKNOWLEDGE
            )
            for row in rows
        }

    def first_days(self, source: str, customers: Collection[str] | None = None) -> FirstDays:
        """Return which days of each customer and query are expected. A day counts that was fetched."""
        return read_first_days(self._engine, source, customers)

    def absent(self, window: DayWindow, first_days: Mapping[str, ExpectedDays]) -> Iterator[tuple[str, date, date]]:
        """Yield each customer with the first and the last of consecutive days of the window without a state row.

        They begin with the customer's first expected day. The days are counted first. Only those of customers with
        holes between them are read.
        """
        recorded = self._summarize(window)
        broken = [customer for customer, (days, first, last) in recorded.items() if days <= (last - first).days]
        islands = {each: [(first, last)] for each, (_days, first, last) in recorded.items()}
        for customers in split_batches(broken, CUSTOMERS_PER_QUERY):
            rows = database.fetch(self._engine, query_days(_RECORDED_DAYS, replace(window, customers=customers)))
            for customer, days in groupby(map(tuple, rows), itemgetter(0)):
                islands[customer] = [(day, day) for _customer, day in days]
        for customer, expected in first_days.items():
            start = max(expected.first, window.since)
            for first, last in _find_holes(start, window.until, islands.get(customer, ())):
                yield customer, first, last

    def extracted_before(
        self, source: str, query_name: str, times: Mapping[date, datetime]
    ) -> Iterator[tuple[str, date, datetime]]:
        """Yield customer, day and time of extraction of accepted runs that were extracted before their day's time."""
        rows = [
            {
                "source": source,
                "query_name": query_name,
                "logical_date": day.isoformat(),
                "settles_at": instant_text(time),
            }
            for day, time in times.items()
        ]
        for row in _UNSETTLED.fetch(self._engine, rows) if rows else ():
            yield row.customer_id, row.logical_date, row.extracted_at

    def _summarize(self, window: DayWindow) -> dict[str, tuple[int, date, date]]:
        """How many days of each customer are recorded, the first and the last of them."""
        columns = partition_state.c
        day = columns.logical_date
        # Grouped by an expression, because SQLite would read the partitions of all queries to have the customers in
        # order.
        customer = sa.literal_column("customer_id || ''", sa.Text())
        statement = sa.select(customer, sa.func.count(), sa.func.min(day, type_=Day()), sa.func.max(day, type_=Day()))
        statement = statement.where(columns.source == window.source, columns.query_name == window.query_name)
        statement = statement.where(day.between(window.since, window.until)).group_by(customer)
        if window.customers is not None:
            statement = statement.where(columns.customer_id.in_(window.customers))
        rows = map(tuple, database.fetch(self._engine, statement))
        return {name: (days, first, last) for name, days, first, last in rows}


def _find_holes(start: date, until: date, recorded: Iterable[tuple[date, date]]) -> Iterator[tuple[date, date]]:
    """The first and the last of consecutive days between two days that lie in none of these, which are in order."""
    following = start
    for first, last in recorded:
        if first > following:
            yield following, first - ONE_DAY
        following = max(following, last + ONE_DAY)
    if following <= until:
        yield following, until


def _select_facts(conditions: Collection[Condition] | None) -> str:
    """The statement about the partitions that may have one of the conditions."""
    if conditions is None or not _CANDIDATES.keys() >= set(conditions):
        return f"{_FACTS} FROM partition_state {_JOINED} {_IN_WINDOW}"
    selections = dict.fromkeys(text for condition in sorted(conditions) for text in _CANDIDATES[condition])
    selected = " UNION ".join(selections)
    return f"{_FACTS} FROM ({selected}) AS selected {_SELECTED_STATES} {_JOINED} {_SELECTED_IN_WINDOW}"


def _decode(row: Sequence[Any]) -> DayFacts:
    customer, day, status, count, records, updated, published, unjudged, restated = row[:9]
    outcome, reason, judged_at, demotion, started_at, operator, withdrawn_because, performed_at = row[9:17]
    error_message, failed_at, error_class, wait_until, extracted_at = row[17:22]
    unjudged_version, unjudged_since, unjudged_is_newest, is_loaded, accepted_version, unloadable_since = row[22:]
    facts = DayFacts(customer, day, Status(status), count, records, updated, published, unjudged, restated)
    if extracted_at is not None:
        facts = facts._replace(extracted_at=extracted_at)
    if unjudged_since is not None:
        facts = facts._replace(
            unjudged_version=unjudged_version,
            unjudged_since=unjudged_since,
            unjudged_is_newest=unjudged_is_newest,
        )
    if not (published and is_loaded):
        facts = facts._replace(is_loaded=False, accepted_version=accepted_version, unloadable_since=unloadable_since)
    if outcome is not None:
        facts = facts._replace(
            newest_outcome=Outcome(outcome), newest_reason=_parse_reason(reason), newest_judged_at=judged_at
        )
    if demotion is not None:
        facts = facts._replace(demotion=_parse_reason(demotion), demotion_started_at=started_at)
    if operator is not None:
        facts = facts._replace(withdrawal=Withdrawal(operator, withdrawn_because, performed_at))
    if error_message is not None:
        facts = facts._replace(
            fetch_error=error_message,
            fetch_failed_at=failed_at,
            fetch_error_class=error_class,
            fetch_wait_until=wait_until,
        )
    return facts


def _parse_reason(text: str | None) -> Reason | None:
    return None if text is None else Reason.from_json(text)
