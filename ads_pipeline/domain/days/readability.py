"""Finds the condition of each expected partition: what readers get of a day, and what an operator should know.

Pure functions over facts that `ledger.state.days` reads. Every screen, check and report asks them.
"""

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Final, NamedTuple

from ads_pipeline.domain.days.conditions import (
    ACKNOWLEDGED_AS,
    BLOCKED_CONDITIONS,
    CONDITIONS,
    READABLE_CONDITIONS,
    Condition,
    ConditionEntry,
    GapReason,
)
from ads_pipeline.domain.days.day_facts import Acknowledgement, DayFacts
from ads_pipeline.domain.days.expectation import Expectation
from ads_pipeline.domain.days.settlement import ReportState, find_report_state
from ads_pipeline.domain.fetching.quota import QUOTA_EXHAUSTED
from ads_pipeline.domain.fetching.retry_policy import OUT_OF_REACH
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import Outcome, Status

# How long a run may wait for its verdict, its load or the end of its demotion before the day needs a person.
IN_PROGRESS_LIMIT: Final = timedelta(hours=6)


class Blocker(NamedTuple):
    """The reason why a run cannot go on without a person, since when it waits, and what it waits for."""

    reason: GapReason
    since: datetime
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)


# Shown before their detail, which does not name them.
_NAMED_GAPS: Final = frozenset(
    {
        GapReason.DEMOTING,
        GapReason.NOTHING_SEALED,
        GapReason.WAITING,
        GapReason.FETCH_FAILED,
        GapReason.QUOTA,
        GapReason.OUT_OF_REACH,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedSource:
    """The parking that stops a day's fetches, and since when. `option` names it to `state release`."""

    reason: str
    option: str
    parked_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCondition:
    """The condition of one day with its cause. `operator` is set when a person caused it.

    `gap` is why readers do not see the day, or None when they do. `detail` is the text of the validator, of the
    operator or of the parking, or says when the day is expected. `report` is None for a day that readers do not see,
    and for an account that is not known. A report that is extracted from `settles_at` on is final. `blocked_by` says
    why a run needs a person. `acknowledged` is why the day needs nobody although it has this cause.
    """

    condition: Condition
    gap: GapReason | None
    detail: str
    since: datetime
    operator: str
    attempts: int
    has_unjudged_run: bool = False
    report: ReportState | None = None
    settles_at: datetime | None = None
    blocked_by: Blocker | None = None
    acknowledged: Acknowledgement | None = None

    @property
    def entry(self) -> ConditionEntry:
        return CONDITIONS[self.condition]

    @property
    def is_expected(self) -> bool:
        return self.condition is not Condition.NOT_EXPECTED

    @property
    def is_rejected_rerun(self) -> bool:
        """True if the newest run was rejected while readers see an earlier one."""
        is_acknowledged = self.condition is Condition.ACKNOWLEDGED_RERUN and self.blocked_by is None
        return is_acknowledged or self.condition is Condition.REJECTED_RERUN

    @property
    def reason(self) -> str:
        """The cause of the condition, to be shown beside its name."""
        return f"{self.acknowledged}; {self._cause}" if self.acknowledged else self._cause

    @property
    def _cause(self) -> str:
        if self.gap is GapReason.WITHDRAWN:
            return f"withdrawn by {self.operator}: {self.detail}"
        if self.blocked_by is not None:
            newer = "readers see an earlier run; of the newest, " if self.gap is None else ""
            return f"{newer}{self.blocked_by}"
        if self.gap in _NAMED_GAPS:
            return f"{self.gap}: {self.detail}" if self.detail else str(self.gap)
        return self.detail or str(self.gap or "accepted")

    @property
    def explanation(self) -> str:
        """The reason why readers do not see the day, as the end of a sentence."""
        return f"{self.gap}: {self.reason}" if self.gap is GapReason.REJECTED else self.reason


def describe_day(
    facts: DayFacts | None,
    day: date,
    expectation: Expectation,
    *,
    parked: ParkedSource | None,
    now: datetime,
    acknowledged: Acknowledgement | None = None,
) -> DayCondition:
    """The condition of one day, why it has this condition, and since when."""
    described = _describe(facts, day, expectation, parked, now)
    if acknowledged is None or not described.entry.needs_operator:
        return described
    return replace(
        described,
        condition=ACKNOWLEDGED_AS[described.condition],
        since=acknowledged.performed_at,
        operator=printable(acknowledged.operator),
        acknowledged=acknowledged,
    )


def _describe(
    facts: DayFacts | None, day: date, expectation: Expectation, parked: ParkedSource | None, now: datetime
) -> DayCondition:
    condition, gap = _find(facts, day, expectation, is_parked=parked is not None, now=now)
    is_blocked = facts is not None and condition in BLOCKED_CONDITIONS
    blocked_by = _find_blocker(facts, expectation, now) if facts is not None and is_blocked else None
    since, detail, operator = expectation.deadline(day), "", ""
    if condition is Condition.NOT_EXPECTED:
        detail = expectation.describe(day)
    elif condition is Condition.PARKED and parked is not None:
        since, detail = parked.parked_at or since, parked.reason
    elif condition is Condition.UNRECOVERABLE:
        detail = _describe_reach(facts, day, expectation)
    elif blocked_by is not None:
        since, detail = blocked_by.since, blocked_by.detail
    elif gap is GapReason.QUOTA:
        detail = f"it is tried again from {_find_end_of_wait(facts, expectation, now):%Y-%m-%d %H:%M} UTC on"
    elif facts is not None and gap is not GapReason.NOTHING_SEALED:
        since, detail, operator = _explain(facts, gap)
    report = find_report(facts, day, condition, expectation)
    return DayCondition(
        condition=condition,
        gap=gap,
        detail=detail,
        since=since,
        operator=operator,
        attempts=0 if facts is None else facts.attempt_count,
        has_unjudged_run=facts is not None and facts.awaits_verdict,
        report=report,
        settles_at=None if report is None or expectation.settles_at is None else expectation.settles_at(day),
        blocked_by=blocked_by,
    )


def find_report(
    facts: DayFacts | None, day: date, condition: Condition, expectation: Expectation
) -> ReportState | None:
    """The state of the figures that readers see; None without them, or when it is unknown."""
    if facts is None or facts.extracted_at is None or expectation.settles_at is None:
        return None
    if condition not in READABLE_CONDITIONS:
        return None
    return find_report_state(facts.extracted_at, expectation.settles_at(day))


def _describe_reach(facts: DayFacts | None, day: date, expectation: Expectation) -> str:
    if day < expectation.first_in_reach:
        return f"it serves only days from {expectation.first_in_reach} on"
    return printable(facts.fetch_error or "") if facts is not None else ""


def _explain(facts: DayFacts, gap: GapReason | None) -> tuple[datetime, str, str]:
    """Find since when the condition holds, the text of its cause, and the operator who caused it."""
    if gap is GapReason.WITHDRAWN and facts.withdrawal is not None:
        operator, text, performed_at = facts.withdrawal
        return performed_at, printable(text), printable(operator)
    if gap is GapReason.FETCH_FAILED:
        return facts.fetch_failed_at or facts.updated_at, printable(facts.fetch_error or ""), ""
    reason, since = facts.newest_reason, facts.newest_judged_at
    if gap is GapReason.WAITING and reason is not None:
        return since or facts.updated_at, f"the last one was rejected: {reason.text}", reason.operator or ""
    if gap is GapReason.DEMOTING:
        reason, since = facts.demotion, facts.demotion_started_at
    if reason is None or gap not in {None, GapReason.REJECTED, GapReason.DEMOTED, GapReason.DEMOTING}:
        return facts.updated_at, "", ""
    if gap is None and facts.is_demoted:
        return since or facts.updated_at, f"accepted; the newest run was {reason.text}", ""
    return since or facts.updated_at, reason.text, reason.operator or ""


def find_condition(
    facts: DayFacts | None,
    day: date,
    expectation: Expectation,
    *,
    is_parked: bool,
    now: datetime,
    is_acknowledged: bool = False,
) -> Condition:
    """The condition of one day. Without facts, nothing of the day is recorded."""
    condition, _gap = _find(facts, day, expectation, is_parked=is_parked, now=now)
    return ACKNOWLEDGED_AS.get(condition, condition) if is_acknowledged else condition


def _find(
    facts: DayFacts | None, day: date, expectation: Expectation, *, is_parked: bool, now: datetime
) -> tuple[Condition, GapReason | None]:
    if facts is not None and (recorded := _find_recorded(facts)) is not None:
        blocker = _find_blocker(facts, expectation, now)
        if blocker is None:
            return recorded
        is_readable = recorded[0] in READABLE_CONDITIONS
        return (Condition.BLOCKED_RERUN, None) if is_readable else (Condition.BLOCKED, blocker.reason)
    is_expected = expectation.is_expected(day, is_recorded=facts is not None) and now >= expectation.deadline(day)
    if (is_expected or facts is not None) and _is_out_of_reach(facts, day, expectation):
        return Condition.UNRECOVERABLE, GapReason.OUT_OF_REACH
    if is_expected and is_parked:
        return Condition.PARKED, GapReason.PARKED
    if facts is not None and facts.newest_outcome is Outcome.REJECTED and facts.fetch_error is None:
        return _find_requeued(facts, is_expected=is_expected), GapReason.WAITING
    return (
        _find_unfetched(facts, day, expectation, now) if is_expected else (Condition.NOT_EXPECTED, _find_gap(facts))
    )


def _find_requeued(facts: DayFacts, *, is_expected: bool) -> Condition:
    """The condition of a day whose newest run was rejected, and that waits for another one.

    A demoted day is no longer hidden on purpose, because somebody asked for another run.
    """
    if not facts.is_demoted:
        return Condition.REJECTED
    return Condition.LATE if is_expected else Condition.HIDDEN


def _find_unfetched(
    facts: DayFacts | None, day: date, expectation: Expectation, now: datetime
) -> tuple[Condition, GapReason]:
    """The condition that the deadline decides of a day that waits for its first run, or for another one."""
    if _find_end_of_wait(facts, expectation, now) is not None:
        return Condition.IN_PROGRESS, GapReason.QUOTA
    has_attempts = facts is not None and facts.attempt_count > 0
    has_failed = facts is not None and facts.fetch_error is not None
    is_fresh = now < expectation.end_of_freshness(day)
    gap = GapReason.FETCH_FAILED if has_failed else _find_gap(facts)
    return (Condition.LATE if is_fresh or has_attempts else Condition.MISSING), gap


def _find_end_of_wait(facts: DayFacts | None, expectation: Expectation, now: datetime) -> datetime | None:
    """The end of a quota that stops fetches of the day; None without one. A run has the limit to come after it."""
    ends = []
    if expectation.held_until is not None and (facts is None or facts.fetch_error_class in {None, QUOTA_EXHAUSTED}):
        ends.append(expectation.held_until)
    if facts is not None and facts.fetch_error_class == QUOTA_EXHAUSTED:
        ends += [each for each in (facts.fetch_failed_at, facts.fetch_wait_until) if each is not None]
    end = max(ends, default=None)
    return end if end is not None and now < end + IN_PROGRESS_LIMIT else None


def _find_gap(facts: DayFacts | None) -> GapReason:
    return GapReason.WAITING if facts is not None and facts.attempt_count > 0 else GapReason.NOTHING_SEALED


def _is_out_of_reach(facts: DayFacts | None, day: date, expectation: Expectation) -> bool:
    """True if the account's limit or the source itself says that the day cannot be fetched any more."""
    is_refused = facts is not None and facts.fetch_error_class == OUT_OF_REACH
    return is_refused or day < expectation.first_in_reach


def _find_recorded(facts: DayFacts) -> tuple[Condition, GapReason | None] | None:
    """The condition that recorded verdicts and actions decide; None while only the deadline decides."""
    if facts.demotion is not None:
        return Condition.HIDDEN, GapReason.DEMOTING
    if facts.status is Status.SUCCESS:
        return (_find_readable(facts), None) if facts.is_published else (Condition.IN_PROGRESS, GapReason.UNLOADED)
    if facts.status is Status.FAILED:
        if facts.is_demoted:
            return Condition.HIDDEN, GapReason.DEMOTED
        return Condition.REJECTED, GapReason.REJECTED
    if facts.has_unjudged_run:
        return Condition.IN_PROGRESS, GapReason.UNJUDGED
    return (Condition.HIDDEN, GapReason.WITHDRAWN) if facts.withdrawal is not None else None


def _find_readable(facts: DayFacts) -> Condition:
    if facts.newest_outcome is Outcome.REJECTED and not facts.is_demoted:
        return Condition.REJECTED_RERUN
    return Condition.RESTATED if facts.is_restated else Condition.READABLE


def _find_blocker(facts: DayFacts, expectation: Expectation, now: datetime) -> Blocker | None:
    """The reason why a run of the day cannot go on without a person; None when it can."""
    if facts.demotion is not None:
        return _find_overdue(GapReason.DEMOTING, facts.demotion_started_at, now)
    is_unloaded = facts.status is Status.SUCCESS and not (facts.is_published and facts.is_loaded)
    blocker = _find_blocker_of_load(facts, expectation, now) if is_unloaded else None
    if blocker is not None or not facts.awaits_verdict or facts.unjudged_since is None:
        return blocker
    if not _is_judgeable(facts.unjudged_version, expectation):
        return _miss_contract(facts.unjudged_version, facts.unjudged_since)
    return _find_overdue(GapReason.UNJUDGED, facts.unjudged_since, now)


def _find_blocker_of_load(facts: DayFacts, expectation: Expectation, now: datetime) -> Blocker | None:
    if not _is_judgeable(facts.accepted_version, expectation):
        return _miss_contract(facts.accepted_version, facts.updated_at)
    if facts.unloadable_since is not None:
        return Blocker(GapReason.UNLOADABLE, facts.unloadable_since)
    return _find_overdue(GapReason.UNLOADED, facts.updated_at, now)


def _is_judgeable(version: str | None, expectation: Expectation) -> bool:
    """True if the validator can judge this version. A damaged run has none, and is rejected without a contract."""
    return version is None or expectation.has_contract(version)


def _miss_contract(version: str | None, since: datetime) -> Blocker:
    return Blocker(GapReason.NO_CONTRACT, since, f"schema_version {printable(version or '')}")


def _find_overdue(reason: GapReason, since: datetime | None, now: datetime) -> Blocker | None:
    if since is None or now - since <= IN_PROGRESS_LIMIT:
        return None
    return Blocker(reason, since, f"for more than {IN_PROGRESS_LIMIT // timedelta(hours=1)} hours")
