"""Withdrawals: the rows leave the table before the partition becomes pending, whatever dies or happens in between."""

from collections.abc import Callable
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.pipeline.actions.operator_actions import Result
from ads_pipeline.pipeline.actions.row_actions import STATE_CHANGED, withdraw
from ads_pipeline_tests.lake.warehouse.builders import list_version_files, read_with_duckdb, write_file
from ads_pipeline_tests.ledger.builders import action_request, rejection
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    SOURCE,
    LocalDeployment,
    LocalPipeline,
    key,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.pipeline.test_crashes import CrashingProxy, CrashPoint, SimulatedCrash

WINDOW = DayWindow(source=SOURCE, query_name=QUERY)
DAY, OTHER = key(1), key(2)


def load(deployment: LocalDeployment) -> None:
    deployment.pipeline.judge_and_load([seal_run(deployment, each) for each in (DAY, OTHER)])


def read_table(deployment: LocalDeployment) -> set[PartitionKey]:
    """The partitions that plain Delta has."""
    return set(read_with_duckdb(deployment.warehouse_location))


def assert_settled(deployment: LocalDeployment) -> None:
    assert deployment.differences() == []
    assert deployment.ledger.publications.open_withdrawals(WINDOW) == []


def pipeline_without_spark(deployment: LocalDeployment, **replaced: Any) -> LocalPipeline:
    def start_spark() -> SparkSession:
        raise AssertionError("Spark was started")

    parts: dict[str, Any] = {
        "ledger": deployment.ledger,
        "warehouse": deployment.warehouse,
        "tables": deployment.tables,
    } | replaced
    return LocalPipeline(start_spark=start_spark, raw=deployment.raw, contracts=deployment.contracts, **parts)


@pytest.mark.invariant("W3", "W4")
def test_withdrawn_rows_leave_the_table_before_the_status_changes(
    deployment_on_each_database: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Spark starts. Other customers of the file keep their rows, and the action is logged once."""
    deployment = deployment_on_each_database
    load(deployment)
    finish, seen = deployment.ledger.withdrawals.finish, []

    def read_then_finish(*args: Any) -> Any:
        seen.append((read_table(deployment), set(visible_runs(deployment)), deployment.ledger.states.get(DAY).status))
        return finish(*args)

    monkeypatch.setattr(deployment.ledger.withdrawals, "finish", read_then_finish)
    state = deployment.ledger.states.get(DAY)
    (row,) = withdraw(pipeline_without_spark(deployment), [state], action_request(reason="wrong account"))
    assert (row.target, row.result) == (DAY, Result.DONE)
    assert seen == [({OTHER}, {OTHER}, Status.SUCCESS)]
    after = deployment.ledger.states.get(DAY)
    assert (after.status, after.current_run_id, after.attempt_count) == (Status.PENDING, "r1", 1)
    (logged,) = deployment.ledger.audit.of_partition(DAY)
    assert (logged.action, logged.reason, logged.status_before) == ("withdraw", "wrong account", Status.SUCCESS)
    assert_settled(deployment)
    (again,) = withdraw(pipeline_without_spark(deployment), [state], action_request(reason="wrong account"))
    assert (again.target, again.result) == (DAY, Result.DONE)
    assert deployment.ledger.audit.of_partition(DAY) == [logged]


@pytest.mark.invariant("W3", "W9")
@pytest.mark.parametrize("repair", ["reconcile", "repeat"])
@pytest.mark.parametrize("at", range(1, 7))
def test_crash_of_a_withdrawal_is_repaired(deployment: LocalDeployment, at: int, repair: str) -> None:
    """Before and after each step: by reconcile, or by the same command again."""
    load(deployment)
    point = CrashPoint(at=at)
    crashing = pipeline_without_spark(
        deployment,
        ledger=CrashingProxy(deployment.ledger, point),
        warehouse=CrashingProxy(deployment.warehouse, point),
    )
    with pytest.raises(SimulatedCrash):
        crashing.withdrawing.withdraw([DAY], action_request("act-1"))
    begun = point.last != "before begin"
    assert (DAY in visible_runs(deployment)) is not begun
    if deployment.ledger.states.get(DAY).status is not Status.SUCCESS:
        assert DAY not in read_table(deployment)
    if repair == "reconcile":
        deployment.reconciliation.repair(WINDOW)
    else:
        pipeline_without_spark(deployment).withdrawing.withdraw([DAY], action_request("act-2"))
    if begun or repair == "repeat":
        assert read_table(deployment) == {OTHER}, point.last
        assert deployment.ledger.states.get(DAY).status is Status.PENDING
        assert [each.action for each in deployment.ledger.audit.of_partition(DAY)] == ["withdraw"]
    assert_settled(deployment)


@pytest.mark.invariant("W3", "W16")
@pytest.mark.parametrize("action", ["withdraw", "demote"])
def test_open_session_refuses_a_removed_day(deployment_on_each_store: LocalDeployment, action: str) -> None:
    """It shows other days and replaced runs as before, and says when it was opened. A new session shows the rest."""
    deployment = deployment_on_each_store
    load(deployment)
    replaced, later = key(1, 2), key(1, 3)
    deployment.pipeline.judge_and_load([seal_run(deployment, each) for each in (replaced, later)])
    count = f"SELECT count(*) FROM {QUERY} WHERE logical_date "
    with deployment.readers.connect([QUERY]) as session:
        assert session.execute(f"{count} > '2026-01-01'").fetchall() == [(4,)]
        if action == "withdraw":
            deployment.pipeline.withdrawing.withdraw([DAY], action_request())
        else:
            demote_run(deployment)
        deployment.pipeline.judge_and_load([seal_run(deployment, replaced, "r2", count=5)])
        ((comment,),) = session.execute(f"SELECT comment FROM duckdb_views() WHERE view_name = '{QUERY}'").fetchall()
        _version, _of, opened_at = str(comment).partition("opened at ")
        for refused in (f"{count} = '2026-01-01'", f"SELECT * FROM {QUERY}", f"SELECT * FROM {QUERY}_current"):
            with pytest.raises(duckdb.Error, match="rows of 2026-01-01 were withdrawn or demoted after") as error:
                session.execute(refused).fetchall()
            assert f"opened at {opened_at}; open a new session" in str(error.value)
        assert session.execute(f"{count} > '2026-01-01'").fetchall() == [(4,)]
    assert set(visible_runs(deployment)) == {OTHER, replaced, later}


def accept_newer_run(deployment: LocalDeployment) -> None:
    deployment.pipeline.validation.judge([seal_run(deployment, DAY, "r2")])


def reject_newer_run(deployment: LocalDeployment) -> None:
    deployment.pipeline.validation.judge([seal_run(deployment, DAY, "r2", cost_micros=-1)])


def demote_run(deployment: LocalDeployment) -> None:
    deployment.pipeline.validation.record([rejection(Run(key=DAY, run_id="r1"), validation_id="again")])


@pytest.mark.invariant("W3", "W4")
@pytest.mark.parametrize(
    ("change", "result", "status", "table"),
    [
        (accept_newer_run, Result.REMAINING, Status.SUCCESS, {DAY, OTHER}),
        (reject_newer_run, Result.DONE, Status.PENDING, {OTHER}),
        (demote_run, Result.REMAINING, Status.FAILED, {OTHER}),
    ],
)
def test_verdict_between_removal_and_record(
    deployment: LocalDeployment,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[LocalDeployment], None],
    result: Result,
    status: Status,
    table: set[PartitionKey],
) -> None:
    """A newer accepted run stays current and is loaded, a rejected one changes nothing, and a demotion wins."""
    load(deployment)
    remove = Warehouse.remove

    def remove_then_change(*args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as context:
            context.setattr(Warehouse, "remove", remove)
            removed = remove(*args, **kwargs)
            change(deployment)
        return removed

    pipeline, state = deployment.pipeline, deployment.ledger.states.get(DAY)
    with monkeypatch.context() as context:
        context.setattr(Warehouse, "remove", remove_then_change)
        (row,) = withdraw(pipeline, [state], action_request())
    assert (row.result, row.why) == (result, STATE_CHANGED if result is Result.REMAINING else None)
    assert deployment.ledger.publications.open_withdrawals(WINDOW) == []
    deployment.reconciliation.repair(WINDOW)
    assert (deployment.ledger.states.get(DAY).status, read_table(deployment)) == (status, table)
    assert deployment.differences() == []


def test_rows_that_cannot_be_removed_are_named(deployment: LocalDeployment) -> None:
    """The day of a damaged file is hidden at once, the others are withdrawn, and reconcile ends the rest."""
    load(deployment)
    late = key(1, 2)
    deployment.pipeline.judge_and_load([seal_run(deployment, late)])
    first = next(path for path in list_version_files(deployment.warehouse_location) if "2026-01-01" in path)
    write_file(deployment.warehouse_location, first, b"PAR1")
    states = [deployment.ledger.states.get(each) for each in (DAY, late)]
    rows = {each.target: each for each in withdraw(deployment.pipeline, states, action_request("act-1"))}
    assert rows[late].result is Result.DONE
    assert rows[DAY].result is Result.UNFINISHED
    told = str(rows[DAY].why)
    assert told.startswith("it is hidden, and its rows stay in plain Delta until reconcile: ")
    assert f"ads-pipeline reconcile --query {QUERY}" in told
    assert deployment.ledger.publications.readable_runs([Run(key=DAY, run_id="r1")]) == set()
    for _pass in range(2):
        deployment.reconciliation.repair(WINDOW)
    assert deployment.differences() == []
    assert read_table(deployment) == {OTHER}
    assert deployment.ledger.states.get(DAY).status is Status.PENDING
    assert {each.action_id for each in deployment.ledger.audit.of_partition(DAY)} == {"act-1.2"}
