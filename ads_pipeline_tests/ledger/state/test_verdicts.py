"""Recording verdicts and registering runs: effects, attempts, authority, and refusals."""

import itertools
import random
from dataclasses import replace
from datetime import timedelta

import pytest

from ads_pipeline.domain.errors import (
    RunChanged,
    UnknownRun,
    UnsoundAcceptance,
    VerdictConflict,
    VerdictsRefused,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Effect, Status, Verdict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests import builders
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)

K = key()


@pytest.mark.invariant("S1")
def test_partition_without_a_row_is_pending(ledger: Ledger) -> None:
    """An absent partition reads like a pending one."""
    state = ledger.states.get(K)
    assert (state.status, state.attempt_count, state.current_run_id) == (Status.PENDING, 0, None)
    assert ledger.states.get_many([K])[K] == state
    ledger.registrations.insert_pending([K])
    recorded = ledger.states.get(K)
    assert (recorded.status, recorded.attempt_count, recorded.current_run_id) == (Status.PENDING, 0, None)


def test_acceptance_takes_authority(ledger: Ledger) -> None:
    """The state holds the accepted run and the schema version and record count of its seal."""
    (first,) = registered_runs(ledger, K, "r1")
    recorded = record_verdict(ledger, acceptance(first))
    assert (recorded.effect, recorded.attempt_no, recorded.redelivered) == (Effect.PROMOTED, 1, False)
    state = ledger.states.get(K)
    assert state == recorded.state
    assert (state.status, state.current_run_id, state.schema_version, state.record_count) == (
        Status.SUCCESS,
        "r1",
        "1",
        ROWS,
    )
    assert state.error_message is None


def test_rejection_without_earlier_success_sets_no_current_run(ledger: Ledger) -> None:
    """A partition that never succeeded has no current run. The attempt holds the rejected run."""
    (first,) = registered_runs(ledger, K, "r1")
    record_verdict(ledger, rejection(first, "negative clicks"))
    state = ledger.states.get(K)
    assert (state.status, state.current_run_id) == (Status.FAILED, None)
    assert state.error_message == "r1: negative clicks in 1 row"
    (attempt,) = ledger.runs.attempts(K)
    assert attempt.verdict == rejection(first, "negative clicks")
    assert (attempt.verdict.rows_read, attempt.verdict.rows_failed) == (ROWS, 1)


@pytest.mark.invariant("S9")
def test_rejected_rerun_keeps_previous_success(ledger: Ledger) -> None:
    """The rejection of a run without authority counts as an attempt and keeps the success."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    before = record_verdict(ledger, acceptance(first)).state
    recorded = record_verdict(ledger, rejection(second))
    after = ledger.states.get(K)
    assert recorded.effect is Effect.SET_ASIDE
    assert (after.status, after.current_run_id, after.schema_version, after.record_count, after.error_message) == (
        before.status,
        before.current_run_id,
        before.schema_version,
        before.record_count,
        None,
    )
    assert after.attempt_count == 2


def test_rejection_of_the_current_run_demotes(ledger: Ledger) -> None:
    """A failed re-validation makes the partition fail with its message."""
    (first,) = registered_runs(ledger, K, "r1")
    record_verdict(ledger, acceptance(first))
    recorded = record_verdict(ledger, rejection(first, "rules changed", validation_id="v2"))
    state = ledger.states.get(K)
    assert recorded.effect is Effect.DEMOTED
    assert (state.status, state.current_run_id, state.error_message) == (
        Status.FAILED,
        "r1",
        "r1: rules changed in 1 row",
    )


@pytest.mark.invariant("S10")
@pytest.mark.parametrize("positions", list(itertools.permutations(range(3))))
def test_older_run_never_takes_authority_from_a_newer_one(ledger: Ledger, positions: tuple[int, ...]) -> None:
    """In every order of acceptances, the newest registered run becomes the current one."""
    runs = registered_runs(ledger, K, "zz", "mm", "aa")  # the names sort in reverse, but only the ordinal counts
    for position in positions:
        record_verdict(ledger, acceptance(runs[position]))
    state = ledger.states.get(K)
    assert (state.current_run_id, state.attempt_count) == ("aa", 3)


def test_older_run_takes_authority_when_the_newer_was_rejected(ledger: Ledger) -> None:
    """A rejected newer run does not block the acceptance of an older one."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    record_verdict(ledger, rejection(second))
    record_verdict(ledger, acceptance(first))
    state = ledger.states.get(K)
    assert (state.status, state.current_run_id, state.error_message) == (Status.SUCCESS, "r1", None)


@pytest.mark.invariant("S11")
def test_rejected_run_takes_authority_only_by_a_new_validation(ledger: Ledger) -> None:
    """A contradicting verdict is refused under the same validation_id and recorded under a new one."""
    (first,) = registered_runs(ledger, K, "r1")
    record_verdict(ledger, rejection(first))
    with pytest.raises(VerdictConflict, match="the recorded verdict is rejected, the new one accepted"):
        record_verdict(ledger, acceptance(first))
    assert ledger.states.get(K).status is Status.FAILED
    record_verdict(ledger, acceptance(first, "v2"))
    assert ledger.states.get(K).current_run_id == "r1"


@pytest.mark.invariant("S8")
def test_redelivered_verdict_counts_once(ledger: Ledger) -> None:
    """A redelivery, in the same call or later, returns the recorded result and writes nothing."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    first_result, second_result = ledger.verdicts.record([rejection(first), rejection(first)])
    assert (first_result.redelivered, second_result.redelivered, second_result.attempt_no) == (False, True, 1)
    record_verdict(ledger, acceptance(second))
    before = ledger.states.get(K)
    later = record_verdict(ledger, rejection(first))
    assert (later.redelivered, later.attempt_no, later.effect) == (True, 1, Effect.FAILED)
    assert ledger.states.get(K) == before
    assert len(ledger.runs.attempts(K)) == before.attempt_count == 2


@pytest.mark.invariant("S6")
def test_attempts_are_numbered_without_gaps(ledger: Ledger) -> None:
    """attempt_count equals the number of attempts and the number of the last one."""
    runs = registered_runs(ledger, K, *(f"r{n}" for n in range(6)))
    for n, each in enumerate(runs):
        record_verdict(ledger, acceptance(each) if n % 2 else rejection(each))
    assert [attempt.attempt_no for attempt in ledger.runs.attempts(K)] == [1, 2, 3, 4, 5, 6]
    assert ledger.states.get(K).attempt_count == 6


def test_verdicts_of_one_call_see_each_other(ledger: Ledger) -> None:
    """Each verdict of a call applies to the state after the earlier ones on the same partition."""
    first, second, third = registered_runs(ledger, K, "r1", "r2", "r3")
    effects = [
        recorded.effect
        for recorded in ledger.verdicts.record(
            [acceptance(second), acceptance(first), rejection(third), rejection(second, validation_id="v2")]
        )
    ]
    assert effects == [Effect.PROMOTED, Effect.SUPERSEDED, Effect.SET_ASIDE, Effect.DEMOTED]
    state = ledger.states.get(K)
    assert (state.status, state.current_run_id, state.attempt_count) == (Status.FAILED, "r2", 4)


@pytest.mark.invariant("S5")
@pytest.mark.parametrize("seed", range(4))
def test_one_call_has_the_same_effect_as_single_calls(timed_ledger: Ledger, seed: int) -> None:
    """A mix of verdicts in one call leads to the same states as one call per verdict."""
    chance = random.Random(seed)
    in_one_call, one_by_one = keys(40)[:20], keys(40)[20:]
    runs = {key: registered_runs(timed_ledger, key, "r1", "r2", "r3") for key in in_one_call + one_by_one}
    plan = [(n, run_no, chance.random() < 0.6) for n in range(20) for run_no in range(3)]
    chance.shuffle(plan)

    def verdicts(partitions: list[PartitionKey]) -> list[Verdict]:
        return [(acceptance if accepted else rejection)(runs[partitions[n]][run_no]) for n, run_no, accepted in plan]

    timed_ledger.verdicts.record(verdicts(in_one_call))
    for verdict in verdicts(one_by_one):
        record_verdict(timed_ledger, verdict)
    for left, right in zip(in_one_call, one_by_one, strict=True):
        assert replace(timed_ledger.states.get(left), key=right) == timed_ledger.states.get(right)


@pytest.mark.parametrize("in_one_call", [True, False])
def test_error_message_is_of_the_newest_rejected_run(ledger: Ledger, in_one_call: bool) -> None:
    """The order of the verdicts does not matter for the error message."""
    first, second, third = registered_runs(ledger, K, "r1", "r2", "r3")
    verdicts = [rejection(second, "two"), rejection(third, "three"), rejection(first, "one")]
    for batch in [verdicts] if in_one_call else [[verdict] for verdict in verdicts]:
        ledger.verdicts.record(batch)
    assert ledger.states.get(K).error_message == "r3: three in 1 row"


def test_one_call_records_thousands_of_partitions(ledger: Ledger) -> None:
    """A call with 2,000 verdicts sets each state, and returns the results in the given order."""
    partitions = keys(2000)
    runs = [run(partition, "r1") for partition in partitions]
    ledger.registrations.register(sealed_runs(*runs))
    recorded = ledger.verdicts.record(
        [rejection(each) if n % 10 == 0 else acceptance(each) for n, each in enumerate(runs)]
    )
    assert [each.verdict.run for each in recorded] == runs
    states = ledger.states.get_many(partitions)
    assert list(states) == partitions
    failed = {partition for partition, state in states.items() if state.status is Status.FAILED}
    assert failed == set(partitions[::10])


def test_refused_verdicts_do_not_block_the_others(ledger: Ledger) -> None:
    """The other verdicts of the call are recorded. The error holds the refusals and the results."""
    good, conflicting, unknown = (run(partition, "r1") for partition in keys(3))
    ledger.registrations.register(sealed_runs(good, conflicting))
    record_verdict(ledger, rejection(conflicting))
    with pytest.raises(VerdictsRefused) as caught:
        ledger.verdicts.record([acceptance(conflicting), acceptance(good), acceptance(unknown)])
    refusals = {run: type(refusal) for run, refusal in caught.value.refusals.items()}
    assert refusals == {conflicting: VerdictConflict, unknown: UnknownRun}
    assert len(caught.value.recorded) == 1
    assert str(conflicting) in str(caught.value)
    assert ledger.states.get(good.key).status is Status.SUCCESS
    assert ledger.states.get(unknown.key).updated_at is None


def test_verdict_on_an_unregistered_run_is_refused(ledger: Ledger) -> None:
    """The refusal inserts no row."""
    with pytest.raises(UnknownRun, match="register"):
        record_verdict(ledger, acceptance(run(K, "r1")))
    assert ledger.states.get(K).updated_at is None


@pytest.mark.invariant("S4")
def test_damaged_run_can_only_be_rejected(ledger: Ledger) -> None:
    """A run with a damaged seal, or with another row count than its seal, is never accepted."""
    damaged, short = run(K, "damaged"), run(K, "short")
    ledger.registrations.register([damaged, *sealed_runs(short)])
    with pytest.raises(UnsoundAcceptance, match="damaged seal"):
        record_verdict(ledger, acceptance(damaged))
    with pytest.raises(UnsoundAcceptance, match="2 rows were read, but its seal counts 3"):
        record_verdict(ledger, builders.acceptance(short, 2))
    assert ledger.states.get(K).attempt_count == 0
    assert record_verdict(ledger, rejection(damaged)).effect is Effect.FAILED


def test_registration_assigns_the_next_ordinal_once(ledger: Ledger) -> None:
    """Ordinals count up in the order of registration per partition, and never change."""
    other = key("42")
    first = ledger.registrations.register(sealed_runs(run(K, "b"), run(other, "b"), run(K, "a")))
    assert [registered.ordinal for registered in first] == [1, 1, 2]
    again = ledger.registrations.register(sealed_runs(run(K, "c"), run(K, "b"), run(K, "c")))
    assert [registered.ordinal for registered in again] == [3, 1, 3]
    assert [registered.run.run_id for registered in ledger.runs.registered(K)] == ["b", "a", "c"]


def test_registration_with_another_seal_is_refused(ledger: Ledger) -> None:
    """When one run of a call has another seal than before, none is registered."""
    ledger.registrations.register(sealed_runs(run(K, "r1")))
    with pytest.raises(RunChanged, match="must not change"):
        ledger.registrations.register([*sealed_runs(run(K, "r2")), sealed_run(run(K, "r1"), ROWS + 1)])
    assert [registered.run.run_id for registered in ledger.runs.registered(K)] == ["r1"]


def test_insert_pending_keeps_recorded_states(ledger: Ledger) -> None:
    """Only absent partitions get a row. Success, failed and pending rows stay unchanged."""
    success, failure, absent = keys(3)
    accepted_runs(ledger, [success])
    (bad,) = registered_runs(ledger, failure, "r1")
    record_verdict(ledger, rejection(bad))
    before = ledger.states.get_many([success, failure])
    assert ledger.registrations.insert_pending([success, failure, absent, absent]) == 1
    assert ledger.registrations.insert_pending([success, failure, absent]) == 0
    assert ledger.states.get_many([success, failure]) == before
    assert ledger.states.get(absent).updated_at is not None


@pytest.mark.invariant("S19")
def test_updated_at_grows_when_the_clock_goes_back(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Each write of a row has a later updated_at than the one before."""
    runs = registered_runs(timed_ledger, K, *(f"r{n}" for n in range(5)))
    timestamps = [timed_ledger.states.get(K).updated_at]
    for step, each in zip((0, -3600, 1, -7200, 0), runs, strict=True):
        clock.tick(timedelta(seconds=step))
        record_verdict(timed_ledger, acceptance(each))
        timestamps.append(timed_ledger.states.get(K).updated_at)
    assert all(earlier and later and earlier < later for earlier, later in itertools.pairwise(timestamps))


@pytest.mark.invariant("X2")
def test_error_message_is_one_printable_line(ledger: Ledger) -> None:
    """Control characters and surrogates are escaped, and a long message is cut."""
    (first,) = registered_runs(ledger, K, "r1")
    record_verdict(ledger, rejection(first, "\x00\x1b[31mred\r\n\ud800" + "x" * 5000))
    message = ledger.states.get(K).error_message
    assert message is not None
    assert message.startswith(r"r1: \x00\x1b[31mred\r\n\ud800xxx")
    assert len(message) == 2000
    assert message.isprintable()
