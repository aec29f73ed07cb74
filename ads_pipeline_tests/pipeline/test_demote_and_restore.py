"""Verdicts by an operator's order: what readers get is taken back, or an earlier run is given to them again."""

from types import SimpleNamespace
from typing import Any

import pytest

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Action, Effect, Status
from ads_pipeline.ledger.values import ActionRequest
from ads_pipeline.pipeline.demote_and_restore import SUPERSEDED, demote, find_earlier_accepted, restore
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.warehouse.builders import read_with_duckdb


def demoting(action_id: str = "act-1") -> ActionRequest:
    return ActionRequest(action_id=action_id, operator="ada", command="state demote", reason="wrong account")


@pytest.mark.invariant("W3", "W4", "S16")
def test_what_is_demoted_is_gone_for_every_reader(deployment_on_each_database: LocalDeployment) -> None:
    """Nobody reads it any more, its neighbour stays, the verdict counts, and the act stands in the log once."""
    deployment = deployment_on_each_database
    bad, good = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.judge_and_load([bad, good])
    done = demote(deployment.pipeline, [bad], demoting())
    assert ([each.effect for each in done.recorded], done.refusals) == ([Effect.DEMOTED], ())
    assert visible_runs(deployment) == {good.key: "r1"}
    assert set(read_with_duckdb(deployment.home / "warehouse")) == {good.key}
    state = deployment.ledger.state(bad.key)
    assert (state.status, state.attempt_count, state.current_run_id) == (Status.FAILED, 2, "r1")
    assert state.error_message == f"{bad}: taken back by ada: wrong account"
    (act,) = deployment.ledger.partition_actions(bad.key)
    assert (act.action, act.reason, act.status_before) == ("demote", "wrong account", Status.SUCCESS)
    assert deployment.differences() == []
    again = demote(deployment.pipeline, [bad], demoting())
    assert [each.redelivered for each in again.recorded] == [True]
    assert len(deployment.ledger.partition_actions(bad.key)) == 1
    assert deployment.ledger.state(bad.key) == state


@pytest.mark.invariant("W3", "W4")
def test_a_demotion_that_died_is_finished_by_the_next_reconciliation(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hidden in the transaction that logged the act; what is left to remove and to record is a difference."""
    bad = seal_run(deployment, key(1))
    deployment.pipeline.judge_and_load([bad])
    pipeline = deployment.pipeline

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("died")

    monkeypatch.setattr(pipeline, "take_out", die)
    with pytest.raises(RuntimeError):
        demote(pipeline, [bad], demoting())
    assert visible_runs(deployment) == {}
    assert [act.action for act in deployment.ledger.partition_actions(bad.key)] == ["demote"]
    assert deployment.ledger.state(bad.key).status is Status.SUCCESS
    deployment.reconciliation.repair(source=key().source, query_name=key().query_name)
    assert deployment.ledger.state(bad.key).status is Status.FAILED
    assert read_with_duckdb(deployment.home / "warehouse") == {}
    assert deployment.differences() == []


@pytest.mark.invariant("W5", "S10", "S11")
def test_an_earlier_run_is_given_back(deployment_on_each_database: LocalDeployment) -> None:
    """The newest accepted run before the current one; the one that was taken back never comes again by itself."""
    deployment = deployment_on_each_database
    first, second = seal_run(deployment, key(1), "r1", count=1), seal_run(deployment, key(1), "r2", count=2)
    third = seal_invalid_run(deployment, key(1), "r3")
    last = seal_run(deployment, key(1), "r4", count=4)
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([second])
    deployment.pipeline.validation.judge([third])
    deployment.pipeline.judge_and_load([last])
    state = deployment.ledger.state(key(1))
    assert find_earlier_accepted(deployment.ledger, state) == second
    done = restore(deployment.pipeline, deployment.ledger, [second], demoting("restore-1"))
    assert ([each.effect for each in done.recorded], done.problems) == ([Effect.PROMOTED], {})
    assert visible_runs(deployment) == {key(1): "r2"}
    state = deployment.ledger.state(key(1))
    assert (state.status, state.current_run_id, state.record_count) == (Status.SUCCESS, "r2", 2)
    assert [act.action for act in deployment.ledger.partition_actions(key(1))] == ["restore"]
    assert deployment.differences() == []
    deployment.pipeline.judge_and_load([last])  # its verdict is known; hearing it again gives it nothing back
    assert visible_runs(deployment) == {key(1): "r2"}
    assert find_earlier_accepted(deployment.ledger, state) == first


def test_what_would_be_rejected_today_is_not_given_back(deployment: LocalDeployment) -> None:
    """The earlier run is judged again first; if it does not pass, readers keep what they have."""
    first, second = seal_run(deployment, key(1), "r1"), seal_run(deployment, key(1), "r2")
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([second])
    corrupt_payload(deployment, first)
    before = deployment.ledger.state(key(1))
    done = restore(deployment.pipeline, deployment.ledger, [first], demoting("restore-1"))
    assert "it would be rejected today" in done.problems[key(1)]
    assert (deployment.ledger.state(key(1)), visible_runs(deployment)) == (before, {key(1): "r2"})
    assert deployment.ledger.partition_actions(key(1)) == []
    gone = Run(key=key(2), run_id="r1")
    done = restore(deployment.pipeline, deployment.ledger, [gone], demoting("restore-2"))
    assert list(done.problems) == [key(2)]


@pytest.mark.parametrize("lost_by", ["demote", "withdraw"])
def test_what_was_taken_back_can_be_given_back_by_order(deployment: LocalDeployment, lost_by: str) -> None:
    """A withdrawn run needs no other; one that was demoted was rejected, so only one before it comes by itself."""
    first, second = seal_run(deployment, key(1), "r1"), seal_run(deployment, key(1), "r2")
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([second])
    if lost_by == "demote":
        demote(deployment.pipeline, [second], demoting())
    else:
        deployment.ledger.execute(Action.WITHDRAW, [key(1)], action_request())
    assert visible_runs(deployment) == {}
    found = find_earlier_accepted(deployment.ledger, deployment.ledger.state(key(1)))
    assert found == (first if lost_by == "demote" else second)
    restore(
        deployment.pipeline, deployment.ledger, [second], demoting("restore-1")
    )  # named, it is the operator's word
    assert visible_runs(deployment) == {key(1): "r2"}
    assert deployment.ledger.state(key(1)).status is Status.SUCCESS


@pytest.mark.invariant("S10")
def test_a_newer_run_that_comes_in_between_stays(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not what the operator took back: readers get it, and the operator is told to look again."""
    for run_id in ("r1", "r2"):
        deployment.pipeline.judge_and_load([seal_run(deployment, key(1), run_id)])
    pipeline, validation = deployment.pipeline, deployment.pipeline.validation

    def late(*words: Any, **how: Any) -> Any:
        deployment.pipeline.judge_and_load([seal_run(deployment, key(1), "r3")])
        return validation.record(*words, **how)

    monkeypatch.setattr(pipeline, "validation", SimpleNamespace(evaluate=validation.evaluate, record=late))
    first = Run(key=key(1), run_id="r1")
    done = restore(pipeline, deployment.ledger, [first], demoting("restore-1"))
    assert (done.recorded, done.problems) == ([], {key(1): SUPERSEDED})
    assert visible_runs(deployment) == {key(1): "r3"}
    assert deployment.differences() == []
