"""Tests control actions from preview to log: execution follows the preview, once."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerUnavailable, StateChanged
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Status, Verdict
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import metadata
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, ActionResult, StateFilter
from ads_pipeline.pipeline.actions import operator_actions
from ads_pipeline.pipeline.actions.action_preview import ALREADY_RECORDED, NO_SEALED_RUN, Preview, Selection
from ads_pipeline.pipeline.actions.operator_actions import (
    CLEAR,
    ENQUEUE,
    MARK,
    REPROCESS,
    RETRY,
    WITHDRAW,
    OperatorAction,
    Plan,
    Report,
    Result,
    execute,
    performer,
)
from ads_pipeline.pipeline.retry_scheduling import RetryScheduler
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


@pytest.fixture
def ledger(url: str, clock: FakeClock) -> Iterator[Ledger]:
    """A ledger whose clock goes on in the time of the partitions, so that none of them is too old."""

    def now() -> datetime:
        clock.tick(timedelta(milliseconds=1))
        return clock.now

    with Ledger.opened(url, clock=now) as opened:
        yield opened


def preview(ledger: LedgerReader, action: OperatorAction, selection: Selection = ALL, **own_options: Any) -> Plan:
    return Preview(ledger=ledger, policy=POLICY, action=action, **own_options).plan(selection)


def run_plan(ledger: Ledger, plan: Plan, request: ActionRequest) -> Report:
    return execute(plan, request, performer(plan.action, ledger.actions))


def scheduler_for(ledger: LedgerReader, today: date) -> RetryScheduler:
    return RetryScheduler(ledger=ledger, policy=POLICY, source="google_ads", today=today)


def skipped_in(plan: Plan) -> dict[Any, str | None]:
    return {row.target: row.why_skipped for row in plan.skipped}


def record_failures(ledger: Ledger, partitions: list[PartitionKey], run_id: str = "r1") -> None:
    runs = [run(partition, run_id) for partition in partitions]
    ledger.registrations.register(sealed_runs(*runs))
    ledger.verdicts.record([rejection(each) for each in runs])


def read_all_rows(engine: sa.Engine) -> dict[str, list[str]]:
    """Every row of every table."""

    def rows(connection: sa.Connection) -> dict[str, list[str]]:
        return {
            table.name: sorted(map(repr, connection.execute(sa.select(table)).all()))
            for table in metadata.sorted_tables
        }

    return database.transact(engine, rows)


def keys_in(plan: Plan) -> list[Any]:
    return [row.target for row in plan.changes]


@pytest.mark.invariant("S13", "S14")
def test_filter_requeues_exactly_the_preview(ledger: Ledger) -> None:
    """Terminal partitions are skipped; those that failed again or succeeded after the preview are refused."""
    marked, exhausted, again, succeeded, newly_failed, *plain = keys(9)
    record_failures(ledger, [marked, exhausted, again, succeeded, *plain])
    for number in range(2, POLICY.max_attempts + 1):
        record_failures(ledger, [exhausted], f"r{number}")
    accepted_runs(ledger, [key("9999")])
    ledger.actions.execute(Action.MARK_TERMINAL, [marked], action_request("mark"))
    plan = preview(ledger, RETRY, ALL)
    assert keys_in(plan) == [again, succeeded, *plain]
    assert {each: str(why).split(":")[0] for each, why in skipped_in(plan).items()} == dict.fromkeys(
        [marked, exhausted], "terminal"
    )
    record_failures(ledger, [newly_failed])
    record_failures(ledger, [again], "r2")
    (good,) = registered_runs(ledger, succeeded, "r2")
    record_verdict(ledger, acceptance(good))
    done = run_plan(ledger, plan, action_request("retry"))
    assert done.targets(Result.DONE) == plain
    assert {row.target: row.why for row in done.rows if row.result is Result.REMAINING} == {
        again: "it was failed after 1 attempt in the preview and is failed after 2 attempts now; preview again",
        succeeded: "it was failed after 1 attempt in the preview and is success after 2 attempts now; preview again",
    }
    found = {partition: state.status for partition, state in ledger.states.get_many([*keys(9), key("9999")]).items()}
    assert [each for each, status in found.items() if status is Status.PENDING] == plain
    assert [each for each, status in found.items() if status is Status.SUCCESS] == [succeeded, key("9999")]


@pytest.mark.invariant("S13")
def test_verdict_wins_a_race_with_a_requeue(url: str) -> None:
    """A partition never ends pending after a verdict that the requeue had not seen."""
    partitions, rounds = keys(40), 6
    with Ledger.opened(url) as ledger, Ledger.opened(url) as other, ThreadPoolExecutor(2) as pool:
        record_failures(ledger, partitions)
        won = {"verdict": 0, "requeue": 0}
        for number in range(2, rounds + 2):
            plan = preview(ledger, RETRY, ALL, clear_terminal=True)
            assert keys_in(plan) == partitions
            runs = [run(partition, f"r{number}") for partition in partitions]
            other.registrations.register(sealed_runs(*runs))
            start = threading.Barrier(2)
            judging = pool.submit(_judge_slowly, other, [rejection(each) for each in runs], start)
            requeued = pool.submit(_requeue_slowly, ledger, plan, start, number)
            judging.result()
            refused = requeued.result()
            won["verdict"] += refused
            won["requeue"] += len(partitions) - refused
            for state in ledger.states.get_many(partitions).values():
                assert (state.status, state.attempt_count) == (Status.FAILED, number)
        assert min(won.values()) > 0, "both sides must win at least once"


def _judge_slowly(ledger: Ledger, verdicts: list[Verdict], start: threading.Barrier) -> None:
    start.wait()
    for verdict in verdicts:
        record_verdict(ledger, verdict)


def _requeue_slowly(ledger: Ledger, plan: Plan, start: threading.Barrier, number: int) -> int:
    """Requeue in reverse order, so that some requeues precede their verdict. Returns the number refused."""
    start.wait()
    refused = 0
    for position, row in reversed(list(enumerate(plan.changes))):
        one = Plan(action=plan.action, changes=(row,))
        report = run_plan(ledger, one, action_request(f"retry-{number}-{position}"))
        refused += len(report.targets(Result.REMAINING))
    return refused


@pytest.mark.invariant("S13")
def test_only_a_requeue_makes_failed_pending(ledger: Ledger) -> None:
    """Registering another run of a failed partition or enqueueing it leaves it failed."""
    record_failures(ledger, [key()])
    registered_runs(ledger, key(), "r2")
    ledger.registrations.insert_pending([key()])
    ledger.actions.execute(Action.ENQUEUE, [key()], action_request("backfill"))
    assert ledger.states.get(key()).status is Status.FAILED
    assert run_plan(ledger, preview(ledger, RETRY, ALL), action_request("retry")).targets(Result.DONE) == [key()]
    assert ledger.states.get(key()).status is Status.PENDING
    assert [each.action for each in ledger.audit.of_partition(key())] == ["requeue"]


@pytest.mark.invariant("S14")
@pytest.mark.parametrize(
    "action",
    [RETRY, MARK, CLEAR, REPROCESS, WITHDRAW],
    ids=attrgetter("name"),
)
def test_repeated_request_changes_nothing(ledger: Ledger, backdoor: sa.Engine, action: OperatorAction) -> None:
    """The same request returns the same result, and a new preview finds nothing to do."""
    record_failures(ledger, [key("1"), key("2")])
    accepted_runs(ledger, [key("3"), key("4")])
    if action is CLEAR:
        ledger.actions.execute(Action.MARK_TERMINAL, [key("1"), key("2")], action_request("mark"))
    plan = preview(ledger, action, ALL)
    assert len(plan.changes) == 2
    first = run_plan(ledger, plan, action_request("act-1"))
    after = read_all_rows(backdoor)
    again = run_plan(ledger, plan, action_request("act-1"))
    assert again.targets(Result.DONE) == first.targets(Result.DONE) == keys_in(plan)
    assert read_all_rows(backdoor) == after
    assert keys_in(preview(ledger, action, ALL)) == []


@pytest.mark.invariant("S14")
def test_outage_reports_partitions_not_reached(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished batches stay, the others are reported, and repeating the request completes it."""
    monkeypatch.setattr(operator_actions, "PARTITIONS_PER_TRANSACTION", 3)
    partitions = keys(8)
    record_failures(ledger, partitions)
    plan = preview(ledger, RETRY, ALL)
    with _outage_after(ledger, 2):
        done = run_plan(ledger, plan, action_request("retry"))
    assert (done.targets(Result.DONE), done.targets(Result.REMAINING)) == (partitions[:6], partitions[6:])
    assert {row.why for row in done.rows[6:]} == {"out of reach"}
    again = run_plan(ledger, plan, action_request("retry"))
    assert (again.targets(Result.DONE), len(again.rows)) == (partitions, 8)
    assert all(state.status is Status.PENDING for state in ledger.states.get_many(partitions).values())


@contextmanager
def _outage_after(ledger: Ledger, transactions: int) -> Iterator[None]:
    started = 0

    def begin(_connection: sa.Connection) -> None:
        nonlocal started
        started += 1
        if started > transactions:
            raise LedgerUnavailable("out of reach")

    sa.event.listen(ledger.engine, "begin", begin)
    try:
        yield
    finally:
        sa.event.remove(ledger.engine, "begin", begin)


@pytest.mark.invariant("S15")
@pytest.mark.parametrize(
    "action",
    [RETRY, MARK, CLEAR, REPROCESS, WITHDRAW],
    ids=attrgetter("name"),
)
def test_preview_writes_nothing(ledger: Ledger, url: str, backdoor: sa.Engine, action: OperatorAction) -> None:
    """A preview works on a read-only connection and leaves every row unchanged."""
    record_failures(ledger, [key("1"), key("2")])
    accepted_runs(ledger, [key("3")])
    ledger.actions.execute(Action.MARK_TERMINAL, [key("2")], action_request("mark"))
    before = read_all_rows(backdoor)
    with LedgerReader.opened(url) as reader:
        assert preview(reader, action, ALL, clear_terminal=True).changes
    assert read_all_rows(backdoor) == before


@pytest.mark.invariant("S16")
def test_action_and_log_rows_commit_together(ledger: Ledger) -> None:
    """Operator, time, command and reason are logged with every changed partition, or nothing changes."""
    record_failures(ledger, keys(3))
    plan = preview(ledger, RETRY, ALL)
    request = ActionRequest(
        action_id="a-1", operator="ada", command="state retry --all", reason="fixed", filters="status=failed"
    )
    before = {row.target: row.state for row in plan.changes}
    with pytest.raises(RuntimeError), _failing_insert_of_log_rows(ledger):
        run_plan(ledger, plan, request)
    assert ledger.states.get_many(keys(3)) == before
    assert ledger.audit.of_partition(keys(3)[0]) == []
    done = run_plan(ledger, plan, request)
    assert done.targets(Result.DONE) == keys(3)
    for state in ledger.states.get_many(keys(3)).values():
        (logged,) = ledger.audit.of_partition(state.key)
        assert (logged.action, logged.operator, logged.command, logged.reason, logged.status_before) == (
            *("requeue", "ada", "state retry --all", "fixed"),
            Status.FAILED,
        )
        assert logged.performed_at == state.updated_at


@contextmanager
def _failing_insert_of_log_rows(ledger: Ledger) -> Iterator[None]:
    def fail_on_insert(*arguments: object) -> None:
        if "control_action_partitions" in str(arguments[2]) and "INSERT" in str(arguments[2]):
            raise RuntimeError("died")

    sa.event.listen(ledger.engine, "before_cursor_execute", fail_on_insert)
    try:
        yield
    finally:
        sa.event.remove(ledger.engine, "before_cursor_execute", fail_on_insert)


def test_named_partitions_are_skipped_with_a_reason(ledger: Ledger) -> None:
    """A partition whose status does not permit the action is skipped with the reason of the transition table."""
    record_failures(ledger, [key("1")])
    accepted_runs(ledger, [key("2")])
    named = [key("1"), key("2"), key("3")]
    skipped = skipped_in(preview(ledger, RETRY, named))
    assert "reprocess or withdraw a success instead" in str(skipped[key("2")])
    assert skipped[key("3")] == "status is absent"
    assert keys_in(preview(ledger, WITHDRAW, named)) == [key("2")]


def test_retry_needs_a_sealed_run(ledger: Ledger, tmp_path: Path) -> None:
    """A partition without a sealed run is skipped when raw runs are given."""
    record_failures(ledger, [key("1")])
    (tmp_path / "raw" / "google_ads").mkdir(parents=True)
    plan = preview(ledger, RETRY, ALL, raw=RawRuns(tmp_path / "raw"))
    assert (keys_in(plan), list(skipped_in(plan).values())) == ([], [NO_SEALED_RUN])
    assert keys_in(preview(ledger, RETRY, ALL)) == [key("1")]


def test_marks_are_cleared_before_the_requeue(ledger: Ledger) -> None:
    """Including terminal partitions clears their marks, logged as an action of its own."""
    record_failures(ledger, [key("1"), key("2")])
    ledger.actions.execute(Action.MARK_TERMINAL, [key("1")], action_request("mark"))
    plan = preview(ledger, RETRY, ALL, clear_terminal=True)
    assert [row.target for row in plan.changes if row.clears_mark] == [key("1")]
    done = run_plan(ledger, plan, action_request("retry"))
    assert (done.targets(Result.DONE), len(done.rows)) == ([key("1"), key("2")], 2)
    assert [logged.action for logged in ledger.audit.of_partition(key("1"))] == [
        "mark_terminal",
        "clear_terminal",
        "requeue",
    ]
    assert ledger.retry_queue.find_marked([key("1")]) == set()


def test_mark_after_the_preview_prevents_the_requeue(ledger: Ledger) -> None:
    """A partition that is marked after the preview is refused."""
    record_failures(ledger, [key("1")])
    plan = preview(ledger, RETRY, ALL)
    ledger.actions.execute(Action.MARK_TERMINAL, [key("1")], action_request("mark"))
    (row,) = run_plan(ledger, plan, action_request("retry")).rows
    assert (row.result, row.why) == (Result.REMAINING, "it is marked as terminal; clear the mark to retry it")


def test_due_partitions_are_requeued_in_both_lanes(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Each lane is filled to its slots; every requeue is logged and opens a request."""
    fresh, old = [key(str(n), day=28) for n in range(100, 110)], [key(str(n), day=1) for n in range(10)]
    today = clock.now.date()
    record_failures(timed_ledger, fresh + old)
    scheduler = scheduler_for(timed_ledger, today)
    assert scheduler.requeue_due(timed_ledger.actions, action_request("early"), slots=8).changed == ()
    clock.tick(timedelta(hours=1))
    result = scheduler.requeue_due(timed_ledger.actions, action_request("tick-1"), slots=8)
    requeued = {state.key for state in result.changed}
    assert (len(requeued & set(fresh)), len(requeued & set(old))) == (8, 8)
    assert {logged.action for partition in requeued for logged in timed_ledger.audit.of_partition(partition)} == {
        "requeue"
    }
    chosen = set(scheduler.next_runs(slots=8))
    assert (len(chosen & set(fresh)), len(chosen & set(old))) == (6, 2)
    assert chosen <= requeued
    assert scheduler.requeue_due(timed_ledger.actions, action_request("tick-2"), slots=8).changed == ()
    more = scheduler.requeue_due(timed_ledger.actions, action_request("tick-3"), slots=9)
    assert len(more.changed) == 2


@pytest.mark.invariant("S13")
def test_partition_that_failed_again_is_not_requeued(
    timed_ledger: Ledger, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict between the query and the requeue wins, and its own delay begins."""
    record_failures(timed_ledger, [key()])
    clock.tick(timedelta(hours=1))
    requeue = timed_ledger.actions.execute

    def fail_again_then_requeue(*args: Any, **kwargs: Any) -> ActionResult:
        record_failures(timed_ledger, [key()], "r2")
        return requeue(*args, **kwargs)

    monkeypatch.setattr(timed_ledger.actions, "execute", fail_again_then_requeue)
    scheduler = scheduler_for(timed_ledger, clock.now.date())
    result = scheduler.requeue_due(timed_ledger.actions, action_request("tick-1"), slots=8)
    assert [type(refusal) for refusal in result.refused.values()] == [StateChanged]
    assert (timed_ledger.states.get(key()).status, timed_ledger.states.get(key()).attempt_count) == (Status.FAILED, 2)
    assert scheduler.requeue_due(timed_ledger.actions, action_request("tick-2"), slots=8).changed == ()


def test_backfills_do_not_delay_fresh_days(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A due fresh day is requeued and comes first, however many backfills are requested."""
    old, fresh = keys(50), key("7", day=28)
    timed_ledger.actions.execute(Action.ENQUEUE, old, action_request("backfill"))
    record_failures(timed_ledger, [fresh])
    clock.tick(timedelta(hours=1))
    scheduler = scheduler_for(timed_ledger, clock.now.date())
    assert len(scheduler.next_runs(slots=8)) == 8
    scheduler.requeue_due(timed_ledger.actions, action_request("tick-1"), slots=8)
    chosen = list(scheduler.next_runs(slots=8))
    assert (chosen[0], len(chosen)) == (fresh, 8)


def test_enqueue_requests_unrecorded_partitions(ledger: Ledger) -> None:
    """Partitions without a row become pending and requested; recorded ones are skipped with their status."""
    record_failures(ledger, [key("1")])
    accepted_runs(ledger, [key("2")])
    ledger.registrations.insert_pending([key("3")])
    named = [key(customer) for customer in "12345"]
    plan = preview(ledger, ENQUEUE, named)
    assert keys_in(plan) == [key("4"), key("5")]
    assert skipped_in(plan) == {
        key("1"): "status is failed",
        key("2"): "status is success",
        key("3"): ALREADY_RECORDED,
    }
    ledger.registrations.insert_pending([key("5")])
    done = run_plan(ledger, plan, action_request("backfill"))
    assert [(row.target, row.result) for row in done.rows] == [
        (key("4"), Result.DONE),
        (key("5"), Result.REMAINING),
    ]
    assert scheduler_for(ledger, TODAY).next_runs(slots=9) == {key("4"): "backfill backfill after attempt 0"}
