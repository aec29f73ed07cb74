"""Tests control actions on partitions, and their log."""

import pytest

from ads_pipeline.domain.errors import ActionIdReused, BadName, LedgerRefused
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline_tests.ledger.builders import (
    accepted_runs,
    action_request,
    key,
    keys,
    record_verdict,
    registered_runs,
    rejection,
)


def failed(ledger: Ledger, customer_id: str) -> None:
    (bad,) = registered_runs(ledger, key(customer_id), "r1")
    record_verdict(ledger, rejection(bad))


def test_requeue_changes_only_failed_partitions(ledger: Ledger) -> None:
    """Failed becomes pending; pending and absent stay; a success is refused with an alternative."""
    absent, pending, success = key("1"), key("2"), key("3")
    failed(ledger, "4")
    ledger.registrations.insert_pending([pending])
    accepted_runs(ledger, [success])
    result = ledger.actions.execute(Action.REQUEUE, [absent, pending, success, key("4")], action_request())
    assert [state.key for state in result.changed] == [key("4")]
    assert result.unchanged == (absent, pending)
    (refusal,) = result.refused.values()
    assert str(success) in str(refusal)
    assert "reprocess or withdraw a success instead" in str(refusal)
    requeued = ledger.states.get(key("4"))
    assert (requeued.status, requeued.error_message, requeued.attempt_count) == (
        Status.PENDING,
        "r1: bad in 1 row",
        1,
    )
    assert ledger.states.get(absent).updated_at is None
    assert ledger.states.get(success).status is Status.SUCCESS


def test_withdraw_keeps_current_run_and_attempt_count(ledger: Ledger) -> None:
    """A withdrawn success is pending with the same run and no error message; the log has the reason."""
    partition = key()
    accepted_runs(ledger, [partition])
    ledger.actions.execute(Action.WITHDRAW, [partition], action_request(reason="wrong account"))
    state = ledger.states.get(partition)
    assert (state.status, state.current_run_id, state.error_message, state.attempt_count) == (
        Status.PENDING,
        "r1",
        None,
        1,
    )
    (logged,) = ledger.audit.of_partition(partition)
    assert (logged.action, logged.operator, logged.reason, logged.status_before) == (
        "withdraw",
        "ada",
        "wrong account",
        Status.SUCCESS,
    )


def test_enqueue_inserts_only_missing_rows(ledger: Ledger) -> None:
    """A backfill inserts pending rows and changes no existing row."""
    partitions = keys(4)
    accepted_runs(ledger, partitions[:1])
    before = ledger.states.get(partitions[0])
    result = ledger.actions.execute(Action.ENQUEUE, partitions, action_request())
    assert [state.key for state in result.changed] == partitions[1:]
    assert ledger.states.get(partitions[0]) == before
    assert all(ledger.states.get(partition).updated_at for partition in partitions)


def test_reprocess_leaves_the_state_unchanged(ledger: Ledger) -> None:
    """A success keeps its state until a new run is judged."""
    partition = key()
    accepted_runs(ledger, [partition])
    before = ledger.states.get(partition)
    result = ledger.actions.execute(Action.REPROCESS, [partition], action_request())
    assert result.changed == (before,)
    assert ledger.states.get(partition) == before


def test_repeated_request_is_executed_once(ledger: Ledger) -> None:
    """The second call returns the first result and does not requeue a partition that failed again."""
    failed(ledger, "4")
    first = ledger.actions.execute(Action.REQUEUE, [key("4"), key("5")], action_request())
    (again,) = registered_runs(ledger, key("4"), "r2")
    record_verdict(ledger, rejection(again))
    second = ledger.actions.execute(Action.REQUEUE, [key("4"), key("5")], action_request())
    assert [state.key for state in second.changed] == [state.key for state in first.changed]
    assert second.unchanged == first.unchanged
    assert ledger.states.get(key("4")).status is Status.FAILED
    assert len(ledger.audit.of_partition(key("4"))) == 1


def test_action_id_names_one_action(ledger: Ledger) -> None:
    """Another action with a used id is refused and changes nothing."""
    accepted_runs(ledger, [key()])
    ledger.actions.execute(Action.ENQUEUE, [key("2")], action_request())
    with pytest.raises(ActionIdReused):
        ledger.actions.execute(Action.WITHDRAW, [key()], action_request())
    assert ledger.states.get(key()).status is Status.SUCCESS


@pytest.mark.parametrize("action_id", ["", "a b", "a|b", "-a", "a\n", "a" * 97])
def test_action_id_must_be_valid_in_an_event(action_id: str) -> None:
    """An id that an event cannot carry is refused before anything is written."""
    with pytest.raises(BadName, match="action_id"):
        action_request(action_id)


def test_action_and_log_commit_together(ledger: Ledger) -> None:
    """When the log row is refused, the state does not change."""
    failed(ledger, "4")
    without_operator = ActionRequest(action_id="act-1", operator="", command="state retry", reason="x")
    with pytest.raises(LedgerRefused):
        ledger.actions.execute(Action.REQUEUE, [key("4")], without_operator)
    assert ledger.states.get(key("4")).status is Status.FAILED
