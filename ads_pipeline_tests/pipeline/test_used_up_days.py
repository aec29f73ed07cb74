"""A pending day whose fetches used up their tries: each command requests it again, and all messages say so."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ads_pipeline.domain.errors import MarkedTerminal
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.quota import Hold
from ads_pipeline.domain.fetching.retry_forecast import Parking
from ads_pipeline.domain.fetching.retry_policy import Lane, RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.pipeline.actions.action_preview import (
    ALREADY_REQUESTED,
    NO_FAILED_FETCH,
    PARKED,
    REQUESTING,
    Preview,
    Selection,
)
from ads_pipeline.pipeline.actions.operator_actions import (
    CLEAR,
    ENQUEUE,
    RELEASE,
    REPROCESS,
    RETRY,
    OperatorAction,
    Report,
    Result,
    execute,
    performer,
)
from ads_pipeline.pipeline.days.next_steps import PartitionFacts, next_command, next_steps
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    accepted_runs,
    action_request,
    key,
    record_verdict,
    registered_runs,
    rejection,
)

SOURCE, POLICY = "google_ads", RetryPolicy()
DAY, OTHER = key("1001"), key("1002")
ALL = StateFilter(source=SOURCE)


@pytest.fixture
def ledger(url: str, clock: FakeClock) -> Iterator[Ledger]:
    with Ledger.opened(url, clock=clock) as opened:
        yield opened


def fail(
    ledger: Ledger, clock: FakeClock, *days: PartitionKey, error_class: str = "transient", times: int = 6
) -> None:
    for _ in range(times):
        fetches = [FailedFetch(key=each, error_class=error_class, error_message="reset") for each in days]
        ledger.failed_fetches.record(fetches, POLICY)
        clock.tick(timedelta(hours=3))


def due(ledger: Ledger, clock: FakeClock) -> set[PartitionKey]:
    queue, today = ledger.retry_queue, clock.now.date()
    found = [each.key for lane in Lane for each in queue.find_due(POLICY, lane, source=SOURCE, today=today)]
    found += [each.key for lane in Lane for each in queue.find_due_requests(POLICY, lane, source=SOURCE, today=today)]
    return set(found)


def run_action(
    ledger: Ledger, action: OperatorAction, selection: Selection, name: str = "action-1", **own: Any
) -> Report:
    plan = Preview(ledger=ledger, policy=POLICY, action=action, **own).plan(selection)
    return execute(plan, action_request(name), performer(action, ledger.actions))


@pytest.mark.invariant("L1", "L3")
@pytest.mark.parametrize("action", REQUESTING, ids=lambda action: action.name)
def test_each_command_requests_a_used_up_day(
    ledger: Ledger, clock: FakeClock, tmp_path: Path, action: OperatorAction
) -> None:
    """The day is due at once, its count begins anew, and the log has the command. Nothing is readable meanwhile."""
    fail(ledger, clock, DAY)
    assert due(ledger, clock) == set()
    raw = RawRuns(tmp_path / "raw", is_in_use=lambda: False)
    own: dict[str, Any] = {"raw": raw} if action is RETRY else {}
    report = run_action(ledger, action, [DAY], **own)
    assert report.targets(Result.DONE) == [DAY]
    assert due(ledger, clock) == {DAY}
    assert ledger.states.get(DAY).status is Status.PENDING
    assert [each.partitions_changed for each in ledger.audit.parts("action-1")] == [1]
    clock.tick()
    fail(ledger, clock, DAY, times=1)
    assert ledger.retry_queue.find_failures([DAY])[DAY].failures == 1
    fail(ledger, clock, DAY, times=5)
    assert due(ledger, clock) == set()
    assert run_action(ledger, action, [DAY], "again", **own).targets(Result.DONE) == [DAY]


@pytest.mark.parametrize("action", [RETRY, REPROCESS, CLEAR], ids=lambda action: action.name)
def test_filter_finds_used_up_days(ledger: Ledger, clock: FakeClock, action: OperatorAction) -> None:
    """A filter selects them too. A pending day without a failed fetch is left out with that reason."""
    fail(ledger, clock, DAY)
    ledger.actions.execute(Action.ENQUEUE, [OTHER], action_request("enqueue"))
    plan = Preview(ledger=ledger, policy=POLICY, action=action).plan(ALL)
    assert [row.target for row in plan.changes] == [DAY]
    assert [each.count for each in plan.left_out] == [1]
    if action is not CLEAR:
        assert NO_FAILED_FETCH in plan.left_out[0].reason


def test_retry_of_several_kinds_of_days(ledger: Ledger, clock: FakeClock) -> None:
    """Reprocessing a success and a used-up day in one command does each in its own way."""
    accepted_runs(ledger, [OTHER])
    fail(ledger, clock, DAY)
    report = run_action(ledger, REPROCESS, [DAY, OTHER])
    assert set(report.targets(Result.DONE)) == {DAY, OTHER}
    assert due(ledger, clock) == {DAY, OTHER}


def test_reread_whose_request_used_up_its_tries_is_requested_again(ledger: Ledger, clock: FakeClock) -> None:
    """An open request refuses a second one only until its fetches have failed."""
    accepted_runs(ledger, [DAY])
    clock.tick()
    run_action(ledger, REPROCESS, [DAY])
    plan = Preview(ledger=ledger, policy=POLICY, action=REPROCESS).plan([DAY])
    assert [row.why_skipped for row in plan.skipped] == [ALREADY_REQUESTED]
    clock.tick()
    fail(ledger, clock, DAY)
    assert due(ledger, clock) == set()
    assert run_action(ledger, REPROCESS, [DAY], "again").targets(Result.DONE) == [DAY]
    assert due(ledger, clock) == {DAY}


def test_parked_day_names_the_release(ledger: Ledger, clock: FakeClock) -> None:
    """A request would wait for the release, so the command says so; a release makes the day due."""
    fail(ledger, clock, DAY, error_class="permission_denied", times=1)
    plan = Preview(ledger=ledger, policy=POLICY, action=RETRY).plan([DAY])
    assert [row.why_skipped for row in plan.skipped] == [PARKED]
    released = Parking(source=SOURCE, scope="customer", name=DAY.customer_id)
    assert run_action(ledger, RELEASE, released).targets(Result.DONE) == [released]
    assert due(ledger, clock) == {DAY}


def test_mark_of_a_pending_day_is_cleared_with_the_retry(ledger: Ledger, clock: FakeClock) -> None:
    """A marked day is not requested behind the operator's back."""
    (rejected,) = registered_runs(ledger, DAY, "r1")
    record_verdict(ledger, rejection(rejected))
    ledger.actions.execute(Action.MARK_TERMINAL, [DAY], action_request("mark"))
    accepted_runs(ledger, [DAY], "r2")
    clock.tick()
    ledger.actions.execute(Action.WITHDRAW, [DAY], action_request("withdraw"))
    clock.tick()
    fail(ledger, clock, DAY)
    refused = ledger.actions.execute(Action.REQUEUE, [DAY], action_request("requeue")).refused
    assert isinstance(refused[DAY], MarkedTerminal)
    assert run_action(ledger, RETRY, [DAY]).rows == ()
    assert run_action(ledger, RETRY, [DAY], "clear", clear_terminal=True).targets(Result.DONE) == [DAY]
    assert due(ledger, clock) == {DAY}


@pytest.mark.invariant("L7")
def test_advice_for_a_used_up_day_and_a_held_one() -> None:
    """The next command is the one that works: retry for a day that was given up, release for a day on hold."""
    used_up = PartitionFacts(
        query_name="q", partition="1001/q/2026-02-01", status=Status.PENDING, given_up="6 failures in a row"
    )
    assert next_command(used_up) == "ads-pipeline state retry 1001/q/2026-02-01 --reason TEXT"
    assert "given up, 6 failures in a row" in str(next_steps(used_up)[0])
    hold = Hold(source=SOURCE, until=FakeClock().now, why="the source does not answer")
    held = PartitionFacts(query_name="q", status=Status.PENDING, held=str(hold), release_hold=hold.release_command)
    assert next_command(held) == "ads-pipeline state release --source google_ads --reason TEXT"


@pytest.mark.invariant("L11")
def test_release_of_a_hold_is_previewed(ledger: Ledger, clock: FakeClock) -> None:
    """A source that is neither parked nor on hold has nothing to release."""
    target = Parking(source=SOURCE, scope="source", name=SOURCE)
    assert run_action(ledger, RELEASE, target, "early").rows == ()
    ledger.quota.hold(Hold(source=SOURCE, until=clock.now + timedelta(days=365), why="retry in a year"))
    plan = Preview(ledger=ledger, policy=POLICY, action=RELEASE).plan(target)
    assert [row.now for row in plan.changes] == ["on hold"]
    assert run_action(ledger, RELEASE, target).targets(Result.DONE) == [target]
    assert ledger.quota.list_holds(SOURCE) == ()


def test_enqueue_takes_a_day_that_waits_for_its_retry(ledger: Ledger, clock: FakeClock) -> None:
    """A day that would be fetched later is fetched now."""
    ledger.failed_fetches.record(
        [
            FailedFetch(
                key=DAY, error_class="quota_exhausted", error_message="q", wait_until=clock.now + timedelta(hours=9)
            )
        ],
        POLICY,
    )
    clock.tick()
    assert due(ledger, clock) == set()
    assert run_action(ledger, ENQUEUE, [DAY]).targets(Result.DONE) == [DAY]
    assert due(ledger, clock) == {DAY}
