"""Tests `rejudge`: current runs and runs without a verdict are judged by the contracts of today."""

from dataclasses import replace

import pytest

from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Action, Effect, Status
from ads_pipeline.ledger.sql.ledger_values import ActionRequest
from ads_pipeline.pipeline.actions.action_preview import DEMOTED_BY_OPERATOR, NO_RUN_TO_JUDGE, Preview
from ads_pipeline.pipeline.actions.operator_actions import REJUDGE, Plan, Result, ResultRow
from ads_pipeline.pipeline.actions.rejudging import rejudge
from ads_pipeline.pipeline.actions.row_actions import demote
from ads_pipeline.pipeline.days.restorable_runs import restore_command
from ads_pipeline.validation.contract_registry import SHIPPED, Contracts
from ads_pipeline.validation.contract_rules import CheckRule
from ads_pipeline_tests.lake.warehouse.builders import read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
)

NO_CLICKS = CheckRule(column="clicks", comparison="le", bound=-1, description="no clicks at all")


def strict_contracts() -> Contracts:
    """Contracts that reject every row of version 1."""
    rules = SHIPPED.rules(QUERY, "1")
    return Contracts({**SHIPPED.declared, (QUERY, "1"): replace(rules, checks=(*rules.checks, NO_CLICKS))})


def request(action_id: str = "act-1") -> ActionRequest:
    return ActionRequest(action_id=action_id, operator="ada", command="state rejudge", reason="stricter contract")


def preview(deployment: LocalDeployment, *customers: int) -> Plan:
    planner = Preview(ledger=deployment.ledger, policy=RetryPolicy(), action=REJUDGE)
    return planner.plan([key(customer) for customer in customers])


def planned(plan: Plan) -> list[Run]:
    return [row.run for row in plan.changes if row.run is not None]


@pytest.mark.invariant("W3", "W4", "S6", "S16")
def test_current_run_is_rejected_by_a_stricter_contract(deployment_on_each_database: LocalDeployment) -> None:
    """The validator demotes it: its rows are removed, the attempt counts, and the action is logged."""
    deployment = deployment_on_each_database
    runs = [seal_run(deployment, key(1)), seal_run(deployment, key(2), all_conversions=1.0)]
    deployment.pipeline.judge_and_load(runs)
    plan = preview(deployment, 1, 2)
    assert planned(plan) == runs
    strict = replace(deployment, contracts=strict_contracts())
    rejected, confirmed = sorted(rejudge(strict.pipeline, runs, request()), key=lambda row: str(row.target))
    assert (rejected.result, confirmed) == (Result.DONE, ResultRow(target=key(2), result=Result.DONE))
    assert (rejected.why or "").startswith("rejected: ")
    assert visible_runs(deployment) == {key(2): "r1"}
    assert set(read_with_duckdb(deployment.warehouse_location)) == {key(2)}
    attempts = [deployment.ledger.runs.attempts(key(customer))[-1] for customer in (1, 2)]
    assert [(each.effect, each.attempt_no) for each in attempts] == [(Effect.DEMOTED, 2), (Effect.CONFIRMED, 2)]
    assert {each.verdict.validation_id for each in attempts} == {"rejudge-act-1"}
    state = deployment.ledger.states.get(key(1))
    assert (state.status, state.current_run_id) == (Status.FAILED, "r1")
    for customer in (1, 2):
        (logged,) = deployment.ledger.audit.of_partition(key(customer))
        assert (logged.action, logged.operator, logged.reason) == ("rejudge", "ada", "stricter contract")
    assert deployment.differences() == []


def test_rejected_run_is_accepted_by_a_corrected_contract(deployment: LocalDeployment) -> None:
    """It is published, and the day is readable without another fetch."""
    run = seal_run(deployment, key(1))
    strict = replace(deployment, contracts=strict_contracts())
    strict.pipeline.judge_and_load([run])
    assert planned(preview(deployment, 1)) == [run]
    assert rejudge(deployment.pipeline, [run], request()) == [ResultRow(target=key(1), result=Result.DONE)]
    assert visible_runs(deployment) == {key(1): "r1"}
    assert deployment.ledger.runs.attempts(key(1))[-1].effect is Effect.PROMOTED


@pytest.mark.invariant("S8")
def test_run_without_a_verdict_gets_its_first_one(deployment: LocalDeployment) -> None:
    """The same verdict from a run of Dagster is then a repetition, and counts no attempt."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1), "r1")])
    newer = seal_run(deployment, key(1), "r2")
    deployment.pipeline.validation.seals.get_or_register([newer])
    assert planned(preview(deployment, 1)) == [newer]
    assert rejudge(deployment.pipeline, [newer], request()) == [ResultRow(target=key(1), result=Result.DONE)]
    assert visible_runs(deployment) == {key(1): "r2"}
    deployment.pipeline.judge_and_load([newer])
    assert deployment.ledger.states.get(key(1)).attempt_count == 2


def test_run_that_changed_is_rejected_and_one_that_is_gone_stays(deployment: LocalDeployment) -> None:
    """A verdict needs the files. Without them nothing changes."""
    runs = [seal_run(deployment, key(1)), seal_run(deployment, key(2))]
    deployment.pipeline.judge_and_load(runs)
    corrupt_payload(deployment, runs[0])
    (deployment.home / "raw" / runs[1].path / "metadata.json").unlink()
    changed, gone = sorted(rejudge(deployment.pipeline, runs, request()), key=lambda row: str(row.target))
    assert (changed.result, gone.result) == (Result.DONE, Result.REMAINING)
    assert visible_runs(deployment) == {key(2): "r1"}


def test_partitions_without_a_run_to_judge_are_skipped(deployment: LocalDeployment) -> None:
    """An operator's demotion is not overruled, and a retried day waits for another run."""
    demoted, rejected = seal_run(deployment, key(1)), seal_invalid_run(deployment, key(2))
    deployment.pipeline.judge_and_load([demoted, rejected])
    demote(deployment.pipeline, [demoted], request("act-2"))
    deployment.ledger.actions.execute(Action.REQUEUE, [key(2)], action_request())
    plan = preview(deployment, 1, 2)
    assert {row.target: row.why_skipped for row in plan.skipped} == {
        key(1): f"{DEMOTED_BY_OPERATOR} {restore_command(key(1).short_name, demoted.run_id)}",
        key(2): NO_RUN_TO_JUDGE,
    }
