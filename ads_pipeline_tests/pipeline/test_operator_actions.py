"""Acts as they are previewed and carried out: on exactly what was seen, once, and with a row in the log."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.retry import RetryPolicy
from ads_pipeline.domain.transitions import Action, Status, Verdict
from ads_pipeline.errors import LedgerUnavailable, MarkedTerminal, StateChanged
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.tables import metadata
from ads_pipeline.ledger.values import ActionRequest, ActionResult, StateFilter
from ads_pipeline.pipeline import operator_actions
from ads_pipeline.pipeline.operator_actions import ActionPreview, OperatorActions, execute_preview
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)

TODAY = date(2026, 2, 3)
POLICY = RetryPolicy()
ALL = StateFilter(source="google_ads")


def control_of(ledger: LedgerReader, *, raw: RawRuns | None = None, today: date = TODAY) -> OperatorActions:
    return OperatorActions(ledger=ledger, policy=POLICY, today=today, raw=raw)


def fail(ledger: Ledger, partitions: list[PartitionKey], run_id: str = "r1") -> None:
    runs = [run(partition, run_id) for partition in partitions]
    ledger.register(sealed_runs(*runs))
    ledger.record_verdicts([rejection(each) for each in runs])


def digest(engine: sa.Engine) -> dict[str, list[str]]:
    """Every row of every table."""

    def rows(connection: sa.Connection) -> dict[str, list[str]]:
        return {
            table.name: sorted(map(repr, connection.execute(sa.select(table)).all()))
            for table in metadata.sorted_tables
        }

    return database.transact(engine, rows)


def names(preview: ActionPreview) -> list[PartitionKey]:
    return [state.key for state in preview.states]


@pytest.mark.invariant("S13", "S14")
def test_a_filter_requeues_exactly_what_was_previewed(ledger: Ledger) -> None:
    """Failed ones that are not terminal and were seen; what failed, or was mended, since then is left alone."""
    marked, worn, again, mended, newcomer, *plain = keys(9)
    fail(ledger, [marked, worn, again, mended, *plain])
    for number in range(2, POLICY.max_attempts + 1):
        fail(ledger, [worn], f"r{number}")
    accepted_runs(ledger, [key("9999")])
    ledger.execute(Action.MARK_TERMINAL, [marked], action_request("mark"))
    preview = control_of(ledger).preview(Action.REQUEUE, ALL)
    assert names(preview) == [again, mended, *plain]
    assert {each: why.split(":")[0] for each, why in preview.skipped.items()} == dict.fromkeys(
        [marked, worn], "terminal"
    )
    fail(ledger, [newcomer])
    fail(ledger, [again], "r2")
    (good,) = registered_runs(ledger, mended, "r2")
    record_verdict(ledger, acceptance(good))
    done = execute_preview(ledger, preview, action_request("retry"))
    assert [state.key for state in done.changed] == plain
    assert all(isinstance(refusal, StateChanged) for refusal in done.refused)
    assert [str(again), str(mended)] == [str(refusal).split(":")[0] for refusal in done.refused]
    assert not done.is_complete
    found = {partition: state.status for partition, state in ledger.states([*keys(9), key("9999")]).items()}
    assert [each for each, status in found.items() if status is Status.PENDING] == plain
    assert [each for each, status in found.items() if status is Status.SUCCESS] == [mended, key("9999")]


@pytest.mark.invariant("S13")
def test_a_validator_that_races_a_requeue_has_the_last_word(url: str) -> None:
    """Whichever comes first, a partition never ends pending behind a verdict that the requeue had not seen."""
    partitions, rounds = keys(40), 6
    with Ledger.opened(url) as ledger, Ledger.opened(url) as other, ThreadPoolExecutor(2) as pool:
        fail(ledger, partitions)
        won = {"verdict": 0, "requeue": 0}
        for number in range(2, rounds + 2):
            preview = control_of(ledger).preview(Action.REQUEUE, ALL, include_terminal=True)
            assert names(preview) == partitions
            runs = [run(partition, f"r{number}") for partition in partitions]
            other.register(sealed_runs(*runs))
            start = threading.Barrier(2)
            judging = pool.submit(_judge_slowly, other, [rejection(each) for each in runs], start)
            requeued = pool.submit(_requeue_slowly, ledger, preview, start, number)
            judging.result()
            refused = requeued.result()
            won["verdict"] += refused
            won["requeue"] += len(partitions) - refused
            for state in ledger.states(partitions).values():
                assert (state.status, state.attempt_count) == (Status.FAILED, number)
        assert min(won.values()) > 0, "the race was never a race"


def _judge_slowly(ledger: Ledger, verdicts: list[Verdict], start: threading.Barrier) -> None:
    start.wait()
    for verdict in verdicts:
        record_verdict(ledger, verdict)


def _requeue_slowly(ledger: Ledger, preview: ActionPreview, start: threading.Barrier, number: int) -> int:
    """From the far end, so that some are requeued before their verdict and some after; how many were refused."""
    start.wait()
    refused = 0
    for place, state in reversed(list(enumerate(preview.states))):
        one = ActionPreview(action=preview.action, states=(state,), skipped={})
        refused += len(execute_preview(ledger, one, action_request(f"retry-{number}-{place}")).refused)
    return refused


@pytest.mark.invariant("S13")
def test_only_the_desk_puts_failed_back_to_pending(ledger: Ledger) -> None:
    """Registering another run of a failed partition, or enqueueing it, leaves it failed."""
    fail(ledger, [key()])
    registered_runs(ledger, key(), "r2")
    ledger.insert_pending([key()])
    ledger.execute(Action.ENQUEUE, [key()], action_request("backfill"))
    assert ledger.state(key()).status is Status.FAILED
    (act,) = execute_preview(ledger, control_of(ledger).preview(Action.REQUEUE, ALL), action_request("retry")).changed
    assert ledger.state(key()) == act
    assert [each.action for each in ledger.partition_actions(key())] == ["requeue"]


@pytest.mark.invariant("S14")
@pytest.mark.parametrize(
    "act", [Action.REQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL, Action.REPROCESS, Action.WITHDRAW], ids=str
)
def test_an_act_may_be_sent_again(ledger: Ledger, backdoor: sa.Engine, act: Action) -> None:
    """The same act, as after a lost answer, changes nothing more; another of its kind finds nothing to do."""
    fail(ledger, [key("1"), key("2")])
    accepted_runs(ledger, [key("3"), key("4")])
    if act is Action.CLEAR_TERMINAL:
        ledger.execute(Action.MARK_TERMINAL, [key("1"), key("2")], action_request("mark"))
    preview = control_of(ledger).preview(act, ALL)
    assert len(preview.states) == 2
    first = execute_preview(ledger, preview, action_request("act-1"))
    after = digest(backdoor)
    again = execute_preview(ledger, preview, action_request("act-1"))
    assert [state.key for state in again.changed] == [state.key for state in first.changed] == names(preview)
    assert digest(backdoor) == after
    assert names(control_of(ledger).preview(act, ALL)) == []


@pytest.mark.invariant("S14")
def test_what_an_outage_left_is_told(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions that were done stand, those behind them are named; sent again, the act does the rest."""
    monkeypatch.setattr(operator_actions, "PARTITIONS_PER_TRANSACTION", 3)
    partitions = keys(8)
    fail(ledger, partitions)
    preview = control_of(ledger).preview(Action.REQUEUE, ALL)
    with _outage_after(ledger, 2):
        done = execute_preview(ledger, preview, action_request("retry"))
    assert ([state.key for state in done.changed], done.not_reached) == (partitions[:6], partitions[6:])
    assert isinstance(done.outage, LedgerUnavailable)
    again = execute_preview(ledger, preview, action_request("retry"))
    assert [state.key for state in again.changed] == partitions
    assert again.is_complete
    assert all(state.status is Status.PENDING for state in ledger.states(partitions).values())


@contextmanager
def _outage_after(ledger: Ledger, transactions: int) -> Iterator[None]:
    begun = 0

    def begin(_connection: sa.Connection) -> None:
        nonlocal begun
        begun += 1
        if begun > transactions:
            raise LedgerUnavailable("out of reach")

    sa.event.listen(ledger._engine, "begin", begin)
    try:
        yield
    finally:
        sa.event.remove(ledger._engine, "begin", begin)


@pytest.mark.invariant("S15")
@pytest.mark.parametrize(
    "act", [Action.REQUEUE, Action.MARK_TERMINAL, Action.CLEAR_TERMINAL, Action.REPROCESS, Action.WITHDRAW], ids=str
)
def test_a_preview_writes_nothing(ledger: Ledger, url: str, backdoor: sa.Engine, act: Action) -> None:
    """It is made through a connection that could not write, and every row is what it was."""
    fail(ledger, [key("1"), key("2")])
    accepted_runs(ledger, [key("3")])
    ledger.execute(Action.MARK_TERMINAL, [key("2")], action_request("mark"))
    before = digest(backdoor)
    with LedgerReader.opened(url) as reader:
        assert control_of(reader).preview(act, ALL, include_terminal=True).states
    assert digest(backdoor) == before


@pytest.mark.invariant("S16")
def test_an_act_and_its_row_are_one(ledger: Ledger) -> None:
    """Who, when, how and why stand with every partition that was changed, or nothing was changed at all."""
    fail(ledger, keys(3))
    preview = control_of(ledger).preview(Action.REQUEUE, ALL)
    by_whom = ActionRequest(
        action_id="a-1", operator="ada", command="state retry --all", reason="fixed", filters="status=failed"
    )
    before = {state.key: state for state in preview.states}
    with pytest.raises(RuntimeError), _dying_at_the_row_of_acted(ledger):
        execute_preview(ledger, preview, by_whom)
    assert ledger.states(keys(3)) == before
    assert ledger.partition_actions(keys(3)[0]) == []
    done = execute_preview(ledger, preview, by_whom)
    for state in done.changed:
        (act,) = ledger.partition_actions(state.key)
        assert (act.action, act.operator, act.command, act.reason, act.status_before) == (
            *("requeue", "ada", "state retry --all", "fixed"),
            Status.FAILED,
        )
        assert act.performed_at == state.updated_at


@contextmanager
def _dying_at_the_row_of_acted(ledger: Ledger) -> Iterator[None]:
    def execute(*told: object) -> None:
        if "control_action_partitions" in str(told[2]) and "INSERT" in str(told[2]):
            raise RuntimeError("died")

    sa.event.listen(ledger._engine, "before_cursor_execute", execute)
    try:
        yield
    finally:
        sa.event.remove(ledger._engine, "before_cursor_execute", execute)


def test_named_partitions_are_left_out_with_the_reason(ledger: Ledger) -> None:
    """What the act is not for is told for each, as the transition table has it."""
    fail(ledger, [key("1")])
    accepted_runs(ledger, [key("2")])
    named = [key("1"), key("2"), key("3")]
    skipped = control_of(ledger).preview(Action.REQUEUE, named).skipped
    assert "reprocessed or withdrawn" in skipped[key("2")]
    assert skipped[key("3")] == "it is absent"
    assert names(control_of(ledger).preview(Action.WITHDRAW, named)) == [key("2")]


def test_a_retry_needs_something_in_raw(ledger: Ledger, tmp_path: Path) -> None:
    """A partition of which raw holds no run at all is left out, until somebody insists."""
    fail(ledger, [key("1")])
    preview = control_of(ledger, raw=RawRuns(tmp_path / "raw")).preview(Action.REQUEUE, ALL)
    assert (names(preview), list(preview.skipped.values())) == ([], [operator_actions.NO_SEALED_RUN])
    assert names(control_of(ledger).preview(Action.REQUEUE, ALL)) == [key("1")]


def test_clearing_comes_before_the_requeue(ledger: Ledger) -> None:
    """Whoever asks for terminal ones as well has their marks cleared, as an act of its own."""
    fail(ledger, [key("1"), key("2")])
    ledger.execute(Action.MARK_TERMINAL, [key("1")], action_request("mark"))
    preview = control_of(ledger).preview(Action.REQUEUE, ALL, include_terminal=True)
    assert [state.key for state in preview.marks_to_clear] == [key("1")]
    done = execute_preview(ledger, preview, action_request("retry"))
    assert ([state.key for state in done.changed], done.is_complete) == ([key("1"), key("2")], True)
    assert [act.action for act in ledger.partition_actions(key("1"))] == [
        "mark_terminal",
        "clear_terminal",
        "requeue",
    ]
    assert ledger.retry_queue.find_marked([key("1")]) == set()


def test_a_mark_that_comes_in_between_is_heeded(ledger: Ledger) -> None:
    """A partition that is marked after the preview is not requeued by it."""
    fail(ledger, [key("1")])
    preview = control_of(ledger).preview(Action.REQUEUE, ALL)
    ledger.execute(Action.MARK_TERMINAL, [key("1")], action_request("mark"))
    (refusal,) = execute_preview(ledger, preview, action_request("retry")).refused
    assert isinstance(refusal, MarkedTerminal)


def test_the_policy_requeues_what_is_due_in_both_lanes(timed_ledger: Ledger, clock: FakeClock) -> None:
    """As much as there is room for, each lane its part; every requeue is logged and leaves an open request."""
    fresh, old = [key(str(n), day=28) for n in range(100, 110)], [key(str(n), day=1) for n in range(10)]
    today = clock.now.date()
    fail(timed_ledger, fresh + old)
    asked = control_of(timed_ledger, today=today)
    assert asked.requeue_due(timed_ledger, action_request("early"), source="google_ads", slots=8).changed == ()
    clock.tick(timedelta(hours=1))
    acted = asked.requeue_due(timed_ledger, action_request("tick-1"), source="google_ads", slots=8)
    requeued = {state.key for state in acted.changed}
    assert (len(requeued & set(fresh)), len(requeued & set(old))) == (8, 8)
    assert {act.action for partition in requeued for act in timed_ledger.partition_actions(partition)} == {"requeue"}
    turn = {each.key for each in asked.next_requests(source="google_ads", slots=8)}
    assert (len(turn & set(fresh)), len(turn & set(old))) == (6, 2)
    assert turn <= requeued
    assert asked.requeue_due(timed_ledger, action_request("tick-2"), source="google_ads", slots=8).changed == ()
    more = asked.requeue_due(timed_ledger, action_request("tick-3"), source="google_ads", slots=9)
    assert len(more.changed) == 2


@pytest.mark.invariant("S13")
def test_the_policy_requeues_nothing_that_failed_again_meanwhile(
    timed_ledger: Ledger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict that comes between what was found due and its requeue has the last word; its own delay begins."""
    fail(timed_ledger, [key()])
    clock.tick(timedelta(hours=1))
    requeue = timed_ledger.execute

    def late(*words: Any, **how: Any) -> ActionResult:
        fail(timed_ledger, [key()], "r2")
        return requeue(*words, **how)

    monkeypatch.setattr(timed_ledger, "execute", late)
    asked = control_of(timed_ledger, today=clock.now.date())
    acted = asked.requeue_due(timed_ledger, action_request("tick-1"), source="google_ads", slots=8)
    assert [type(refusal) for refusal in acted.refused] == [StateChanged]
    assert (timed_ledger.state(key()).status, timed_ledger.state(key()).attempt_count) == (Status.FAILED, 2)
    assert asked.requeue_due(timed_ledger, action_request("tick-2"), source="google_ads", slots=8).changed == ()


def test_a_long_queue_of_backfills_keeps_no_fresh_day_out(timed_ledger: Ledger, clock: FakeClock) -> None:
    """However much somebody asked for, a fresh day that is due is requeued and has its turn."""
    old, fresh = keys(50), key("7", day=28)
    timed_ledger.execute(Action.ENQUEUE, old, action_request("backfill"))
    fail(timed_ledger, [fresh])
    clock.tick(timedelta(hours=1))
    asked = control_of(timed_ledger, today=clock.now.date())
    assert len(asked.next_requests(source="google_ads", slots=8)) == 8
    asked.requeue_due(timed_ledger, action_request("tick-1"), source="google_ads", slots=8)
    turn = [each.key for each in asked.next_requests(source="google_ads", slots=8)]
    assert (turn[0], len(turn)) == (fresh, 8)


def test_a_backfill_enqueues_what_nobody_has_heard_of(ledger: Ledger) -> None:
    """Partitions without a row are pending from then on and wanted; what is recorded is left out with its state."""
    fail(ledger, [key("1")])
    accepted_runs(ledger, [key("2")])
    ledger.insert_pending([key("3")])
    named = [key(customer) for customer in "12345"]
    preview = control_of(ledger).preview(Action.ENQUEUE, named)
    assert names(preview) == [key("4"), key("5")]
    assert preview.skipped == {
        key("1"): "it is failed",
        key("2"): "it is success",
        key("3"): operator_actions.ALREADY_RECORDED,
    }
    ledger.insert_pending([key("5")])
    done = execute_preview(ledger, preview, action_request("backfill"))
    assert [state.key for state in done.changed] == [key("4")]
    assert [str(refusal).split(":")[0] for refusal in done.refused] == [str(key("5"))]
    assert [(each.key, each.kind) for each in control_of(ledger).next_requests(source="google_ads", slots=9)] == [
        (key("4"), "backfill")
    ]
