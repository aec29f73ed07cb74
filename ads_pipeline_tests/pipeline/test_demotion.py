"""A demotion hides the rows, then removes them, and only then records the failure."""

from collections.abc import Sequence
from typing import Any

import pytest

from ads_pipeline.domain.transitions import Action, Effect, Status, Verdict
from ads_pipeline.ledger.sql.ledger_values import DayWindow, VerdictResult
from ads_pipeline_tests.lake.warehouse.builders import read_all_versions, read_with_duckdb
from ads_pipeline_tests.ledger.builders import action_request, rejection
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    corrupt_payload,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
    visible_runs_in_spark,
)


@pytest.mark.invariant("W3", "W4")
def test_rows_are_removed_before_failure_is_recorded(
    deployment_on_each_database: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the rejection is written, neither readers nor the table have the rows."""
    deployment = deployment_on_each_database
    demoted, valid = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.judge_and_load([demoted, valid])
    corrupt_payload(deployment, demoted)
    seen: list[tuple[set[str], set[str]]] = []
    record = deployment.ledger.verdicts.record

    def read_then_record(verdicts: Sequence[Verdict], **options: Any) -> list[VerdictResult]:
        in_table = {partition.customer_id for partition in read_with_duckdb(deployment.warehouse_location)}
        seen.append((in_table, {partition.customer_id for partition in visible_runs(deployment)}))
        return record(verdicts, **options)

    monkeypatch.setattr(deployment.ledger.verdicts, "record", read_then_record)
    judged = deployment.pipeline.validation.judge([demoted, valid], validation_id="again")
    assert {each.verdict.run: each.effect for each in judged.recorded} == {
        demoted: Effect.DEMOTED,
        valid: Effect.CONFIRMED,
    }
    assert seen == [({"2"}, {"2"})]
    assert visible_runs(deployment) == {valid.key: "r1"}
    assert deployment.ledger.states.get(demoted.key).status is Status.FAILED
    assert [set(each) for each in read_all_versions(deployment.warehouse_location)][-2:] == [
        {demoted.key, valid.key},
        {valid.key},
    ]
    assert deployment.differences() == []


@pytest.mark.invariant("W3", "W4")
def test_rejected_predecessor_leaves_the_table_before_its_successor_is_loaded(
    deployment_on_each_database: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """r2 is accepted and waits for its load. When the rejection of r1 is written, the table has no row of r1."""
    deployment = deployment_on_each_database
    first, other = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.judge_and_load([first, other])
    deployment.pipeline.validation.judge([seal_run(deployment, key(1), "r2")])
    corrupt_payload(deployment, first)
    in_table: list[set[str]] = []
    record = deployment.ledger.verdicts.record

    def read_then_record(verdicts: Sequence[Verdict], **options: Any) -> list[VerdictResult]:
        in_table.append({partition.customer_id for partition in read_with_duckdb(deployment.warehouse_location)})
        assert visible_runs(deployment) == visible_runs_in_spark(deployment) == {other.key: "r1"}
        return record(verdicts, **options)

    monkeypatch.setattr(deployment.ledger.verdicts, "record", read_then_record)
    (rejected,) = deployment.pipeline.validation.judge([first], validation_id="again").recorded
    assert (rejected.effect, in_table) == (Effect.SET_ASIDE, [{"2"}])
    assert [str(repair) for repair in deployment.differences()] == [
        f"load {first.key}: the table holds nothing, current is r2"
    ]
    deployment.pipeline.loader.load([first.key])
    assert visible_runs(deployment) == {first.key: "r2", other.key: "r1"}
    assert deployment.differences() == []


def test_rejecting_a_replaced_run_keeps_its_successor(deployment: LocalDeployment) -> None:
    """When r2 is loaded already, a late rejection of r1 changes neither the table nor what readers see."""
    first = seal_run(deployment, key())
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r2")])
    corrupt_payload(deployment, first)
    deployment.pipeline.validation.judge([first], validation_id="again")
    assert visible_runs(deployment) == {key(): "r2"}
    assert read_with_duckdb(deployment.warehouse_location) == {key(): ({"r2"}, 2)}
    assert deployment.differences() == []


def test_interrupted_rejection_of_a_predecessor_is_finished(deployment: LocalDeployment) -> None:
    """After a crash between the two steps, reconcile removes the rows, records the verdict and loads r2."""
    first = seal_run(deployment, key())
    deployment.pipeline.judge_and_load([first])
    deployment.pipeline.validation.judge([seal_run(deployment, key(), "r2")])
    deployment.ledger.verdicts.begin_demotions([rejection(first, validation_id="again")])
    assert visible_runs(deployment) == {}
    repairs = deployment.reconciliation.repair(DayWindow(source=SOURCE, query_name=QUERY)).repairs
    assert [repair.kind.name for repair in repairs] == ["DEMOTE", "REMOVE", "LOAD"]
    assert visible_runs(deployment) == {key(): "r2"}
    assert [attempt.effect for attempt in deployment.ledger.runs.attempts(key())][-1] is Effect.SET_ASIDE
    assert deployment.differences() == []


@pytest.mark.invariant("W5")
def test_demoted_run_stays_hidden(deployment: LocalDeployment) -> None:
    """After r1 is demoted and r2 accepted, nothing is visible until r2 is loaded."""
    first = seal_run(deployment, key(), "r1")
    deployment.pipeline.judge_and_load([first])
    corrupt_payload(deployment, first)
    deployment.pipeline.validation.judge([first], validation_id="again")
    assert visible_runs(deployment) == {}
    deployment.pipeline.validation.judge([seal_run(deployment, key(), "r2")])
    assert visible_runs(deployment) == {}
    deployment.pipeline.loader.load([key()])
    assert visible_runs(deployment) == {key(): "r2"}


def test_demoting_unloaded_run_hides_its_predecessor(deployment: LocalDeployment) -> None:
    """When r2 is demoted before its load, the partition fails and the rows of r1 are removed."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r1")])
    second = seal_run(deployment, key(), "r2")
    deployment.pipeline.validation.judge([second])
    assert visible_runs(deployment) == {key(): "r1"}
    corrupt_payload(deployment, second)
    deployment.pipeline.validation.judge([second], validation_id="again")
    assert visible_runs(deployment) == {}
    assert read_with_duckdb(deployment.warehouse_location) == {}


def test_rejected_rerun_keeps_previous_data(deployment: LocalDeployment) -> None:
    """A rejected run that readers never saw removes nothing and makes no commit."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(), "r1")])
    before = len(read_all_versions(deployment.warehouse_location))
    deployment.pipeline.validation.judge([seal_invalid_run(deployment, key(), "r2")])
    assert visible_runs(deployment) == {key(): "r1"}
    assert len(read_all_versions(deployment.warehouse_location)) == before


@pytest.mark.invariant("W3")
def test_demotion_during_a_load_hides_the_run(deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is demoted between commit and publication is not visible."""
    run = seal_run(deployment, key())
    deployment.pipeline.validation.judge([run])

    publish = deployment.ledger.loads.publish

    def demote_then_publish(runs: Any, *, table_version: int) -> Any:
        corrupt_payload(deployment, run)
        deployment.pipeline.validation.judge([run], validation_id="again")
        return publish(runs, table_version=table_version)

    monkeypatch.setattr(deployment.ledger.loads, "publish", demote_then_publish)
    loading = deployment.pipeline.loader.load([run.key])
    assert (loading.published, loading.superseded) == ((), (run,))
    assert visible_runs(deployment) == {}
    assert read_with_duckdb(deployment.warehouse_location) == {}
    assert deployment.differences() == []


def test_withdrawal_during_a_load_removes_the_rows(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader removes the rows of a run that is withdrawn between commit and publication."""
    run = seal_run(deployment, key())
    deployment.pipeline.validation.judge([run])

    publish = deployment.ledger.loads.publish

    def withdraw_then_publish(runs: Any, *, table_version: int) -> Any:
        deployment.ledger.actions.execute(Action.WITHDRAW, [run.key], action_request())
        return publish(runs, table_version=table_version)

    monkeypatch.setattr(deployment.ledger.loads, "publish", withdraw_then_publish)
    assert deployment.pipeline.loader.load([run.key]).superseded == (run,)
    assert read_with_duckdb(deployment.warehouse_location) == {}
