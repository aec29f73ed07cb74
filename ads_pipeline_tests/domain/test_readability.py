"""The condition of a day, from the facts that the ledger records."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.days.conditions import (
    BLOCKED_CONDITIONS,
    CONDITIONS,
    NEEDS_OPERATOR,
    READABLE_CONDITIONS,
    Condition,
    GapReason,
    urgency,
)
from ads_pipeline.domain.days.day_facts import Acknowledgement, DayFacts, Withdrawal
from ads_pipeline.domain.days.expectation import Expectation
from ads_pipeline.domain.days.readability import IN_PROGRESS_LIMIT, ParkedSource, describe_day, find_condition
from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.fetching.retry_policy import OUT_OF_REACH
from ads_pipeline.domain.reason import Problem, Reason
from ads_pipeline.domain.transitions import Outcome, Status

DAY = date(2026, 1, 10)
EXPECTED = Expectation(first_day=date(2026, 1, 1), due_after=timedelta(hours=12))
DUE = datetime(2026, 1, 11, 12, tzinfo=UTC)
IN_REACH, SETTLES_AT = DAY - timedelta(days=3), DUE + timedelta(days=30)
NINE_DAYS = timedelta(days=9)
BEYOND = IN_REACH - timedelta(days=1)
REACHING = replace(EXPECTED, first_in_reach=IN_REACH, settles_at=lambda _day: SETTLES_AT)
ONLY_VERSION_1 = replace(EXPECTED, has_contract=lambda version: version == "1")
REJECTION = Reason(run_id="r1", problems=(Problem(error_class="contract", rule="bad"),))
DEMOTION = Reason.of_demotion("r1", operator="ana", text="wrong account")
WITHDRAWAL = Withdrawal("ana", "wrong currency", DUE + timedelta(hours=1))
PARKED = ParkedSource(reason="customer 1 is parked: no access", option="--customer 1", parked_at=DUE)
ACCEPTED = DayFacts(
    customer_id="1",
    logical_date=DAY,
    status=Status.SUCCESS,
    attempt_count=1,
    record_count=2,
    updated_at=DUE,
    is_published=True,
    has_unjudged_run=False,
    is_restated=False,
)
FAILED = ACCEPTED._replace(
    status=Status.FAILED, is_published=False, newest_outcome=Outcome.REJECTED, newest_reason=REJECTION
)
PENDING = ACCEPTED._replace(status=Status.PENDING, is_published=False, attempt_count=0)


@pytest.mark.parametrize(
    ("facts", "condition"),
    [
        (ACCEPTED, Condition.READABLE),
        (ACCEPTED._replace(is_restated=True), Condition.RESTATED),
        (ACCEPTED._replace(is_restated=True, newest_outcome=Outcome.ACCEPTED), Condition.RESTATED),
        (ACCEPTED._replace(is_restated=True, newest_outcome=Outcome.REJECTED), Condition.REJECTED_RERUN),
        (ACCEPTED._replace(newest_outcome=Outcome.REJECTED), Condition.REJECTED_RERUN),
        (ACCEPTED._replace(newest_outcome=Outcome.REJECTED, newest_reason=DEMOTION), Condition.READABLE),
        (ACCEPTED._replace(is_published=False), Condition.IN_PROGRESS),
        (ACCEPTED._replace(demotion=DEMOTION), Condition.HIDDEN),
        (FAILED, Condition.REJECTED),
        (FAILED._replace(newest_reason=DEMOTION), Condition.HIDDEN),
        (PENDING._replace(has_unjudged_run=True), Condition.IN_PROGRESS),
        (PENDING._replace(withdrawal=WITHDRAWAL, attempt_count=1), Condition.HIDDEN),
        (PENDING._replace(attempt_count=2), Condition.LATE),
        (PENDING, Condition.LATE),
        (None, Condition.LATE),
    ],
)
def test_condition_of_recorded_facts(facts: DayFacts | None, condition: Condition) -> None:
    """Each combination of state, publication and last verdict has one condition."""
    assert find_condition(facts, DAY, EXPECTED, is_parked=False, now=DUE) is condition


@pytest.mark.parametrize(
    ("now", "condition"),
    [
        (DUE - timedelta(microseconds=1), Condition.NOT_EXPECTED),
        (DUE, Condition.LATE),
        (datetime(2026, 1, 13, 23, 59, tzinfo=UTC), Condition.LATE),
        (datetime(2026, 1, 14, tzinfo=UTC), Condition.MISSING),
    ],
)
def test_absent_day_is_late_from_its_deadline_and_missing_once_it_is_not_fresh(
    now: datetime, condition: Condition
) -> None:
    """Before the deadline it is not expected."""
    assert find_condition(None, DAY, EXPECTED, is_parked=False, now=now) is condition


def test_day_before_the_first_sealed_day_is_not_expected() -> None:
    """Not even after a long time, and not when the account is parked."""
    day = EXPECTED.first_day - timedelta(days=1)
    for is_parked in (False, True):
        condition = find_condition(None, day, EXPECTED, is_parked=is_parked, now=DUE + timedelta(days=400))
        assert condition is Condition.NOT_EXPECTED


def test_parking_explains_only_days_that_are_due_and_absent() -> None:
    """A readable day of a parked account stays readable."""
    assert find_condition(None, DAY, EXPECTED, is_parked=True, now=DUE) is Condition.PARKED
    assert find_condition(ACCEPTED, DAY, EXPECTED, is_parked=True, now=DUE) is Condition.READABLE


@pytest.mark.parametrize(
    ("facts", "day", "condition"),
    [
        (None, IN_REACH, Condition.MISSING),
        (None, BEYOND, Condition.UNRECOVERABLE),
        (PENDING, BEYOND, Condition.UNRECOVERABLE),
        (PENDING, EXPECTED.first_day - timedelta(days=1), Condition.UNRECOVERABLE),
        (None, EXPECTED.first_day - timedelta(days=1), Condition.NOT_EXPECTED),
        (PENDING._replace(fetch_error="refused", fetch_error_class=OUT_OF_REACH), DAY, Condition.UNRECOVERABLE),
        (PENDING._replace(has_unjudged_run=True), BEYOND, Condition.IN_PROGRESS),
        (FAILED, BEYOND, Condition.REJECTED),
        (ACCEPTED, BEYOND, Condition.READABLE),
    ],
)
def test_day_beyond_the_reach_of_the_source_is_unrecoverable(
    facts: DayFacts | None, day: date, condition: Condition
) -> None:
    """Unless a run of it exists. Releasing a parked account would not bring it back."""
    assert find_condition(facts, day, REACHING, is_parked=False, now=DUE) is condition
    if condition is Condition.UNRECOVERABLE:
        assert find_condition(facts, day, REACHING, is_parked=True, now=DUE) is condition


def test_unrecoverable_day_names_the_oldest_day_in_reach_or_the_refusal() -> None:
    """It needs no operator, because nobody can bring it back."""
    day = describe_day(None, BEYOND, REACHING, parked=None, now=DUE)
    assert day.reason == f"the source no longer serves it: it serves only days from {IN_REACH} on"
    assert not day.entry.needs_operator
    refused = PENDING._replace(fetch_error="granularity (q1)", fetch_error_class=OUT_OF_REACH)
    described = describe_day(refused, DAY, EXPECTED, parked=None, now=DUE)
    assert described.reason == "the source no longer serves it: granularity (q1)"


@pytest.mark.parametrize(
    ("facts", "before", "report"),
    [
        (ACCEPTED, timedelta(seconds=1), ReportState.PROVISIONAL),
        (ACCEPTED, timedelta(0), ReportState.SETTLED),
        (ACCEPTED._replace(newest_outcome=Outcome.REJECTED), timedelta(0), ReportState.SETTLED),
        (ACCEPTED._replace(is_published=False), timedelta(0), None),
        (FAILED, timedelta(0), None),
    ],
)
def test_report_is_provisional_until_it_is_extracted_after_the_conversion_window(
    facts: DayFacts, before: timedelta, report: ReportState | None
) -> None:
    """Of an account that is not known, nobody can say; of a day that readers do not see, neither."""
    facts = facts._replace(extracted_at=SETTLES_AT - before)
    day = describe_day(facts, DAY, REACHING, parked=None, now=DUE)
    assert (day.report, day.settles_at) == (report, SETTLES_AT if report else None)
    assert describe_day(facts, DAY, EXPECTED, parked=None, now=DUE).report is None


@pytest.mark.invariant("W3")
@given(
    facts=st.builds(
        DayFacts,
        customer_id=st.just("1"),
        logical_date=st.just(DAY),
        status=st.sampled_from(Status),
        attempt_count=st.integers(0, 3),
        record_count=st.none(),
        updated_at=st.just(DUE),
        is_published=st.booleans(),
        has_unjudged_run=st.booleans(),
        newest_outcome=st.none() | st.sampled_from(Outcome),
        newest_reason=st.none() | st.sampled_from([REJECTION, DEMOTION]),
        newest_judged_at=st.none(),
        is_restated=st.booleans(),
        demotion=st.none() | st.just(DEMOTION),
        demotion_started_at=st.none(),
        withdrawal=st.none() | st.just(WITHDRAWAL),
        fetch_error=st.none() | st.just("no quota"),
        fetch_failed_at=st.none(),
        extracted_at=st.none(),
        unjudged_version=st.none() | st.sampled_from(["1", "9"]),
        unjudged_since=st.none() | st.just(DUE),
        unloadable_since=st.none() | st.just(DUE),
    ),
    is_parked=st.booleans(),
)
def test_readable_conditions_are_exactly_published_successes(facts: DayFacts, is_parked: bool) -> None:
    """Whatever else holds, a day is shown as readable exactly when readers see rows of it."""
    condition = find_condition(facts, DAY, ONLY_VERSION_1, is_parked=is_parked, now=DUE + timedelta(days=9))
    is_readable = facts.status is Status.SUCCESS and facts.is_published and facts.demotion is None
    assert (condition in READABLE_CONDITIONS) == is_readable


UNKNOWN_VERSION: dict[str, Any] = {"has_unjudged_run": True, "unjudged_version": "9", "unjudged_since": DUE}
NOT_LOADED = ACCEPTED._replace(is_published=False, is_loaded=False, accepted_version="1")
RERUN_NOT_LOADED = ACCEPTED._replace(is_loaded=False, accepted_version="1", updated_at=DUE)
OVERDUE = IN_PROGRESS_LIMIT + timedelta(microseconds=1)


@pytest.mark.invariant("L2")
@pytest.mark.parametrize(
    ("facts", "waited", "condition", "gap", "reason"),
    [
        (
            PENDING._replace(**UNKNOWN_VERSION),
            timedelta(),
            Condition.BLOCKED,
            GapReason.NO_CONTRACT,
            "no contract judges its run: schema_version 9",
        ),
        (
            FAILED._replace(**UNKNOWN_VERSION),
            timedelta(),
            Condition.BLOCKED,
            GapReason.NO_CONTRACT,
            "no contract judges its run: schema_version 9",
        ),
        (
            ACCEPTED._replace(**UNKNOWN_VERSION),
            timedelta(),
            Condition.BLOCKED_RERUN,
            None,
            "readers see an earlier run; of the newest, no contract judges its run: schema_version 9",
        ),
        (
            NOT_LOADED._replace(unloadable_since=DUE),
            timedelta(),
            Condition.BLOCKED,
            GapReason.UNLOADABLE,
            "the files of its accepted run are missing or changed",
        ),
        (
            RERUN_NOT_LOADED._replace(unloadable_since=DUE),
            timedelta(),
            Condition.BLOCKED_RERUN,
            None,
            "readers see an earlier run; of the newest, the files of its accepted run are missing or changed",
        ),
        (
            NOT_LOADED._replace(accepted_version="9", unloadable_since=DUE),
            timedelta(),
            Condition.BLOCKED,
            GapReason.NO_CONTRACT,
            "no contract judges its run: schema_version 9",
        ),
        (
            PENDING._replace(**UNKNOWN_VERSION | {"unjudged_version": "1"}),
            OVERDUE,
            Condition.BLOCKED,
            GapReason.UNJUDGED,
            "a run awaits its verdict: for more than 6 hours",
        ),
        (
            NOT_LOADED,
            OVERDUE,
            Condition.BLOCKED,
            GapReason.UNLOADED,
            "it is accepted and not loaded yet: for more than 6 hours",
        ),
        (
            ACCEPTED._replace(demotion=DEMOTION, demotion_started_at=DUE),
            OVERDUE,
            Condition.BLOCKED,
            GapReason.DEMOTING,
            "its rows are being withdrawn: for more than 6 hours",
        ),
        (
            RERUN_NOT_LOADED,
            OVERDUE,
            Condition.BLOCKED_RERUN,
            None,
            "readers see an earlier run; of the newest, it is accepted and not loaded yet: for more than 6 hours",
        ),
    ],
)
def test_run_that_cannot_go_on_blocks_its_day(
    facts: DayFacts, waited: timedelta, condition: Condition, gap: GapReason | None, reason: str
) -> None:
    """Without a contract or its files at once, otherwise after the limit. Readers keep what is published."""
    day = describe_day(facts, DAY, ONLY_VERSION_1, parked=None, now=DUE + waited)
    assert (day.condition, day.gap, day.reason, day.since) == (condition, gap, reason, DUE)
    assert day.entry.needs_operator
    if waited:
        at_limit = describe_day(facts, DAY, ONLY_VERSION_1, parked=None, now=DUE + IN_PROGRESS_LIMIT)
        assert at_limit.condition not in BLOCKED_CONDITIONS


def test_older_run_without_a_contract_blocks_nothing() -> None:
    """A newer run was rejected or accepted since, so its contract would change nothing."""
    for facts in (FAILED, ACCEPTED):
        older = facts._replace(**UNKNOWN_VERSION, unjudged_is_newest=False)
        day = describe_day(older, DAY, ONLY_VERSION_1, parked=None, now=DUE)
        assert day.condition in {Condition.REJECTED, Condition.READABLE}
        assert not day.has_unjudged_run


def test_damaged_run_needs_no_contract() -> None:
    """It has no schema version, and the validator rejects it."""
    damaged = PENDING._replace(has_unjudged_run=True, unjudged_version=None, unjudged_since=DUE)
    assert find_condition(damaged, DAY, ONLY_VERSION_1, is_parked=False, now=DUE) is Condition.IN_PROGRESS


@pytest.mark.parametrize(
    ("reason", "now", "condition", "text", "operator"),
    [
        *((REJECTION, at, Condition.REJECTED, "bad", "") for at in (DUE - timedelta(hours=1), DUE)),
        (REJECTION, DUE + timedelta(days=9), Condition.REJECTED, "bad", ""),
        (DEMOTION, DUE - timedelta(hours=1), Condition.HIDDEN, "demoted by ana: wrong account", "ana"),
        *((DEMOTION, at, Condition.LATE, "demoted by ana: wrong account", "ana") for at in (DUE, DUE + NINE_DAYS)),
    ],
)
def test_retried_day_keeps_the_reason_of_its_rejection(
    reason: Reason, now: datetime, condition: Condition, text: str, operator: str
) -> None:
    """Until another run is judged. A failed fetch or a parking is newer and counts instead.

    A demoted day of which another run was requested is not hidden on purpose any more: after its deadline it is late.
    """
    retried = PENDING._replace(
        attempt_count=1, newest_outcome=Outcome.REJECTED, newest_reason=reason, newest_judged_at=DUE
    )
    day = describe_day(retried, DAY, EXPECTED, parked=None, now=now)
    assert (day.condition, day.gap, day.operator) == (condition, GapReason.WAITING, operator)
    assert day.reason == f"it waits for another run: the last one was rejected: {text}"
    refetched = retried._replace(fetch_error="no quota", fetch_failed_at=DUE)
    later = DUE + timedelta(hours=1)
    assert describe_day(refetched, DAY, EXPECTED, parked=None, now=later).gap is GapReason.FETCH_FAILED
    assert describe_day(retried, DAY, EXPECTED, parked=PARKED, now=later).condition is Condition.PARKED


def test_every_condition_has_a_text() -> None:
    """The texts are in the order of urgency in which the report sorts its work list."""
    assert list(CONDITIONS) == list(Condition)


@pytest.mark.parametrize(
    ("facts", "gap", "reason", "operator"),
    [
        (ACCEPTED, None, "accepted", ""),
        (ACCEPTED._replace(is_published=False), GapReason.UNLOADED, "it is accepted and not loaded yet", ""),
        (
            ACCEPTED._replace(demotion=DEMOTION, demotion_started_at=DUE),
            GapReason.DEMOTING,
            "its rows are being withdrawn: demoted by ana: wrong account",
            "ana",
        ),
        (FAILED, GapReason.REJECTED, "bad", ""),
        (FAILED._replace(newest_reason=DEMOTION), GapReason.DEMOTED, "demoted by ana: wrong account", "ana"),
        (
            PENDING._replace(withdrawal=WITHDRAWAL, attempt_count=1),
            GapReason.WITHDRAWN,
            "withdrawn by ana: wrong currency",
            "ana",
        ),
        (PENDING._replace(has_unjudged_run=True), GapReason.UNJUDGED, "a run awaits its verdict", ""),
        (PENDING._replace(attempt_count=2), GapReason.WAITING, "it waits for another run", ""),
        (
            PENDING._replace(fetch_error="no quota", fetch_failed_at=DUE),
            GapReason.FETCH_FAILED,
            "its last fetch failed: no quota",
            "",
        ),
        (PENDING, GapReason.NOTHING_SEALED, "no run arrived", ""),
        (None, GapReason.NOTHING_SEALED, "no run arrived", ""),
    ],
)
def test_each_gap_has_its_reason_and_its_operator(
    facts: DayFacts | None, gap: GapReason | None, reason: str, operator: str
) -> None:
    """A day that an operator hid names the operator and the operator's reason."""
    day = describe_day(facts, DAY, EXPECTED, parked=None, now=DUE)
    assert (day.gap, day.reason, day.operator) == (gap, reason, operator)
    assert day.explanation == (f"its run was rejected: {reason}" if gap is GapReason.REJECTED else reason)


def test_parked_day_names_its_parking() -> None:
    """It holds since the account was parked."""
    day = describe_day(None, DAY, EXPECTED, parked=PARKED, now=DUE + timedelta(hours=2))
    assert (day.gap, day.reason, day.since) == (GapReason.PARKED, "customer 1 is parked: no access", DUE)


@pytest.mark.parametrize(
    ("day", "reason"),
    [
        (DAY, "no run arrived: the day is due at 2026-01-11 12:00 UTC"),
        (
            date(2025, 12, 31),
            "no run arrived: none is expected before the customer's first fetched day, 2026-01-01",
        ),
    ],
)
def test_day_that_is_not_expected_says_when_one_is(day: date, reason: str) -> None:
    """Either the first fetched day or the deadline is in the future of the day."""
    described = describe_day(None, day, EXPECTED, parked=None, now=DUE - timedelta(hours=1))
    assert (described.is_expected, described.reason) == (False, reason)


def test_deadline_follows_the_setting() -> None:
    """A day is due that long after it ended in UTC. The last due day is the newest whose deadline has passed."""
    expectation = Expectation(first_day=DAY, due_after=timedelta(hours=30))
    assert expectation.deadline(DAY) == datetime(2026, 1, 12, 6, tzinfo=UTC)
    assert find_condition(None, DAY, expectation, is_parked=False, now=DUE) is Condition.NOT_EXPECTED
    assert expectation.last_due_day(datetime(2026, 1, 12, 6, tzinfo=UTC)) == DAY
    assert expectation.last_due_day(datetime(2026, 1, 12, 5, 59, tzinfo=UTC)) == DAY - timedelta(days=1)


KNOWN = Acknowledgement("ada", "the account closed", DUE + timedelta(hours=3))


@pytest.mark.invariant("L2", "L8")
@pytest.mark.parametrize(
    ("facts", "parked", "condition", "reason"),
    [
        (None, None, Condition.ACKNOWLEDGED, "no run arrived"),
        (None, PARKED, Condition.ACKNOWLEDGED, "customer 1 is parked: no access"),
        (FAILED, None, Condition.ACKNOWLEDGED, "bad"),
        (
            ACCEPTED._replace(newest_outcome=Outcome.REJECTED, newest_reason=REJECTION),
            None,
            Condition.ACKNOWLEDGED_RERUN,
            "bad",
        ),
    ],
)
def test_acknowledged_day_needs_nobody_and_keeps_its_cause(
    facts: DayFacts | None, parked: ParkedSource | None, condition: Condition, reason: str
) -> None:
    """It says who acknowledged it, when and why. What readers get stays the same."""
    day = describe_day(facts, DAY, EXPECTED, parked=parked, now=DUE, acknowledged=KNOWN)
    plain = describe_day(facts, DAY, EXPECTED, parked=parked, now=DUE)
    assert (day.condition, day.gap, day.operator, day.since) == (condition, plain.gap, "ada", KNOWN.performed_at)
    assert day.reason == f"acknowledged by ada at 2026-01-11 15:00 UTC: the account closed; {reason}"
    assert not day.entry.needs_operator
    assert (day.condition in READABLE_CONDITIONS) == (plain.condition in READABLE_CONDITIONS)
    is_parked = parked is not None
    assert find_condition(facts, DAY, EXPECTED, is_parked=is_parked, now=DUE, is_acknowledged=True) is condition


@pytest.mark.parametrize("facts", [ACCEPTED, PENDING._replace(has_unjudged_run=True)])
def test_acknowledgement_changes_only_days_that_need_an_operator(facts: DayFacts) -> None:
    """A day that goes on or is readable is shown as before."""
    day = describe_day(facts, DAY, EXPECTED, parked=None, now=DUE, acknowledged=KNOWN)
    assert day == describe_day(facts, DAY, EXPECTED, parked=None, now=DUE)


WAITING = PENDING._replace(
    fetch_error="no quota", fetch_error_class="quota_exhausted", fetch_failed_at=DUE, fetch_wait_until=DUE + NINE_DAYS
)
HELD = replace(EXPECTED, held_until=DUE + NINE_DAYS)


@pytest.mark.parametrize(
    ("facts", "expectation"), [(WAITING, EXPECTED), (WAITING, HELD), (None, HELD), (PENDING, HELD)]
)
def test_wait_for_a_quota_is_in_progress_and_says_when_it_ends(
    facts: DayFacts | None, expectation: Expectation
) -> None:
    """It needs nobody until a run could have come after the wait."""
    day = describe_day(facts, DAY, expectation, parked=None, now=DUE)
    assert (day.condition, day.gap) == (Condition.IN_PROGRESS, GapReason.QUOTA)
    assert day.reason == "its fetch waits for the quota: it is tried again from 2026-01-20 12:00 UTC on"
    over = DUE + NINE_DAYS + IN_PROGRESS_LIMIT
    assert find_condition(facts, DAY, expectation, is_parked=False, now=over) in {Condition.LATE, Condition.MISSING}
    assert find_condition(facts, DAY, expectation, is_parked=True, now=DUE) is Condition.PARKED


@pytest.mark.parametrize("facts", [PENDING._replace(fetch_error="reset", fetch_error_class="transient"), FAILED])
def test_quota_explains_only_days_that_wait_for_it(facts: DayFacts) -> None:
    """A day that failed for another reason needs somebody although the account is on hold."""
    day = describe_day(facts, DAY, HELD, parked=None, now=DUE)
    assert day.entry.needs_operator


def test_work_lists_have_one_order() -> None:
    """The most urgent condition first, and of each the newest day first. What needs an operator precedes the rest."""
    days = [(Condition.LATE, DAY), (Condition.REJECTED, DAY), (Condition.LATE, DAY + timedelta(days=1))]
    assert sorted(days, key=lambda each: urgency(*each)) == [days[1], days[2], days[0]]
    quiet = [each for each in CONDITIONS if each not in NEEDS_OPERATOR]
    assert list(CONDITIONS) == [*NEEDS_OPERATOR, *quiet]
