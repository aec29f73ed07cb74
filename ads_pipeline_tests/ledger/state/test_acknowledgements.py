"""Which days the ledger counts as acknowledged: those with no event since an operator said so."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from ads_pipeline.domain.days.day_facts import Acknowledgement
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import RETRY_POLICY, RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.consistency.inspection import LedgerInspection
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, DayWindow
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
)

POLICY = RetryPolicy(max_age=timedelta(days=100_000))
ABSENT, DAY = key(day=1), key(day=2)
WINDOW = DayWindow(source=DAY.source, query_name=DAY.query_name)
Change = Callable[[Ledger], object]


def acknowledge(ledger: Ledger, *days: PartitionKey, action_id: str = "known") -> None:
    request = action_request(action_id, reason="the account closed")
    result = ledger.actions.execute(Action.ACKNOWLEDGE, days, request)
    assert {state.key for state in result.changed} == set(days)


def acknowledged(ledger: Ledger) -> set[PartitionKey]:
    found = ledger.days.acknowledged(WINDOW)
    return {each for each in (ABSENT, DAY) if (each.customer_id, each.logical_date) in found}


def fail_fetch(ledger: Ledger, partition: PartitionKey, error_class: str) -> object:
    failed = FailedFetch(key=partition, error_class=error_class, error_message="no")
    return ledger.failed_fetches.record([failed], POLICY)


def requeue_automatically(ledger: Ledger) -> object:
    request = ActionRequest(action_id="retry-1", operator=RETRY_POLICY, command="sensor retries_due", reason="due")
    return ledger.actions.execute(Action.REQUEUE, [DAY], request)


def test_acknowledgement_names_operator_reason_and_time(url: str, timed_ledger: Ledger, clock: FakeClock) -> None:
    """A day without a row is acknowledged too, and gets no row by it. The log and the event tell who did it."""
    record_verdict(timed_ledger, rejection(registered_runs(timed_ledger, DAY, "r1")[0]))
    clock.tick()
    at = clock.now
    acknowledge(timed_ledger, ABSENT, DAY)
    clock.tick()
    expected = Acknowledgement("ada", "the account closed", at)
    assert timed_ledger.days.acknowledged(WINDOW) == {
        (each.customer_id, each.logical_date): expected for each in (ABSENT, DAY)
    }
    assert timed_ledger.states.get_many([ABSENT])[ABSENT].recorded_status is None
    assert timed_ledger.states.get_many([DAY])[DAY].status is Status.FAILED
    assert [each.action for each in timed_ledger.audit.of_partition(ABSENT)] == ["acknowledge"]
    with LedgerInspection.opened(url) as inspection:
        assert list(inspection.find_contradictions()) == []


@pytest.mark.invariant("S14")
def test_repeated_request_is_executed_once(timed_ledger: Ledger) -> None:
    """A request that is sent twice, such as after a lost connection, is logged once and has the same result."""
    for _ in range(2):
        acknowledge(timed_ledger, ABSENT)
    assert len(timed_ledger.audit.of_partition(ABSENT)) == 1


@pytest.mark.invariant("L2")
@pytest.mark.parametrize(
    "change",
    [
        lambda ledger: registered_runs(ledger, DAY, "r2"),
        lambda ledger: record_verdict(ledger, rejection(run(DAY, "r1"), "again", validation_id="v2")),
        lambda ledger: ledger.actions.execute(Action.REQUEUE, [DAY], action_request("again")),
        lambda ledger: ledger.actions.execute(Action.MARK_TERMINAL, [DAY], action_request("mark")),
        lambda ledger: [requeue_automatically(ledger), fail_fetch(ledger, DAY, "transient")],
    ],
    ids=["run", "verdict", "action", "mark", "failed fetch"],
)
def test_next_event_of_the_day_undoes_it(timed_ledger: Ledger, clock: FakeClock, change: Change) -> None:
    """Nobody has to clear anything: an event that is newer than the acknowledgement counts instead."""
    record_verdict(timed_ledger, rejection(registered_runs(timed_ledger, DAY, "r1")[0]))
    clock.tick()
    acknowledge(timed_ledger, ABSENT, DAY)
    clock.tick()
    assert acknowledged(timed_ledger) == {ABSENT, DAY}
    change(timed_ledger)
    kept = timed_ledger.days.acknowledged(WINDOW)
    assert (ABSENT.customer_id, ABSENT.logical_date) in kept
    day = kept.get((DAY.customer_id, DAY.logical_date))
    assert day is None or day.is_terminal  # a terminal mark is an acknowledgement of its own


def test_load_and_demotion_undo_it(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Both change what readers see, before any verdict."""
    accepted_runs(timed_ledger, [DAY])
    acknowledge(timed_ledger, DAY)
    clock.tick()
    publish_runs(timed_ledger, run(DAY, "r1"))
    assert acknowledged(timed_ledger) == set()
    clock.tick()
    acknowledge(timed_ledger, DAY, action_id="known-2")
    clock.tick()
    assert acknowledged(timed_ledger) == {DAY}
    timed_ledger.verdicts.begin_demotions([rejection(run(DAY, "r1"), validation_id="v2")])
    assert acknowledged(timed_ledger) == set()


def test_verdict_undoes_it_although_the_clock_went_back(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Verdicts and actions are ordered by the number of attempts, not by their times."""
    (first,) = registered_runs(timed_ledger, DAY, "r1")
    acknowledge(timed_ledger, DAY)
    clock.tick(timedelta(hours=-1))
    record_verdict(timed_ledger, acceptance(first))
    assert acknowledged(timed_ledger) == set()


def test_retries_that_fail_as_before_do_not_undo_it(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The retry policy goes on by itself. A fetch that fails in another way than before is news."""
    fail_fetch(timed_ledger, DAY, "transient")
    clock.tick()
    acknowledge(timed_ledger, DAY)
    for _ in range(3):
        clock.tick(timedelta(hours=2))
        fail_fetch(timed_ledger, DAY, "transient")
    assert acknowledged(timed_ledger) == {DAY}
    fail_fetch(timed_ledger, DAY, "timed_out")
    assert acknowledged(timed_ledger) == set()


def test_automatic_retry_does_not_undo_it(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A rejected day is fetched again by itself; the next run is what undoes the acknowledgement."""
    record_verdict(timed_ledger, rejection(registered_runs(timed_ledger, DAY, "r1")[0]))
    acknowledge(timed_ledger, DAY)
    clock.tick()
    assert requeue_automatically(timed_ledger)
    assert timed_ledger.states.get_many([DAY])[DAY].status is Status.PENDING
    clock.tick()
    assert acknowledged(timed_ledger) == {DAY}
    registered_runs(timed_ledger, DAY, "r2")
    assert acknowledged(timed_ledger) == set()


def test_day_that_an_operator_marked_as_terminal_is_acknowledged(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Who gives a day up knows its problem. Clearing the mark is an action, and undoes it."""
    record_verdict(timed_ledger, rejection(registered_runs(timed_ledger, DAY, "r1")[0]))
    timed_ledger.actions.execute(Action.MARK_TERMINAL, [DAY], action_request("mark", reason="no such day"))
    (mark,) = timed_ledger.days.acknowledged(WINDOW).values()
    assert str(mark) == f"marked as terminal by ada at {clock.now:%Y-%m-%d %H:%M} UTC: no such day"
    clock.tick()
    timed_ledger.actions.execute(Action.CLEAR_TERMINAL, [DAY], action_request("clear"))
    assert acknowledged(timed_ledger) == set()
