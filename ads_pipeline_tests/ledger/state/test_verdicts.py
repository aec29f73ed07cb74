"""What verdicts make of partitions, as the ledger keeps it."""

import itertools
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from ads_pipeline.domain.transitions import Effect, Outcome, Status, Verdict
from ads_pipeline.errors import (
    RunChanged,
    UnknownRun,
    UnsoundAcceptance,
    VerdictConflict,
    VerdictsRefused,
)
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    FakeClock,
    acceptance,
    accepted_runs,
    damaged_runs,
    key,
    keys,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)

K = key()


@pytest.mark.invariant("S1")
def test_a_partition_without_a_row_reads_as_pending(ledger: Ledger) -> None:
    """Absent and pending are the same to every reader, and reading makes no row."""
    state = ledger.state(K)
    assert (state.status, state.attempt_count, state.current_run_id) == (Status.PENDING, 0, None)
    assert ledger.states([K])[K] == state
    ledger.insert_pending([K])
    explicit = ledger.state(K)
    assert (explicit.status, explicit.attempt_count, explicit.current_run_id) == (Status.PENDING, 0, None)


def test_an_acceptance_takes_the_authority(ledger: Ledger) -> None:
    """The state names the accepted run and what its seal says."""
    (first,) = registered_runs(ledger, K, "r1")
    recorded = ledger.record_verdict(acceptance(first))
    assert (recorded.effect, recorded.attempt_no, recorded.redelivered) == (Effect.PROMOTED, 1, False)
    state = ledger.state(K)
    assert state == recorded.state
    assert (state.status, state.current_run_id, state.schema_version, state.record_count) == (
        Status.SUCCESS,
        "r1",
        "1",
        ROWS,
    )
    assert state.error_message is None


def test_a_rejection_leaves_no_authority_where_there_was_none(ledger: Ledger) -> None:
    """A failed partition that never succeeded names no run; the attempt tells which run was examined."""
    (first,) = registered_runs(ledger, K, "r1")
    ledger.record_verdict(rejection(first, "negative clicks"))
    state = ledger.state(K)
    assert (state.status, state.current_run_id, state.error_message) == (Status.FAILED, None, "negative clicks")
    (attempt,) = ledger.attempts(K)
    assert (attempt.run, attempt.outcome, attempt.error_class) == (first, Outcome.REJECTED, "row_contract")
    assert (attempt.rows_read, attempt.rows_failed) == (ROWS, 1)


@pytest.mark.invariant("S9")
def test_a_failed_reprocessing_leaves_the_success_intact(ledger: Ledger) -> None:
    """Rejecting a run that is not the current one counts, and changes nothing readers see."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    before = ledger.record_verdict(acceptance(first)).state
    recorded = ledger.record_verdict(rejection(second))
    after = ledger.state(K)
    assert recorded.effect is Effect.SET_ASIDE
    assert (after.status, after.current_run_id, after.schema_version, after.record_count, after.error_message) == (
        before.status,
        before.current_run_id,
        before.schema_version,
        before.record_count,
        None,
    )
    assert after.attempt_count == 2


def test_rejecting_the_current_run_demotes(ledger: Ledger) -> None:
    """A re-validation that fails takes the partition out of reading and says why."""
    (first,) = registered_runs(ledger, K, "r1")
    ledger.record_verdict(acceptance(first))
    recorded = ledger.record_verdict(rejection(first, "rules changed", validation_id="v2"))
    state = ledger.state(K)
    assert recorded.effect is Effect.DEMOTED
    assert (state.status, state.current_run_id, state.error_message) == (Status.FAILED, "r1", "rules changed")


@pytest.mark.invariant("S10")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_an_older_run_never_takes_authority_from_a_newer_one(ledger: Ledger, order: tuple[int, ...]) -> None:
    """Whatever order the acceptances arrive in, the newest registered run is the current one."""
    runs = registered_runs(ledger, K, "zz", "mm", "aa")  # names sort the other way round: the ordinal decides
    for place in order:
        ledger.record_verdict(acceptance(runs[place]))
    state = ledger.state(K)
    assert (state.current_run_id, state.attempt_count) == ("aa", 3)


def test_an_older_accepted_run_serves_when_the_newer_one_was_only_rejected(ledger: Ledger) -> None:
    """A rejected newer run does not stand in the way of an older good one."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    ledger.record_verdict(rejection(second))
    ledger.record_verdict(acceptance(first))
    state = ledger.state(K)
    assert (state.status, state.current_run_id, state.error_message) == (Status.SUCCESS, "r1", None)


@pytest.mark.invariant("S11")
def test_a_rejected_run_becomes_current_only_by_a_new_validation(ledger: Ledger) -> None:
    """The same run cannot be judged differently under the same validation; under a new one it can."""
    (first,) = registered_runs(ledger, K, "r1")
    ledger.record_verdict(rejection(first))
    with pytest.raises(VerdictConflict, match="already rejected, now said to be accepted"):
        ledger.record_verdict(acceptance(first))
    assert ledger.state(K).status is Status.FAILED
    ledger.record_verdict(acceptance(first, "v2"))
    assert ledger.state(K).current_run_id == "r1"


@pytest.mark.invariant("S8")
def test_a_verdict_heard_again_counts_once(ledger: Ledger) -> None:
    """Redelivery returns what was recorded and writes nothing, in one call or later, also after the state moved."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    once, again = ledger.record_verdicts([rejection(first), rejection(first)])
    assert (once.redelivered, again.redelivered, again.attempt_no) == (False, True, 1)
    ledger.record_verdict(acceptance(second))
    before = ledger.state(K)
    later = ledger.record_verdict(rejection(first))
    assert (later.redelivered, later.attempt_no, later.effect) == (True, 1, Effect.FAILED)
    assert ledger.state(K) == before
    assert len(ledger.attempts(K)) == before.attempt_count == 2


@pytest.mark.invariant("S6")
def test_attempts_are_numbered_without_a_gap(ledger: Ledger) -> None:
    """attempt_count is the number of the last attempt, and the number of attempts."""
    runs = registered_runs(ledger, K, *(f"r{n}" for n in range(6)))
    for n, each in enumerate(runs):
        ledger.record_verdict(acceptance(each) if n % 2 else rejection(each))
    assert [attempt.attempt_no for attempt in ledger.attempts(K)] == [1, 2, 3, 4, 5, 6]
    assert ledger.state(K).attempt_count == 6


def test_several_verdicts_on_one_partition_in_one_call_build_on_each_other(ledger: Ledger) -> None:
    """A later verdict of a call sees what an earlier one made of the partition."""
    first, second, third = registered_runs(ledger, K, "r1", "r2", "r3")
    effects = [
        recorded.effect
        for recorded in ledger.record_verdicts(
            [acceptance(second), acceptance(first), rejection(third), rejection(second, validation_id="v2")]
        )
    ]
    assert effects == [Effect.PROMOTED, Effect.SUPERSEDED, Effect.SET_ASIDE, Effect.DEMOTED]
    state = ledger.state(K)
    assert (state.status, state.current_run_id, state.attempt_count) == (Status.FAILED, "r2", 4)


@pytest.mark.invariant("S5")
@pytest.mark.parametrize("seed", range(4))
def test_a_call_of_many_is_the_verdicts_one_by_one(timed_ledger: Ledger, seed: int) -> None:
    """Any mix of verdicts in one call leaves each partition as the same verdicts in calls of their own would."""
    chance = random.Random(seed)
    together, apart = keys(40)[:20], keys(40)[20:]
    runs = {each: registered_runs(timed_ledger, each, "r1", "r2", "r3") for each in together + apart}
    plan = [(n, run_no, chance.random() < 0.6) for n in range(20) for run_no in range(3)]
    chance.shuffle(plan)
    verdicts = [
        [(acceptance if good else rejection)(runs[side[n]][run_no]) for n, run_no, good in plan]
        for side in (together, apart)
    ]
    timed_ledger.record_verdicts(verdicts[0])
    for verdict in verdicts[1]:
        timed_ledger.record_verdict(verdict)
    for one, other in zip(together, apart, strict=True):
        assert replace(timed_ledger.state(one), key=other) == timed_ledger.state(other)


@pytest.mark.parametrize("together", [True, False])
def test_the_newest_rejection_speaks(ledger: Ledger, together: bool) -> None:
    """The message is the newest rejected run's, whichever verdict arrives last."""
    first, second, third = registered_runs(ledger, K, "r1", "r2", "r3")
    verdicts = [rejection(second, "two"), rejection(third, "three"), rejection(first, "one")]
    for call in [verdicts] if together else [[verdict] for verdict in verdicts]:
        ledger.record_verdicts(call)
    assert ledger.state(K).error_message == "three"


def test_thousands_of_partitions_are_judged_in_one_call(ledger: Ledger) -> None:
    """One call of 2,000 verdicts gives each partition its own outcome, in the order given."""
    partitions = keys(2000)
    runs = [run(partition, "r1") for partition in partitions]
    ledger.register(sealed_runs(*runs))
    recorded = ledger.record_verdicts(
        [rejection(each) if n % 10 == 0 else acceptance(each) for n, each in enumerate(runs)]
    )
    assert [each.verdict.run for each in recorded] == runs
    states = ledger.states(partitions)
    assert list(states) == partitions
    failed = {partition for partition, state in states.items() if state.status is Status.FAILED}
    assert failed == set(partitions[::10])


def test_one_refused_verdict_does_not_hold_up_the_others(ledger: Ledger) -> None:
    """The good verdicts of a call are recorded; the error names the refused ones and carries both."""
    good, conflicting, unknown = (run(partition, "r1") for partition in keys(3))
    ledger.register(sealed_runs(good, conflicting))
    ledger.record_verdict(rejection(conflicting))
    with pytest.raises(VerdictsRefused) as caught:
        ledger.record_verdicts([acceptance(conflicting), acceptance(good), acceptance(unknown)])
    assert [type(refusal) for refusal in caught.value.refusals] == [VerdictConflict, UnknownRun]
    assert len(caught.value.recorded) == 1
    assert str(conflicting) in str(caught.value)
    assert ledger.state(good.key).status is Status.SUCCESS
    assert ledger.state(unknown.key).updated_at is None


def test_an_unregistered_run_cannot_be_judged(ledger: Ledger) -> None:
    """A verdict on a run the ledger was never told of is refused and makes no row."""
    with pytest.raises(UnknownRun, match="register"):
        ledger.record_verdict(acceptance(run(K, "r1")))
    assert ledger.state(K).updated_at is None


@pytest.mark.invariant("S4")
def test_a_damaged_run_can_only_be_rejected(ledger: Ledger) -> None:
    """A run registered without a sound seal, or read with another count than its seal's, never becomes current."""
    torn, short = run(K, "torn"), run(K, "short")
    ledger.register([*damaged_runs(torn), *sealed_runs(short)])
    with pytest.raises(UnsoundAcceptance, match="damaged seal"):
        ledger.record_verdict(acceptance(torn))
    with pytest.raises(UnsoundAcceptance, match="2 rows were read, its seal says 3"):
        ledger.record_verdict(Verdict(run=short, outcome=Outcome.ACCEPTED, rows_read=2))
    assert ledger.state(K).attempt_count == 0
    assert ledger.record_verdict(rejection(torn)).effect is Effect.FAILED


def test_registering_gives_each_run_the_next_ordinal_once(ledger: Ledger) -> None:
    """Ordinals follow the order of registration within a partition; a run keeps its own for ever."""
    other = key("42")
    first = ledger.register(sealed_runs(run(K, "b"), run(other, "b"), run(K, "a")))
    assert [registered.ordinal for registered in first] == [1, 1, 2]
    again = ledger.register(sealed_runs(run(K, "c"), run(K, "b"), run(K, "c")))
    assert [registered.ordinal for registered in again] == [3, 1, 3]
    assert [registered.run.run_id for registered in ledger.runs(K)] == ["b", "a", "c"]


def test_a_sealed_run_that_changed_is_refused(ledger: Ledger) -> None:
    """The seal a run is registered with again must be the first one, or nothing of the call is registered."""
    ledger.register(sealed_runs(run(K, "r1")))
    with pytest.raises(RunChanged, match="never change"):
        ledger.register(
            [*sealed_runs(run(K, "r2")), RunRegistration(run=run(K, "r1"), schema_version="1", record_count=ROWS + 1)]
        )
    assert [registered.run.run_id for registered in ledger.runs(K)] == ["r1"]


def test_inserting_pending_touches_no_recorded_partition(ledger: Ledger) -> None:
    """Only absent rows are made; success, failure and earlier pending rows stay as they are."""
    success, failure, absent = keys(3)
    accepted_runs(ledger, [success])
    (bad,) = registered_runs(ledger, failure, "r1")
    ledger.record_verdict(rejection(bad))
    before = ledger.states([success, failure])
    assert ledger.insert_pending([success, failure, absent, absent]) == 1
    assert ledger.insert_pending([success, failure, absent]) == 0
    assert ledger.states([success, failure]) == before
    assert ledger.state(absent).updated_at is not None


@pytest.mark.invariant("S19")
def test_updated_at_rises_though_the_clock_goes_back(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Every write of a row dates it later than the one before, whatever the clock says."""
    runs = registered_runs(timed_ledger, K, *(f"r{n}" for n in range(5)))
    seen = [timed_ledger.state(K).updated_at]
    for step, each in zip((0, -3600, 1, -7200, 0), runs, strict=True):
        clock.tick(timedelta(seconds=step))
        timed_ledger.record_verdict(acceptance(each))
        seen.append(timed_ledger.state(K).updated_at)
    assert all(earlier and later and earlier < later for earlier, later in itertools.pairwise(seen))


@pytest.mark.invariant("X2")
def test_an_outside_message_is_kept_on_one_printable_line(ledger: Ledger) -> None:
    """Control characters and what no database can hold are escaped, and a long message is cut."""
    (first,) = registered_runs(ledger, K, "r1")
    ledger.record_verdict(rejection(first, "\x00\x1b[31mred\r\n\ud800" + "x" * 5000))
    message = ledger.state(K).error_message
    assert message is not None
    assert message.startswith(r"\x00\x1b[31mred\r\n\ud800xxx")
    assert len(message) == 2000
    assert message.isprintable()
