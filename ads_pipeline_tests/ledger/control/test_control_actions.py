"""Control acts on partitions, and the log they leave."""

import pytest

from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.errors import ActionIdReused, BadName, LedgerRefused
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import ActionRequest
from ads_pipeline_tests.ledger.builders import accepted_runs, key, keys, registered_runs, action_request, rejection


def failed(ledger: Ledger, customer_id: str) -> None:
    (bad,) = registered_runs(ledger, key(customer_id), "r1")
    ledger.record_verdict(rejection(bad))


def test_requeue_moves_the_failed_and_says_what_it_left(ledger: Ledger) -> None:
    """Failed becomes pending; pending and absent stay; a success is refused with what to do instead."""
    absent, pending, success = key("1"), key("2"), key("3")
    failed(ledger, "4")
    ledger.insert_pending([pending])
    accepted_runs(ledger, [success])
    acted = ledger.execute(Action.REQUEUE, [absent, pending, success, key("4")], action_request())
    assert [state.key for state in acted.changed] == [key("4")]
    assert acted.unchanged == (absent, pending)
    (refusal,) = acted.refused
    assert str(success) in str(refusal)
    assert "reprocessed or withdrawn" in str(refusal)
    requeued = ledger.state(key("4"))
    assert (requeued.status, requeued.error_message, requeued.attempt_count) == (Status.PENDING, "r1 is bad", 1)
    assert ledger.state(absent).updated_at is None
    assert ledger.state(success).status is Status.SUCCESS


def test_withdrawing_keeps_the_authority_and_the_count(ledger: Ledger) -> None:
    """A withdrawn success is pending, still knows its run, and its message stays empty: the reason is in the log."""
    partition = key()
    accepted_runs(ledger, [partition])
    ledger.execute(Action.WITHDRAW, [partition], action_request(reason="wrong account"))
    state = ledger.state(partition)
    assert (state.status, state.current_run_id, state.error_message, state.attempt_count) == (
        Status.PENDING,
        "r1",
        None,
        1,
    )
    (act,) = ledger.partition_actions(partition)
    assert (act.action, act.operator, act.reason, act.status_before) == (
        "withdraw",
        "ada",
        "wrong account",
        Status.SUCCESS,
    )


def test_enqueueing_makes_only_absent_rows(ledger: Ledger) -> None:
    """A backfill adds pending rows where there are none and touches nothing else."""
    partitions = keys(4)
    accepted_runs(ledger, partitions[:1])
    before = ledger.state(partitions[0])
    acted = ledger.execute(Action.ENQUEUE, partitions, action_request())
    assert [state.key for state in acted.changed] == partitions[1:]
    assert ledger.state(partitions[0]) == before
    assert all(ledger.state(partition).updated_at for partition in partitions)


def test_requesting_reprocessing_leaves_the_state_alone(ledger: Ledger) -> None:
    """A success stays what it is until a new run is judged; only the log and the request tell of it."""
    partition = key()
    accepted_runs(ledger, [partition])
    before = ledger.state(partition)
    acted = ledger.execute(Action.REPROCESS, [partition], action_request())
    assert acted.changed == (before,)
    assert ledger.state(partition) == before


def test_an_act_sent_twice_happens_once(ledger: Ledger) -> None:
    """The second answer is the first one's, and the partition that failed again meanwhile is not requeued again."""
    failed(ledger, "4")
    first = ledger.execute(Action.REQUEUE, [key("4"), key("5")], action_request())
    (again,) = registered_runs(ledger, key("4"), "r2")
    ledger.record_verdict(rejection(again))
    second = ledger.execute(Action.REQUEUE, [key("4"), key("5")], action_request())
    assert [state.key for state in second.changed] == [state.key for state in first.changed]
    assert second.unchanged == first.unchanged
    assert ledger.state(key("4")).status is Status.FAILED
    assert len(ledger.partition_actions(key("4"))) == 1


def test_an_action_id_names_one_action(ledger: Ledger) -> None:
    """Another act under a used id is refused and changes nothing."""
    accepted_runs(ledger, [key()])
    ledger.execute(Action.ENQUEUE, [key("2")], action_request())
    with pytest.raises(ActionIdReused):
        ledger.execute(Action.WITHDRAW, [key()], action_request())
    assert ledger.state(key()).status is Status.SUCCESS


@pytest.mark.parametrize("action_id", ["", "a b", "a|b", "-a", "a\n", "a" * 97])
def test_an_action_id_fits_into_an_event(action_id: str) -> None:
    """An id that the events caused by the act could not carry is refused before anything is done."""
    with pytest.raises(BadName, match="action_id"):
        action_request(action_id)


def test_an_act_and_its_log_commit_together(ledger: Ledger) -> None:
    """When the log cannot be written, the act has not happened."""
    failed(ledger, "4")
    nameless = ActionRequest(action_id="act-1", operator="", command="state retry", reason="x")
    with pytest.raises(LedgerRefused):
        ledger.execute(Action.REQUEUE, [key("4")], nameless)
    assert ledger.state(key("4")).status is Status.FAILED
