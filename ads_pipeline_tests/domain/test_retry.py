"""Answers about failures, held against their rules said a second way; turns in two lanes, until all had one."""

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
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import (
    TREATMENTS,
    ErrorPolicy,
    Failure,
    Lane,
    Parked,
    RetryAt,
    RetryDecision,
    RetryPolicy,
    Terminal,
    TerminalReason,
    decide,
    delay,
    lane_of,
    shares,
    terminal,
)
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import BadName
from ads_pipeline_tests import builders

DAY = builders.DAY
TODAY = date(2026, 2, 5)
FAILED_AT = datetime(2026, 2, 4, 6, tzinfo=UTC)
TICK = timedelta(microseconds=1)
MINUTE = timedelta(minutes=1)
ONE_DAY = timedelta(days=1)
POLICY = RetryPolicy()
KEYS = [builders.key(str(number)) for number in range(1000)]
CLASSES = [None, "never_heard_of", *TREATMENTS]


def failure(failures: int = 1, error_class: str | None = "damaged", **changes: Any) -> Failure:
    asked: dict[str, Any] = {"key": builders.key(), "failed_at": FAILED_AT}
    return Failure(failures=failures, error_class=error_class, **(asked | changes))


def ask(failed: Failure, policy: RetryPolicy = POLICY, *, marked: bool = False, today: date = TODAY) -> RetryDecision:
    return decide(failed, policy, marked=marked, today=today)


def retried_at(failed: Failure, policy: RetryPolicy = POLICY) -> datetime:
    answer = ask(failed, policy)
    assert isinstance(answer, RetryAt)
    return answer.at


def is_terminal(status: Status, failures: int, age: int, *, marked: bool = False) -> TerminalReason | None:
    day = TODAY - age * ONE_DAY
    return terminal(status, failures=failures, day=day, policy=POLICY, marked=marked, today=TODAY)


keys = st.builds(builders.key, st.integers(0, 10**6).map(str), day=st.dates(date(2020, 1, 1), date(2030, 1, 1)))
moments = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - st gives the zone
policies = st.builds(
    lambda steps, jitter, attempts, age: RetryPolicy(
        delays=tuple(step * TICK for step in sorted(steps)), jitter=jitter, max_attempts=attempts, max_age=age
    ),
    # Steps that nearly touch beside steps far apart: there the jitter of one could reach beyond the next.
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
    failed_at=moments,
    error_class=st.sampled_from(CLASSES),
    wait_until=st.none() | moments,
)
days = st.dates(date(2019, 1, 1), date(2032, 1, 1))


@pytest.mark.invariant("S18", "X4")
@given(policy=policies, key=keys, failures=counts)
@example(policy=RetryPolicy(jitter=0.99), key=builders.key(), failures=10**6)
def test_a_delay_keeps_within_its_step_and_jitter(policy: RetryPolicy, key: PartitionKey, failures: int) -> None:
    """No delay is shorter than its step, nor longer than the step with all its jitter, however often it failed."""
    step = policy.delays[min(failures, len(policy.delays)) - 1]
    waited = delay(failures, policy, key=key)
    assert step <= waited <= step + step * policy.jitter
    assert waited <= policy.delays[-1] * (1 + policy.jitter) + TICK  # a float's last digit


@pytest.mark.invariant("S18")
@given(policy=policies, key=keys, more=st.integers(1, 10**6))
def test_a_delay_never_shrinks(policy: RetryPolicy, key: PartitionKey, more: int) -> None:
    """After one failure more the same partition waits as long or longer, also at and beyond the last step."""
    waits = [delay(failures, policy, key=key) for failures in range(1, len(policy.delays) + 4)]
    assert all(earlier <= later for earlier, later in pairwise(waits))
    assert delay(len(waits) + more, policy, key=key) == waits[-1]


@pytest.mark.invariant("S18")
def test_the_delays_of_the_policy_that_ships() -> None:
    """Five minutes, half an hour, then two hours again and again: without jitter to the microsecond."""
    plain = RetryPolicy(jitter=0)
    minutes = [delay(failures, plain, key=builders.key()) / MINUTE for failures in (1, 2, 3, 4, 5, 10**6)]
    assert minutes == [5, 30, 120, 120, 120, 120]
    assert (POLICY.jitter, POLICY.max_attempts, POLICY.max_age) == (0.2, 6, 90 * ONE_DAY)


@pytest.mark.invariant("S18", "X4")
@pytest.mark.parametrize("failures", [1, 2, 3, 6])
def test_what_failed_together_comes_back_apart(failures: int) -> None:
    """A thousand partitions fill the jitter evenly, and no minute or tenth of it has much more than its part."""
    step = POLICY.delays[min(failures, 3) - 1]
    added = [delay(failures, POLICY, key=key) - step for key in KEYS]
    tenths = Counter(each // (step * POLICY.jitter / 10) for each in added)
    assert sorted(tenths) == list(range(10))
    assert max(tenths.values()) < 150
    minutes = Counter(each // MINUTE for each in added)
    assert max(minutes.values()) < 1.5 * max(1000 / (step * POLICY.jitter / MINUTE), 100)
    assert (len(minutes) > 1) is (failures > 1)  # the whole jitter of five minutes is one minute


@pytest.mark.invariant("S18")
def test_neighbours_do_not_stay_neighbours() -> None:
    """Which partitions wait longest differs from step to step, and a key's every part has a say."""
    first, second = (sorted(KEYS, key=lambda key: delay(n, POLICY, key=key)) for n in (1, 2))
    assert first != second
    others = [
        builders.key(),
        builders.key("1234567891"),
        builders.key(query_name="ad_daily"),
        builders.key(day=DAY + ONE_DAY),
        replace(builders.key(), source="bing_ads"),
    ]
    assert len({delay(1, POLICY, key=key) for key in others}) == len(others)


def test_a_delay_is_the_same_on_every_machine() -> None:
    """The jitter is the key's own: another process, release or hash seed gives it to the microsecond."""
    waits = [delay(failures, POLICY, key=builders.key()) / timedelta(seconds=1) for failures in (1, 2, 3)]
    assert waits == [342.074912, 2150.429863, 8380.17187]


@pytest.mark.parametrize("failures", [0, -1])
def test_a_delay_follows_a_failure(failures: int) -> None:
    """Where nothing failed there is nothing to wait for, and asking is an error."""
    with pytest.raises(ValueError, match="follows a failure"):
        delay(failures, POLICY, key=builders.key())


@pytest.mark.invariant("S17")
@pytest.mark.parametrize("status", Status)
def test_terminal_follows_the_table(status: Status) -> None:
    """Every status, with and without marker, at each limit and beside it: the first reason that holds, or none."""
    for marked, (failures, many), (age, old) in product(
        (False, True),
        ((0, False), (5, False), (6, True), (7, True), (10**6, True)),
        ((-1, False), (0, False), (89, False), (90, True), (91, True)),
    ):
        holding = [reason for reason, holds in zip(TerminalReason, (marked, many, old), strict=True) if holds]
        expected = holding[0] if holding and status is Status.FAILED else None
        assert is_terminal(status, failures, age, marked=marked) is expected


@pytest.mark.invariant("S17")
def test_an_age_that_is_no_whole_day_is_reached_the_day_after() -> None:
    """Partitions age by whole days, so a limit of a day and a half is reached on the second."""
    policy = RetryPolicy(max_age=timedelta(hours=36))
    reasons = [
        terminal(Status.FAILED, failures=1, day=DAY, policy=policy, marked=False, today=DAY + age * ONE_DAY)
        for age in (1, 2)
    ]
    assert reasons == [None, TerminalReason.TOO_OLD]
    answer = ask(failure(), policy, today=DAY + 2 * ONE_DAY)
    assert answer == Terminal(reason=TerminalReason.TOO_OLD, why="2 days old, and from 2 days on nothing is retried")


@pytest.mark.invariant("S17")
@given(told=failed, policy=policies, marked=st.booleans(), today=days)
def test_an_answer_is_terminal_exactly_when_the_partition_is(
    told: Failure, policy: RetryPolicy, marked: bool, today: date
) -> None:
    """The answer about a failure and the reading of a failed row never differ; a wait alone is not counted."""
    reason = terminal(
        Status.FAILED,
        failures=0 if told.error_class == "quota_exhausted" else told.failures,
        day=told.key.logical_date,
        policy=policy,
        marked=marked,
        today=today,
    )
    answer = ask(told, policy, marked=marked, today=today)
    assert (answer.reason if isinstance(answer, Terminal) else None) is reason
    assert answer == ask(replace(told), policy, marked=marked, today=today)
    assert answer.why.isprintable()
    assert isinstance(answer, expected_kind(told) if reason is None else Terminal)


def expected_kind(told: Failure) -> type[RetryDecision]:
    parks = ("customer_not_enabled", "permission_denied", "unrecognized_field", "query_refused", "demoted")
    return Parked if told.error_class in parks else RetryAt


@pytest.mark.invariant("X4")
@given(told=failed, policy=policies)
def test_another_attempt_always_lies_ahead(told: Failure, policy: RetryPolicy) -> None:
    """Whatever moment a failure names, the next attempt comes after it failed: nothing is asked for in a hot loop."""
    answer = ask(told, policy, today=told.key.logical_date)
    if isinstance(answer, RetryAt):
        assert answer.at > told.failed_at
        assert answer.at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("error_class", [None, "never_heard_of", "damaged", "contract", "wrong_type"])
@pytest.mark.parametrize("failures", [1, 2, 5])
def test_a_failure_is_retried_after_its_delay(error_class: str | None, failures: int) -> None:
    """A class that is unknown, or that another attempt may cure, comes again when its delay is over."""
    expected = FAILED_AT + delay(failures, POLICY, key=builders.key())
    answer = ask(failure(failures, error_class))
    why = f"{error_class or 'unknown error'}: failure {failures} of 6"
    assert answer == RetryAt(at=expected, why=why)


def test_the_last_attempt_is_the_one_before_the_limit() -> None:
    """With six attempts allowed the fifth failure earns another, the sixth none; with one allowed none does."""
    assert isinstance(ask(failure(5)), RetryAt)
    assert ask(failure(6)) == Terminal(
        reason=TerminalReason.TOO_MANY_ATTEMPTS, why="6 failures in a row, 6 are allowed; find the cause"
    )
    assert isinstance(ask(failure(1), RetryPolicy(max_attempts=1)), Terminal)


def test_a_moment_that_was_named_is_never_forestalled() -> None:
    """A failure that is retried waits for its delay or for the moment it named, whichever is later."""
    due = retried_at(failure())
    assert retried_at(failure(wait_until=due + TICK)) == due + TICK
    assert retried_at(failure(wait_until=due - TICK)) == due


@pytest.mark.parametrize("failures", [0, 1, 5, 6, 10**6])
def test_a_wait_costs_no_attempt(failures: int) -> None:
    """A used-up quota waits until it is told to, or for the first delay, whatever the count of failures."""
    named = FAILED_AT + timedelta(seconds=40_591)
    assert retried_at(failure(failures, "quota_exhausted", wait_until=named)) == named
    first = FAILED_AT + delay(1, POLICY, key=builders.key())
    for nothing_new in (None, FAILED_AT, FAILED_AT - TICK):
        assert retried_at(failure(failures, "quota_exhausted", wait_until=nothing_new)) == first
    assert retried_at(failure(failures, "quota_exhausted", wait_until=FAILED_AT + TICK)) == FAILED_AT + TICK


def test_a_wait_ends_by_marker_and_by_age() -> None:
    """What waits for quota is given up only when somebody says so or the day is too old."""
    waiting = failure(6, "quota_exhausted")
    last, over = DAY + 89 * ONE_DAY, DAY + 90 * ONE_DAY
    assert isinstance(ask(waiting, today=last), RetryAt)
    for marked, today, reason in [(True, last, TerminalReason.MARKED), (False, over, TerminalReason.TOO_OLD)]:
        answer = ask(waiting, marked=marked, today=today)
        assert isinstance(answer, Terminal)
        assert answer.reason is reason


@pytest.mark.parametrize(
    ("error_class", "scope", "mend"),
    [
        ("customer_not_enabled", ErrorPolicy.PARK_CUSTOMER, "mend the account"),
        ("permission_denied", ErrorPolicy.PARK_CUSTOMER, "mend the account"),
        ("unrecognized_field", ErrorPolicy.PARK_QUERY, "mend the query"),
        ("query_refused", ErrorPolicy.PARK_QUERY, "mend the query"),
        ("demoted", ErrorPolicy.HOLD, "see that it would end otherwise"),
    ],
)
def test_what_no_attempt_cures_is_parked(error_class: str, scope: ErrorPolicy, mend: str) -> None:
    """A closed account and a wrong query cost no further attempts, and the answer says what to mend."""
    for failures in (1, 5):
        answer = ask(failure(failures, error_class))
        assert isinstance(answer, Parked)
        assert answer.scope is scope
        assert answer.why.startswith(f"{error_class}: ")
        assert mend in answer.why
    assert isinstance(ask(failure(6, error_class)), Terminal)


def test_the_marker_decides_first() -> None:
    """A marked partition is said to be marked, also when it is too old and has failed too often."""
    for error_class in CLASSES:
        answer = ask(failure(7, error_class), marked=True, today=DAY + 100 * ONE_DAY)
        assert answer == Terminal(
            reason=TerminalReason.MARKED, why="marked as terminal; clear the marker to try again"
        )


def test_every_class_of_our_own_is_listed() -> None:
    """No class that this package gives a failure is left to the rule for the unknown, and each is a good name."""
    root = Path(ads_pipeline.__file__).parent
    texts = "".join(path.read_text() for path in root.rglob("*.py"))
    ours = set(re.findall(r'(?:error_class=|faults\.add\()"([a-z_]+)"', texts))
    assert ours == {"damaged", "count_mismatch", "unreadable_line", "wrong_type", "contract"}
    assert ours <= set(TREATMENTS)
    for error_class, treatment in TREATMENTS.items():
        assert failure(error_class=error_class).treatment is treatment


def test_a_delay_is_added_to_the_instant() -> None:
    """Where clocks are put back in the night, two hours are two hours."""
    paris = ZoneInfo("Europe/Paris")
    local = datetime(2026, 10, 25, 1, 30, tzinfo=paris)
    plain = RetryPolicy(delays=(timedelta(hours=2),), jitter=0)
    expected = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert retried_at(failure(failed_at=local), plain) == expected
    later = expected.astimezone(timezone(timedelta(hours=-7))) + TICK
    assert retried_at(failure(failed_at=local, wait_until=later), plain) == expected + TICK


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"failures": 0}, ValueError, "0 failures are refused: at least 1"),
        ({"failures": 0, "error_class": None}, ValueError, "at least 1"),
        ({"failures": -1, "error_class": "quota_exhausted"}, ValueError, "at least 0"),
        ({"failed_at": FAILED_AT.replace(tzinfo=None)}, ValueError, "failed_at is an instant"),
        ({"wait_until": FAILED_AT.replace(tzinfo=None)}, ValueError, "wait_until is an instant"),
        ({"error_class": "Two words"}, BadName, "error_class"),
        ({"error_class": ""}, BadName, "error_class"),
    ],
)
def test_a_failure_that_makes_no_sense_is_refused(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    """A failure counts itself, unless it was a wait, and says its times with a zone and its class by a name."""
    with pytest.raises(error, match=said):
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
def test_a_policy_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    """A policy has growing delays of at most a year, less than all of one as jitter, an attempt and an age."""
    (field,) = changes
    with pytest.raises(ValueError, match=rf"^{field}: .* is refused"):
        RetryPolicy(**changes)


def test_a_policy_may_go_to_its_limits() -> None:
    """One delay, of a tick or a year, no jitter, one attempt and the shortest age are a policy."""
    RetryPolicy(delays=(TICK,), jitter=0, max_attempts=1, max_age=TICK)
    RetryPolicy(delays=(366 * ONE_DAY,), jitter=0.999)


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
def test_a_lane_is_a_matter_of_age(age: int, fresh_days: int, lane: Lane) -> None:
    """Today and the few days before it are fresh, three unless it is said otherwise; all others are backfill."""
    key = builders.key(day=TODAY - age * ONE_DAY)
    assert lane_of(key, TODAY, fresh_days) is lane
    if fresh_days == 3:
        assert lane_of(key, TODAY) is lane


FRESH, BACKFILL = (
    [builders.key(str(number), day=day) for number in range(60)] for day in (TODAY, TODAY - 300 * ONE_DAY)
)
DUE = {Lane.FRESH: FRESH, Lane.BACKFILL: BACKFILL}
floors = st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5]) | st.floats(0, 0.5)


def part(whole: int, floor: float) -> float:
    """The least that each lane can count on: one of two, and of an odd number not both halves rounded up."""
    return min(max(whole * floor, 1), whole // 2)


def picked(fresh: int, backfill: int, room: int, floor: float = 0.25, **more: Any) -> tuple[int, int]:
    """How many of each lane, once it is seen that they stand in order and in front."""
    turns = shares({Lane.FRESH: FRESH[:fresh], Lane.BACKFILL: BACKFILL[:backfill]}, room, floor, **more)
    ours = sum(lane_of(key, TODAY) is Lane.FRESH for key in turns)
    assert turns == FRESH[:ours] + BACKFILL[: len(turns) - ours]
    return ours, len(turns) - ours


@pytest.mark.parametrize(
    ("fresh", "backfill", "room", "expected"),
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
def test_the_shares_of_a_quarter(fresh: int, backfill: int, room: int, expected: tuple[int, int]) -> None:
    """Fresh first but for a quarter, rounded up, at least one; what a lane leaves is the other's."""
    assert picked(fresh, backfill, room) == expected


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 60), floors)
def test_no_place_is_wasted_and_no_lane_is_squeezed(fresh: int, backfill: int, room: int, floor: float) -> None:
    """Every place is used while anything is due, and both lanes get what they can count on, fresh all the rest."""
    ours, theirs = picked(fresh, backfill, room, floor)
    assert ours + theirs == min(room, fresh + backfill)
    assert ours >= min(fresh, part(room, floor))
    assert theirs >= min(backfill, part(room, floor))
    if ours < fresh:
        assert theirs < max(room * floor, part(room, floor)) + 1


@pytest.mark.parametrize("lane", Lane)
@given(data=st.data(), room=st.integers(2, 12), floor=floors)
def test_neither_lane_starves(lane: Lane, data: st.DataObject, room: int, floor: float) -> None:
    """Whatever comes due in the other lane, one that waits is reached after as many rounds as stand before it."""
    other = Lane.BACKFILL if lane is Lane.FRESH else Lane.FRESH
    waiting = DUE[lane][: data.draw(st.integers(1, 10))]
    for _round in range(len(waiting)):
        crowd = DUE[other][: data.draw(st.integers(0, 60))]
        turns = set(shares({lane: waiting, other: crowd}, room, floor))
        waiting = [key for key in waiting if key not in turns]
    assert waiting == []


def places_falling_free(whole: int, floor: float, choices: Iterator[int], *, told: bool) -> Iterator[dict[Lane, int]]:
    """Both lanes crowded, and one run after the other ends; what runs after each place is given again."""
    running = dict.fromkeys(Lane, 0)
    running[Lane.FRESH] = whole
    for choice in choices:
        ended = [*Lane][choice] if running[[*Lane][choice]] else [*Lane][1 - choice]
        running[ended] -= 1
        (turn,) = shares(DUE, 1, floor, running=running if told else None)
        running[lane_of(turn, TODAY)] += 1
        yield dict(running)


@given(whole=st.integers(2, 12), floor=floors, choices=st.lists(st.integers(0, 1), min_size=20, max_size=60))
def test_places_that_fall_free_one_by_one_are_shared(whole: int, floor: float, choices: list[int]) -> None:
    """Told what is running, each lane keeps its part once it has it, though one place is free at a time."""
    for before, after in pairwise(places_falling_free(whole, floor, iter(choices), told=True)):
        assert sum(after.values()) == whole
        assert all(after[lane] >= min(before[lane], part(whole, floor)) for lane in Lane)
        assert after[Lane.BACKFILL] >= 1


def test_a_single_place_of_which_nothing_is_told_is_always_fresh() -> None:
    """Why one says what is running: place by place the backfill would never have a turn."""
    for ran in places_falling_free(8, 0.25, iter([0] * 50), told=False):
        assert ran == {Lane.FRESH: 8, Lane.BACKFILL: 0}
    *_, ran = places_falling_free(8, 0.25, iter([0] * 50), told=True)
    assert ran == {Lane.FRESH: 6, Lane.BACKFILL: 2}


def test_what_a_lane_has_borrowed_is_not_given_on() -> None:
    """A lane that runs more than its part gets nothing before the other has its own; a missing count is none."""
    assert picked(60, 60, 2, running={Lane.BACKFILL: 6}) == (2, 0)
    assert picked(60, 60, 2, running={Lane.FRESH: 6}) == (0, 2)
    assert picked(60, 60, 4, running={Lane.FRESH: 3, Lane.BACKFILL: 1}) == (3, 1)
    assert picked(60, 60, 1, running={}) == (1, 0)


def test_a_lane_may_be_empty_by_not_being_there() -> None:
    """Lanes in which nothing is due need not be named."""
    assert shares({}, 5) == []
    assert shares({Lane.BACKFILL: BACKFILL[:2]}, 5) == BACKFILL[:2]


@pytest.mark.parametrize("floor", [-0.01, 0.51, 1, float("nan")])
def test_a_floor_that_two_lanes_cannot_have_is_refused(floor: float) -> None:
    """A floor is a part that both lanes can have at once."""
    with pytest.raises(ValueError, match=r"^floor: .* is refused"):
        shares(DUE, 4, floor)
