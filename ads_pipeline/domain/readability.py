"""What readers get of a day, and what an operator should know about it: the condition of each expected partition.

Pure functions over facts that `ledger.state.day_facts` reads.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from ads_pipeline.domain.reason import DEMOTED, Reason
from ads_pipeline.domain.retry import FRESH_DAYS
from ads_pipeline.domain.transitions import Outcome, Status


class Condition(StrEnum):
    """The condition of one day of one customer and query, the most urgent first."""

    REJECTED = "rejected"
    MISSING = "missing"
    LATE = "late"
    PARKED = "parked"
    HIDDEN = "hidden"
    REJECTED_RERUN = "rejected_rerun"
    IN_PROGRESS = "in_progress"
    READABLE = "readable"
    RESTATED = "restated"
    NOT_EXPECTED = "not_expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionText:
    """How a condition is shown, and whether an operator should act on it."""

    label: str
    meaning: str
    needs_operator: bool = False


CONDITIONS: Final[Mapping[Condition, ConditionText]] = {
    Condition.REJECTED: ConditionText(
        label="Rejected",
        meaning="The validator rejected the run. Readers see no rows of the day.",
        needs_operator=True,
    ),
    Condition.MISSING: ConditionText(
        label="Missing", meaning="No run arrived, and the day is no longer fresh.", needs_operator=True
    ),
    Condition.LATE: ConditionText(
        label="Late", meaning="The day is past its deadline, and no accepted run has arrived.", needs_operator=True
    ),
    Condition.PARKED: ConditionText(
        label="Parked",
        meaning="The account or the query is not fetched until an operator releases it.",
        needs_operator=True,
    ),
    Condition.HIDDEN: ConditionText(
        label="Hidden", meaning="An operator withdrew the day or demoted its run.", needs_operator=True
    ),
    Condition.REJECTED_RERUN: ConditionText(
        label="Readable, rejected rerun",
        meaning="The newest run was rejected. Readers still see the accepted run before it.",
        needs_operator=True,
    ),
    Condition.IN_PROGRESS: ConditionText(
        label="In progress", meaning="A run arrived and is not yet judged or not yet loaded."
    ),
    Condition.READABLE: ConditionText(label="Readable", meaning="Readers see the accepted run."),
    Condition.RESTATED: ConditionText(
        label="Readable, restated", meaning="Readers see a run that replaced an earlier accepted run."
    ),
    Condition.NOT_EXPECTED: ConditionText(
        label="Not expected", meaning="The day is before the customer's first day, or not yet due."
    ),
}
READABLE_CONDITIONS: Final = frozenset({Condition.READABLE, Condition.RESTATED, Condition.REJECTED_RERUN})


class DayFacts(NamedTuple):
    """What the ledger records of one partition. A tuple, because there may be millions.

    The `newest_` fields describe the last verdict on the newest judged run. They are read only for partitions that
    failed or that have several attempts, and are None otherwise.
    """

    customer_id: str
    logical_date: date
    status: Status
    attempt_count: int
    record_count: int | None
    updated_at: datetime
    is_published: bool
    demotion_pending: bool
    has_unjudged_run: bool
    newest_outcome: Outcome | None
    newest_reason: Reason | None
    newest_judged_at: datetime | None
    is_restated: bool
    withdrawn_by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """From which day the partitions of a customer and query are expected, and how long after its end a day is due."""

    first_day: date
    due_after: timedelta = timedelta(hours=12)

    def deadline(self, day: date) -> datetime:
        """The time at which the day's report should be readable. A day ends at midnight UTC."""
        return datetime.combine(day + timedelta(days=1), time.min, UTC) + self.due_after

    def end_of_freshness(self, day: date) -> datetime:
        """The time from which an absent day is missing rather than late."""
        return datetime.combine(day + timedelta(days=FRESH_DAYS + 1), time.min, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSource:
    """The parking that stops a day's fetches, and since when."""

    reason: str
    parked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCondition:
    """The condition of one day with its cause. `operator` is set when a person caused it."""

    condition: Condition
    reason: str
    since: datetime
    operator: str
    attempts: int

    @property
    def text(self) -> ConditionText:
        return CONDITIONS[self.condition]


def describe_day(
    facts: DayFacts | None, day: date, expectation: Expectation, *, parked: ParkedSource | None, now: datetime
) -> DayCondition:
    """The condition of one day, why it has this condition, and since when."""
    condition = find_condition(facts, day, expectation, is_parked=parked is not None, now=now)
    since, reason, operator = expectation.deadline(day), "no run arrived", ""
    if condition is Condition.PARKED and parked is not None:
        since, reason = parked.parked_at or since, parked.reason
    elif facts is not None and (facts.attempt_count or facts.has_unjudged_run):
        since, reason, operator = _explain_facts(facts)
    attempts = 0 if facts is None else facts.attempt_count
    return DayCondition(condition=condition, reason=reason, since=since, operator=operator, attempts=attempts)


def _explain_facts(facts: DayFacts) -> tuple[datetime, str, str]:
    if facts.withdrawn_by is not None:
        return facts.updated_at, "withdrawn", facts.withdrawn_by
    if facts.newest_reason is not None:
        accepted = "accepted; the newest run was " if facts.status is Status.SUCCESS and _is_demoted(facts) else ""
        return facts.newest_judged_at or facts.updated_at, f"{accepted}{facts.newest_reason.text}", ""
    if facts.status is Status.SUCCESS:
        return facts.updated_at, "accepted" if facts.is_published else "accepted and not loaded yet", ""
    if facts.has_unjudged_run:
        return facts.updated_at, "a run awaits its verdict", ""
    return facts.updated_at, "it waits for another run", ""


def find_condition(
    facts: DayFacts | None, day: date, expectation: Expectation, *, is_parked: bool, now: datetime
) -> Condition:
    """The condition of one day. Without facts, nothing of the day is recorded."""
    if facts is not None and (recorded := _find_recorded(facts)) is not None:
        return recorded
    if day < expectation.first_day or now < expectation.deadline(day):
        return Condition.NOT_EXPECTED
    if is_parked:
        return Condition.PARKED
    is_fresh = now < expectation.end_of_freshness(day)
    return Condition.LATE if is_fresh or (facts is not None and facts.attempt_count) else Condition.MISSING


def _find_recorded(facts: DayFacts) -> Condition | None:
    """The condition that the recorded verdicts and actions decide; None while only the deadline decides."""
    if facts.demotion_pending:
        return Condition.HIDDEN
    if facts.status is Status.SUCCESS:
        return _find_accepted(facts)
    if facts.status is Status.FAILED:
        return Condition.HIDDEN if _is_demoted(facts) else Condition.REJECTED
    if facts.has_unjudged_run:
        return Condition.IN_PROGRESS
    return Condition.HIDDEN if facts.withdrawn_by is not None else None


def _find_accepted(facts: DayFacts) -> Condition:
    if not facts.is_published:
        return Condition.IN_PROGRESS
    if facts.newest_outcome is Outcome.REJECTED and not _is_demoted(facts):
        return Condition.REJECTED_RERUN
    return Condition.RESTATED if facts.is_restated else Condition.READABLE


def _is_demoted(facts: DayFacts) -> bool:
    return facts.newest_reason is not None and facts.newest_reason.error_class == DEMOTED
