"""Tests `demote` and `restore`: verdicts, visible rows and the log."""

from types import SimpleNamespace
from typing import Any

import pytest

from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Effect, Status
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, DayWindow
from ads_pipeline.pipeline.actions.action_preview import Preview
from ads_pipeline.pipeline.actions.operator_actions import RESTORE, Result, ResultRow
from ads_pipeline.pipeline.actions.row_actions import SUPERSEDED, demote, restore
from ads_pipeline.pipeline.hidden_rows import HiddenRows
from ads_pipeline_tests.lake.warehouse.builders import read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
)


def override_request(action_id: str = "act-1") -> ActionRequest:
    return ActionRequest(action_id=action_id, operator="ada", command="state demote", reason="wrong account")


def done(key: PartitionKey) -> ResultRow:
    return ResultRow(target=key, result=Result.DONE)


def find_earlier_run(deployment: LocalDeployment) -> Run | None:
    """The run that a restore would publish again."""
    preview = Preview(ledger=deployment.ledger, policy=RetryPolicy(), action=RESTORE)
    return next((row.run for row in preview.plan([key(1)]).changes), None)


@pytest.mark.invariant("W3", "W4", "S16")
def test_demoted_run_is_hidden_from_every_reader(deployment_on_each_database: LocalDeployment) -> None:
    """Other partitions stay visible, the verdict counts as an attempt, and the action is logged once."""
    deployment = deployment_on_each_database
    bad, good = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.judge_and_load([bad, good])
    assert demote(deployment.pipeline, [bad], override_request()) == [done(bad.key)]
    assert deployment.ledger.runs.attempts(bad.key)[-1].effect is Effect.DEMOTED
    assert visible_runs(deployment) == {good.key: "r1"}
    assert set(read_with_duckdb(deployment.warehouse_location)) == {good.key}
    state = deployment.ledger.states.get(bad.key)
    assert (state.status, state.attempt_count, state.current_run_id) == (Status.FAILED, 2, "r1")
    assert state.error_message == f"{bad.run_id}: demoted by ada: wrong account"
    (logged,) = deployment.ledger.audit.of_partition(bad.key)
    assert (logged.action, logged.reason, logged.status_before) == ("demote", "wrong account", Status.SUCCESS)
    assert deployment.differences() == []
    assert demote(deployment.pipeline, [bad], override_request()) == [done(bad.key)]
    assert len(deployment.ledger.runs.attempts(bad.key)) == 2
    assert len(deployment.ledger.audit.of_partition(bad.key)) == 1
    assert deployment.ledger.states.get(bad.key) == state


@pytest.mark.invariant("W3", "W4")
def test_reconcile_finishes_an_interrupted_demotion(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first transaction hides the run and logs the action; reconcile removes the rows and records the verdict."""
    bad = seal_run(deployment, key(1))
    deployment.pipeline.judge_and_load([bad])
    pipeline = deployment.pipeline

    def die(*_: Any, **__: Any) -> None:
        raise RuntimeError("died")

    with monkeypatch.context() as patch:
        patch.setattr(HiddenRows, "remove", die)
        with pytest.raises(RuntimeError):
            demote(pipeline, [bad], override_request())
    assert visible_runs(deployment) == {}
    assert [logged.action for logged in deployment.ledger.audit.of_partition(bad.key)] == ["demote"]
    assert deployment.ledger.states.get(bad.key).status is Status.SUCCESS
    deployment.reconciliation.repair(DayWindow(source=key().source, query_name=key().query_name))
    assert deployment.ledger.states.get(bad.key).status is Status.FAILED
    assert read_with_duckdb(deployment.warehouse_location) == {}
    assert deployment.differences() == []


@pytest.mark.invariant("W5", "S10", "S11")
def test_restore_publishes_the_earlier_accepted_run(deployment_on_each_database: LocalDeployment) -> None:
    """The newest accepted run before the current one becomes current, and the rejected one stays hidden."""
    deployment = deployment_on_each_database
    first, second = seal_run(deployment, key(1), "r1", count=1), seal_run(deployment, key(1), "r2", count=2)
    third = seal_invalid_run(deployment, key(1), "r3")
    last = seal_run(deployment, key(1), "r4", count=4)
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([second])
    deployment.pipeline.validation.judge([third])
    deployment.pipeline.judge_and_load([last])
    assert find_earlier_run(deployment) == second
    result = restore(deployment.pipeline, deployment.ledger.states, [second], override_request("restore-1"))
    assert result == [done(key(1))]
    assert deployment.ledger.runs.attempts(key(1))[-1].effect is Effect.PROMOTED
    assert visible_runs(deployment) == {key(1): "r2"}
    state = deployment.ledger.states.get(key(1))
    assert (state.status, state.current_run_id, state.record_count) == (Status.SUCCESS, "r2", 2)
    assert [logged.action for logged in deployment.ledger.audit.of_partition(key(1))] == ["restore"]
    assert deployment.differences() == []
    deployment.pipeline.judge_and_load([last])  # known verdict: nothing is published
    assert visible_runs(deployment) == {key(1): "r2"}
    assert find_earlier_run(deployment) == first


def test_run_that_is_rejected_now_is_not_restored(deployment: LocalDeployment) -> None:
    """The validator judges the earlier run again; if it rejects the run, nothing changes."""
    first, second = seal_run(deployment, key(1), "r1"), seal_run(deployment, key(1), "r2")
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([second])
    corrupt_payload(deployment, first)
    before = deployment.ledger.states.get(key(1))
    result = restore(deployment.pipeline, deployment.ledger.states, [first], override_request("restore-1"))
    (row,) = result
    assert (row.target, row.result) == (key(1), Result.REMAINING)
    assert str(row.why).startswith("the validator rejects it now: ")
    assert (deployment.ledger.states.get(key(1)), visible_runs(deployment)) == (before, {key(1): "r2"})
    assert deployment.ledger.audit.of_partition(key(1)) == []
    missing = Run(key=key(2), run_id="r1")
    result = restore(deployment.pipeline, deployment.ledger.states, [missing], override_request("restore-2"))
    assert [(row.target, row.result) for row in result] == [(key(2), Result.REMAINING)]


@pytest.mark.parametrize("cause", ["demote", "withdraw"])
def test_demoted_or_withdrawn_run_can_be_restored_by_name(deployment: LocalDeployment, cause: str) -> None:
    """Without a name, a withdrawn run is offered again, and a demoted one is not."""
    first, second = seal_run(deployment, key(1), "r1"), seal_run(deployment, key(1), "r2")
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([second])
    if cause == "demote":
        demote(deployment.pipeline, [second], override_request())
    else:
        deployment.ledger.actions.execute(Action.WITHDRAW, [key(1)], action_request())
    assert visible_runs(deployment) == {}
    found = find_earlier_run(deployment)
    assert found == (first if cause == "demote" else second)
    restore(deployment.pipeline, deployment.ledger.states, [second], override_request("restore-1"))
    assert visible_runs(deployment) == {key(1): "r2"}
    assert deployment.ledger.states.get(key(1)).status is Status.SUCCESS


@pytest.mark.invariant("S10")
def test_newer_run_accepted_meanwhile_stays_current(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was accepted after the preview is not demoted, and the operator must preview again."""
    for run_id in ("r1", "r2"):
        deployment.pipeline.judge_and_load([seal_run(deployment, key(1), run_id)])
    pipeline, validation = deployment.pipeline, deployment.pipeline.validation

    def accept_newer_then_record(*args: Any, **kwargs: Any) -> Any:
        deployment.pipeline.judge_and_load([seal_run(deployment, key(1), "r3")])
        return validation.record(*args, **kwargs)

    monkeypatch.setattr(
        pipeline, "validation", SimpleNamespace(evaluate=validation.evaluate, record=accept_newer_then_record)
    )
    first = Run(key=key(1), run_id="r1")
    result = restore(pipeline, deployment.ledger.states, [first], override_request("restore-1"))
    assert result == [ResultRow(target=key(1), result=Result.REMAINING, why=SUPERSEDED)]
    assert visible_runs(deployment) == {key(1): "r3"}
    assert deployment.differences() == []
