"""Retry decisions against a second formulation of their rules, and the allocation of retry slots to two lanes."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import pairwise, product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ads_pipeline
from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.fetching.error_texts import describe_error
from ads_pipeline.domain.fetching.retry_policy import (
    ERROR_POLICIES,
    UNRECOVERABLE,
    ErrorPolicy,
    Failure,
    Lane,
    Parked,
    RetryAt,
    RetryDecision,
    RetryPolicy,
    Terminal,
    TerminalReason,
    allocate_slots,
    decide_retry,
    lane_for,
    retry_delay,
    terminal_reason,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline_tests import builders

DAY = builders.DAY
TODAY = date(2026, 2, 5)
FAILED_AT = datetime(2026, 2, 4, 6, tzinfo=UTC)
TICK = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
ONE_DAY = timedelta(days=1)
POLICY = RetryPolicy()
KEYS = [builders.key(str(number)) for number in range(1000)]
WAITS = {"quota_exhausted", "source_unavailable", "run_too_long"}
ERROR_CLASSES = [None, "unknown_class", *ERROR_POLICIES]


def failure(failures: int = 1, error_class: str | None = "damaged", **changes: Any) -> Failure:
    defaults: dict[str, Any] = {"key": builders.key(), "failed_at": FAILED_AT}
    return Failure(failures=failures, error_class=error_class, **(defaults | changes))


def decide(
    failed: Failure, policy: RetryPolicy = POLICY, *, marked: bool = False, today: date = TODAY
) -> RetryDecision:
    return decide_retry(failed, policy, marked=marked, today=today)


def retried_at(failed: Failure, policy: RetryPolicy = POLICY) -> datetime:
    decision = decide(failed, policy)
    assert isinstance(decision, RetryAt)
    return decision.at


def is_terminal(status: Status, failures: int, age: int, *, marked: bool = False) -> TerminalReason | None:
    day = TODAY - age * ONE_DAY
    return terminal_reason(status, failures=failures, day=day, policy=POLICY, marked=marked, today=TODAY)


keys = st.builds(builders.key, st.integers(0, 10**6).map(str), day=st.dates(date(2020, 1, 1), date(2030, 1, 1)))
times = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - st gives the zone
policies = st.builds(
    lambda steps, jitter, attempts, age: RetryPolicy(
        delays=tuple(step * TICK for step in sorted(steps)), jitter=jitter, max_attempts=attempts, max_age=age
    ),
    # Steps that are close together or far apart: the jitter of a close step could exceed the next step.
    st.sets(st.integers(1, 100) | st.integers(1, 366 * 86_400 * 10**6), min_size=1, max_size=6),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 10),
    st.timedeltas(TICK, timedelta(days=1000)),
)
counts = st.integers(1, 12) | st.integers(1, 10**6)
failed = st.builds(
    Failure,
    key=keys,
    failures=counts,
    failed_at=times,
    error_class=st.sampled_from(ERROR_CLASSES),
    wait_until=st.none() | times,
)
days = st.dates(date(2019, 1, 1), date(2032, 1, 1))


@pytest.mark.invariant("S18", "X4")
@given(policy=policies, key=keys, failures=counts)
@example(policy=RetryPolicy(jitter=0.99), key=builders.key(), failures=10**6)
def test_delay_stays_within_step_and_jitter(policy: RetryPolicy, key: PartitionKey, failures: int) -> None:
    """A delay is at least its step and at most the step plus its full jitter, for any number of failures."""
    step = policy.delays[min(failures, len(policy.delays)) - 1]
    waited = retry_delay(failures, policy, key=key)
    assert step <= waited <= step + step * policy.jitter
    assert waited <= policy.delays[-1] * (1 + policy.jitter) + TICK  # tolerance for float rounding


@pytest.mark.invariant("S18")
@given(policy=policies, key=keys, more=st.integers(1, 10**6))
def test_delay_never_shrinks(policy: RetryPolicy, key: PartitionKey, more: int) -> None:
    """One more failure of the same partition never shortens the delay, also at and after the last step."""
    waits = [retry_delay(failures, policy, key=key) for failures in range(1, len(policy.delays) + 4)]
    assert all(earlier <= later for earlier, later in pairwise(waits))
    assert retry_delay(len(waits) + more, policy, key=key) == waits[-1]


@pytest.mark.invariant("S18")
def test_default_delays() -> None:
    """The default delays are 5, 30 and then always 120 minutes without jitter."""
    plain = RetryPolicy(jitter=0)
    minutes = [retry_delay(failures, plain, key=builders.key()) / MINUTE for failures in (1, 2, 3, 4, 5, 10**6)]
    assert minutes == [5, 30, 120, 120, 120, 120]
    assert (POLICY.jitter, POLICY.max_attempts, POLICY.max_age) == (0.2, 6, 90 * ONE_DAY)


@pytest.mark.invariant("S18", "X4")
@pytest.mark.parametrize("failures", [1, 2, 3, 6])
def test_jitter_spreads_simultaneous_failures(failures: int) -> None:
    """The jitter of a thousand partitions is spread evenly; no minute or tenth has far more than its share."""
    step = POLICY.delays[min(failures, 3) - 1]
    added = [retry_delay(failures, POLICY, key=key) - step for key in KEYS]
    tenths = Counter(each // (step * POLICY.jitter / 10) for each in added)
    assert sorted(tenths) == list(range(10))
    assert max(tenths.values()) < 150
    minutes = Counter(each // MINUTE for each in added)
    assert max(minutes.values()) < 1.5 * max(1000 / (step * POLICY.jitter / MINUTE), 100)
    assert (len(minutes) > 1) is (failures > 1)  # the whole jitter of five minutes is one minute


@pytest.mark.invariant("S18")
def test_jitter_order_differs_by_step() -> None:
    """The order of delays differs from step to step, and every part of the key changes the jitter."""
    first, second = (sorted(KEYS, key=lambda key: retry_delay(n, POLICY, key=key)) for n in (1, 2))
    assert first != second
    others = [
        builders.key(),
        builders.key("1234567891"),
        builders.key(query_name="ad_daily"),
        builders.key(day=DAY + ONE_DAY),
        replace(builders.key(), source="bing_ads"),
    ]
    assert len({retry_delay(1, POLICY, key=key) for key in others}) == len(others)


def test_delay_is_deterministic() -> None:
    """The jitter depends on the key only: every process, release and hash seed gives the same delay."""
    waits = [retry_delay(failures, POLICY, key=builders.key()) / timedelta(seconds=1) for failures in (1, 2, 3)]
    assert waits == [342.074912, 2150.429863, 8380.17187]


@pytest.mark.parametrize("failures", [0, -1])
def test_delay_needs_a_failure(failures: int) -> None:
    """A delay after no failure is a ValueError."""
    with pytest.raises(ValueError, match="number of failures"):
        retry_delay(failures, POLICY, key=builders.key())


@pytest.mark.invariant("S17")
@pytest.mark.parametrize("status", Status)
def test_terminal_reason_follows_table(status: Status) -> None:
    """For every status, with and without mark, around each limit: the first reason that holds, or none."""
    for marked, (failures, many), (age, old) in product(
        (False, True),
        ((0, False), (5, False), (6, True), (7, True), (10**6, True)),
        ((-1, False), (0, False), (89, False), (90, True), (91, True)),
    ):
        holding = [reason for reason, holds in zip(TerminalReason, (marked, many, old), strict=True) if holds]
        expected = holding[0] if holding and status is Status.FAILED else None
        assert is_terminal(status, failures, age, marked=marked) is expected


@pytest.mark.invariant("S17")
def test_partial_day_of_max_age_rounds_up() -> None:
    """Partitions age by whole days, so a limit of a day and a half is reached on the second day."""
    policy = RetryPolicy(max_age=timedelta(hours=36))
    reasons = [
        terminal_reason(Status.FAILED, failures=1, day=DAY, policy=policy, marked=False, today=DAY + age * ONE_DAY)
        for age in (1, 2)
    ]
    assert reasons == [None, TerminalReason.TOO_OLD]
    decision = decide(failure(), policy, today=DAY + 2 * ONE_DAY)
    assert decision == Terminal(
        reason=TerminalReason.TOO_OLD, explanation="the day is 2 days old; after 2 days nothing is retried"
    )


@pytest.mark.invariant("S17")
@given(failure_drawn=failed, policy=policies, marked=st.booleans(), today=days)
def test_decision_is_terminal_exactly_when_partition_is(
    failure_drawn: Failure, policy: RetryPolicy, marked: bool, today: date
) -> None:
    """The decision about a failure agrees with `terminal_reason` of the failed row; waiting alone does not count."""
    reason = terminal_reason(
        Status.FAILED,
        failures=0 if failure_drawn.error_class in WAITS else failure_drawn.failures,
        day=failure_drawn.key.logical_date,
        policy=policy,
        marked=marked,
        today=today,
    )
    decision = decide(failure_drawn, policy, marked=marked, today=today)
    assert (decision.reason if isinstance(decision, Terminal) else None) is reason
    assert decision == decide(replace(failure_drawn), policy, marked=marked, today=today)
    assert decision.explanation.isprintable()
    assert isinstance(decision, expected_kind(failure_drawn) if reason is None else Terminal)


def expected_kind(failure_drawn: Failure) -> type[RetryDecision]:
    parks = {
        *("credentials_refused", "version_ended", "customer_not_enabled", "permission_denied", "manager_account"),
        *("unrecognized_field", "query_refused", "out_of_reach", "demoted"),
    }
    return Parked if failure_drawn.error_class in parks else RetryAt


@pytest.mark.invariant("X4")
@given(failure_drawn=failed, policy=policies)
def test_next_attempt_is_after_failure(failure_drawn: Failure, policy: RetryPolicy) -> None:
    """The next attempt is later than the failure, whatever time the failure names: there is no hot loop."""
    decision = decide(failure_drawn, policy, today=failure_drawn.key.logical_date)
    if isinstance(decision, RetryAt):
        assert decision.at > failure_drawn.failed_at
        assert decision.at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("error_class", [None, "unknown_class", "damaged", "contract", "wrong_type"])
@pytest.mark.parametrize("failures", [1, 2, 5])
def test_failure_is_retried_after_delay(error_class: str | None, failures: int) -> None:
    """Failures of a retryable or unknown class are retried after their delay."""
    expected = FAILED_AT + retry_delay(failures, POLICY, key=builders.key())
    decision = decide(failure(failures, error_class))
    why = f"{describe_error(error_class)}; attempt {failures + 1} of 6"
    assert decision == RetryAt(at=expected, explanation=why)


def test_no_retry_at_attempt_limit() -> None:
    """With six attempts allowed, the fifth failure is retried and the sixth is terminal; with one, the first is."""
    assert isinstance(decide(failure(5)), RetryAt)
    assert decide(failure(6)) == Terminal(
        reason=TerminalReason.TOO_MANY_ATTEMPTS, explanation="6 failures in a row, 6 are allowed; find the cause"
    )
    assert isinstance(decide(failure(1), RetryPolicy(max_attempts=1)), Terminal)


def test_retry_is_not_before_named_time() -> None:
    """A retry waits for its delay or for the time the failure named, whichever is later."""
    due = retried_at(failure())
    assert retried_at(failure(wait_until=due + TICK)) == due + TICK
    assert retried_at(failure(wait_until=due - TICK)) == due


@pytest.mark.parametrize("failures", [0, 1, 5, 6, 10**6])
def test_wait_counts_no_failure(failures: int) -> None:
    """An exhausted quota waits until the named time, or for the first delay, whatever the number of failures."""
    named_time = FAILED_AT + timedelta(seconds=40_591)
    assert retried_at(failure(failures, "quota_exhausted", wait_until=named_time)) == named_time
    first = FAILED_AT + retry_delay(1, POLICY, key=builders.key())
    for not_later in (None, FAILED_AT, FAILED_AT - TICK):
        assert retried_at(failure(failures, "quota_exhausted", wait_until=not_later)) == first
    assert retried_at(failure(failures, "quota_exhausted", wait_until=FAILED_AT + TICK)) == FAILED_AT + TICK


def test_wait_ends_by_mark_and_age() -> None:
    """A waiting partition becomes terminal only by the mark or by its age."""
    waiting = failure(6, "quota_exhausted")
    last, over = DAY + 89 * ONE_DAY, DAY + 90 * ONE_DAY
    assert isinstance(decide(waiting, today=last), RetryAt)
    for marked, today, reason in [(True, last, TerminalReason.MARKED), (False, over, TerminalReason.TOO_OLD)]:
        decision = decide(waiting, marked=marked, today=today)
        assert isinstance(decision, Terminal)
        assert decision.reason is reason


@pytest.mark.parametrize(
    ("error_class", "scope", "remedy"),
    [
        ("customer_not_enabled", ErrorPolicy.PARK_CUSTOMER, "fix the account"),
        ("permission_denied", ErrorPolicy.PARK_CUSTOMER, "fix the account"),
        ("unrecognized_field", ErrorPolicy.PARK_QUERY, "fix the query"),
        ("query_refused", ErrorPolicy.PARK_QUERY, "fix the query"),
        ("manager_account", ErrorPolicy.PARK_CUSTOMER, "fix the account"),
        ("credentials_refused", ErrorPolicy.PARK_SOURCE, "fix the credentials"),
        ("version_ended", ErrorPolicy.PARK_SOURCE, "fix the credentials or the API version"),
        ("out_of_reach", ErrorPolicy.HOLD, "unrecoverable"),
        ("demoted", ErrorPolicy.HOLD, "to fetch the day again: ads-pipeline state retry"),
    ],
)
def test_permanent_failure_is_parked(error_class: str, scope: ErrorPolicy, remedy: str) -> None:
    """A closed account and a wrong query are parked, and the explanation says what to fix."""
    for failures in (1, 5):
        decision = decide(failure(failures, error_class))
        assert isinstance(decision, Parked)
        assert decision.scope is scope
        assert decision.explanation.startswith((f"{describe_error(error_class)}; ", UNRECOVERABLE))
        assert remedy in decision.explanation
    assert isinstance(decide(failure(6, error_class)), Terminal)


def test_mark_is_first_reason() -> None:
    """A marked partition is reported as marked, even when it is too old and has failed too often."""
    for error_class in ERROR_CLASSES:
        decision = decide(failure(7, error_class), marked=True, today=DAY + 100 * ONE_DAY)
        assert decision == Terminal(
            reason=TerminalReason.MARKED, explanation="marked as terminal; clear the mark to retry"
        )


def test_every_own_error_class_has_policy() -> None:
    """Every error class in the package's code has an error policy."""
    root = Path(ads_pipeline.__file__).parent
    texts = "".join(path.read_text() for path in root.rglob("*.py"))
    own_classes = set(re.findall(r'(?:error_class=|\.add\()"([a-z_]+)"', texts))
    assert own_classes == {"damaged", "count_mismatch", "unreadable_line", "wrong_type", "contract"}
    assert own_classes <= set(ERROR_POLICIES)
    for error_class, policy in ERROR_POLICIES.items():
        assert failure(error_class=error_class).error_policy is policy


def test_delay_ignores_clock_changes() -> None:
    """A delay of two hours is two hours on a night when clocks change."""
    paris = ZoneInfo("Europe/Paris")
    local = datetime(2026, 10, 25, 1, 30, tzinfo=paris)
    plain = RetryPolicy(delays=(timedelta(hours=2),), jitter=0)
    expected = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert retried_at(failure(failed_at=local), plain) == expected
    later = expected.astimezone(timezone(timedelta(hours=-7))) + TICK
    assert retried_at(failure(failed_at=local, wait_until=later), plain) == expected + TICK


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"failures": 0}, ValueError, "the number of failures is 0, must be at least 1"),
        ({"failures": 0, "error_class": None}, ValueError, "at least 1"),
        ({"failures": -1, "error_class": "quota_exhausted"}, ValueError, "at least 0"),
        ({"failed_at": FAILED_AT.replace(tzinfo=None)}, ValueError, "failed_at needs a time zone"),
        ({"wait_until": FAILED_AT.replace(tzinfo=None)}, ValueError, "wait_until needs a time zone"),
        ({"error_class": "Two words"}, BadName, "error_class"),
        ({"error_class": ""}, BadName, "error_class"),
    ],
)
def test_invalid_failure_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """A failure needs a count, unless it was a wait, times with a zone, and a valid class name."""
    with pytest.raises(error, match=message):
        replace(failure(), **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"delays": ()},
        {"delays": (timedelta(0),)},
        {"delays": (-MINUTE, MINUTE)},
        {"delays": (MINUTE, MINUTE)},
        {"delays": (2 * MINUTE, MINUTE)},
        {"delays": (MINUTE, 366 * ONE_DAY + TICK)},
        {"jitter": -0.01},
        {"jitter": 1},
        {"jitter": float("nan")},
        {"max_attempts": 0},
        {"max_age": timedelta(0)},
    ],
    ids=str,
)
def test_invalid_policy_is_refused(changes: dict[str, Any]) -> None:
    """Delays grow up to a year, jitter is less than 1, and at least one attempt and a positive age are required."""
    (field,) = changes
    with pytest.raises(ValueError, match=rf"^{field}: .* must be"):
        RetryPolicy(**changes)


def test_policy_limits_are_applied() -> None:
    """One delay of a microsecond or a year, no jitter, one attempt and the shortest age are valid and hold."""
    failed = failure(1)
    assert retried_at(failed, RetryPolicy(delays=(TICK,), jitter=0)) == failed.failed_at + TICK
    year = 366 * ONE_DAY
    latest = retried_at(failed, RetryPolicy(delays=(year,), jitter=0.999)) - failed.failed_at
    assert year <= latest < 2 * year
    for strict in (RetryPolicy(max_attempts=1), RetryPolicy(max_age=TICK)):
        assert isinstance(decide(failed, strict, today=failed.key.logical_date + ONE_DAY), Terminal)


@pytest.mark.parametrize(
    ("age", "fresh_days", "lane"),
    [
        (-1, 3, Lane.FRESH),
        (0, 3, Lane.FRESH),
        (3, 3, Lane.FRESH),
        (4, 3, Lane.BACKFILL),
        (1000, 3, Lane.BACKFILL),
        (0, 0, Lane.FRESH),
        (1, 0, Lane.BACKFILL),
    ],
)
def test_lane_depends_on_age(age: int, fresh_days: int, lane: Lane) -> None:
    """Today and the days before it up to the limit, by default three, are fresh; older days are backfill."""
    key = builders.key(day=TODAY - age * ONE_DAY)
    assert lane_for(key, TODAY, fresh_days) is lane
    if fresh_days == 3:
        assert lane_for(key, TODAY) is lane


FRESH, BACKFILL = (
    [builders.key(str(number), day=day) for number in range(60)] for day in (TODAY, TODAY - 300 * ONE_DAY)
)
DUE = {Lane.FRESH: FRESH, Lane.BACKFILL: BACKFILL}
shares = st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5]) | st.floats(0, 0.5)


def reserved_slots(whole: int, reserved_share: float) -> float:
    """The slots reserved for a lane: at least one of two, and at most half of an odd number rounded down."""
    return min(max(whole * reserved_share, 1), whole // 2)


def count_allocated(
    fresh: int, backfill: int, slots: int, reserved_share: float = 0.25, **more: Any
) -> tuple[int, int]:
    """The number of allocated partitions per lane, after checking their order."""
    started = allocate_slots(
        {Lane.FRESH: FRESH[:fresh], Lane.BACKFILL: BACKFILL[:backfill]}, slots, reserved_share, **more
    )
    fresh_count = sum(lane_for(key, TODAY) is Lane.FRESH for key in started)
    assert started == FRESH[:fresh_count] + BACKFILL[: len(started) - fresh_count]
    return fresh_count, len(started) - fresh_count


@pytest.mark.parametrize(
    ("fresh", "backfill", "slots", "expected"),
    [
        (60, 60, 0, (0, 0)),
        (60, 60, -3, (0, 0)),
        (60, 60, 1, (1, 0)),
        (60, 60, 2, (1, 1)),
        (60, 60, 3, (2, 1)),
        (60, 60, 4, (3, 1)),
        (60, 60, 5, (3, 2)),
        (60, 60, 8, (6, 2)),
        (60, 60, 9, (6, 3)),
        (60, 1, 8, (7, 1)),
        (60, 0, 8, (8, 0)),
        (0, 60, 8, (0, 8)),
        (0, 60, 1, (0, 1)),
        (3, 60, 8, (3, 5)),
        (3, 3, 8, (3, 3)),
        (0, 0, 8, (0, 0)),
    ],
)
def test_quarter_is_reserved_for_backfill(fresh: int, backfill: int, slots: int, expected: tuple[int, int]) -> None:
    """Fresh partitions come first except for a quarter, rounded up; unused slots of a lane go to the other."""
    assert count_allocated(fresh, backfill, slots) == expected


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), shares)
def test_every_slot_is_used_and_shares_are_kept(fresh: int, backfill: int, slots: int, reserved_share: float) -> None:
    """Every slot is used while anything is due, and both lanes get their reserved share."""
    fresh_count, backfill_count = count_allocated(fresh, backfill, slots, reserved_share)
    assert fresh_count + backfill_count == min(slots, fresh + backfill)
    assert fresh_count >= min(fresh, reserved_slots(slots, reserved_share))
    assert backfill_count >= min(backfill, reserved_slots(slots, reserved_share))
    if fresh_count < fresh:
        assert backfill_count < max(slots * reserved_share, reserved_slots(slots, reserved_share)) + 1


@pytest.mark.parametrize("lane", Lane)
@given(data=st.data(), slots=st.integers(2, 12), reserved_share=shares)
def test_no_lane_starves(lane: Lane, data: st.DataObject, slots: int, reserved_share: float) -> None:
    """A waiting partition starts after as many rounds as partitions wait before it, whatever the other lane does."""
    other = Lane.BACKFILL if lane is Lane.FRESH else Lane.FRESH
    waiting = DUE[lane][: data.draw(st.integers(1, 10))]
    for _round in range(len(waiting)):
        crowd = DUE[other][: data.draw(st.integers(0, 60))]
        started = set(allocate_slots({lane: waiting, other: crowd}, slots, reserved_share))
        waiting = [key for key in waiting if key not in started]
    assert waiting == []


def fill_freed_slots(
    whole: int, reserved_share: float, choices: Iterator[int], *, pass_running: bool
) -> Iterator[dict[Lane, int]]:
    """Both lanes crowded, one run ending after the other; the running partitions after each freed slot is filled."""
    running = dict.fromkeys(Lane, 0)
    running[Lane.FRESH] = whole
    for choice in choices:
        ended = [*Lane][choice] if running[[*Lane][choice]] else [*Lane][1 - choice]
        running[ended] -= 1
        (started_key,) = allocate_slots(DUE, 1, reserved_share, running=running if pass_running else None)
        running[lane_for(started_key, TODAY)] += 1
        yield dict(running)


@given(whole=st.integers(2, 12), reserved_share=shares, choices=st.lists(st.integers(0, 1), min_size=20, max_size=60))
def test_slots_freed_one_by_one_are_shared(whole: int, reserved_share: float, choices: list[int]) -> None:
    """With `running` given, each lane keeps its share although one slot is free at a time."""
    for before, after in pairwise(fill_freed_slots(whole, reserved_share, iter(choices), pass_running=True)):
        assert sum(after.values()) == whole
        assert all(after[lane] >= min(before[lane], reserved_slots(whole, reserved_share)) for lane in Lane)
        assert after[Lane.BACKFILL] >= 1


def test_single_slot_without_running_is_fresh() -> None:
    """Without `running`, single slots always go to the fresh lane."""
    for ran in fill_freed_slots(8, 0.25, iter([0] * 50), pass_running=False):
        assert ran == {Lane.FRESH: 8, Lane.BACKFILL: 0}
    *_, ran = fill_freed_slots(8, 0.25, iter([0] * 50), pass_running=True)
    assert ran == {Lane.FRESH: 6, Lane.BACKFILL: 2}


def test_lane_above_its_share_yields() -> None:
    """A lane above its share gets no slot before the other lane has its share; a missing count is zero."""
    assert count_allocated(60, 60, 2, running={Lane.BACKFILL: 6}) == (2, 0)
    assert count_allocated(60, 60, 2, running={Lane.FRESH: 6}) == (0, 2)
    assert count_allocated(60, 60, 4, running={Lane.FRESH: 3, Lane.BACKFILL: 1}) == (3, 1)
    assert count_allocated(60, 60, 1, running={}) == (1, 0)


def test_missing_lane_is_empty() -> None:
    """Lanes without due partitions may be left out."""
    assert allocate_slots({}, 5) == []
    assert allocate_slots({Lane.BACKFILL: BACKFILL[:2]}, 5) == BACKFILL[:2]


@pytest.mark.parametrize("reserved_share", [-0.01, 0.51, 1, float("nan")])
def test_invalid_reserved_share_is_refused(reserved_share: float) -> None:
    """The reserved share is between 0 and a half."""
    with pytest.raises(ValueError, match=r"^reserved_share: .* must be"):
        allocate_slots(DUE, 4, reserved_share)
