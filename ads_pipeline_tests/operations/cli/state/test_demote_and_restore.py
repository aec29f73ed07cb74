"""Tests `state demote` and `state restore`: preview, the rows that readers see, and the log."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.transitions import Status
from ads_pipeline.operations.cli.command_line import spark_pipeline
from ads_pipeline.settings.environment import Settings
from ads_pipeline.spark import session
from ads_pipeline_tests.lake.warehouse.builders import read_with_duckdb
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    keys,
    record_verdict,
    registered_runs,
)
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import (
    MARKED,
    REASON,
    SUCCESSFUL,
    fill_ledger,
    open_ledger,
    read_all_rows,
)
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    open_deployment,
    seal_run,
    visible_runs,
)

NO_CLUSTER = {"ADS_PIPELINE_SPARK": "spark://127.0.0.1:1"}
ONE, OTHER = key(1), key(2)
COUNT_ROWS = "SELECT customer_id, count(*) AS n FROM campaign_daily GROUP BY ALL ORDER BY ALL"


@pytest.fixture
def deployment(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    """A deployment in the command's home, with two runs of one partition and one of another."""
    with open_deployment(empty_cli.home, spark, f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        for run_id, count in (("r1", 1), ("r2", 2)):
            opened.pipeline.judge_and_load([seal_run(opened, ONE, run_id, count=count)])
        opened.pipeline.judge_and_load([seal_run(opened, OTHER, "r1", count=5)])
        yield opened


def count_rows(cli: CommandLine) -> list[tuple[str, int]]:
    """The number of rows of each customer that `warehouse query` finds."""
    return [(each["customer_id"], each["n"]) for each in cli.run("warehouse", "query", COUNT_ROWS, "--json").objects]


@pytest.mark.invariant("S16", "W3", "W5")
def test_demote_hides_a_run_and_restore_publishes_an_earlier_one(
    empty_cli: CommandLine, deployment: LocalDeployment
) -> None:
    """A demoted run stays hidden, the restored one is visible, and reconcile finds no differences."""
    assert count_rows(empty_cli) == [("1", 2), ("2", 5)]
    demoted = empty_cli.run("state", "demote", str(ONE), "--reason", "wrong currency", "--operator", "ada")
    assert (demoted.code, demoted.err) == (0, "")
    assert re.split(" {2,}", demoted.lines[1].strip())[3:] == ["success from r2", "failed, nothing to read"]
    assert count_rows(empty_cli) == [("2", 5)]
    assert deployment.ledger.states.get(ONE).status is Status.FAILED
    (logged,) = deployment.ledger.audit.of_partition(ONE)
    assert (logged.action, logged.operator, logged.reason) == ("demote", "ada", "wrong currency")
    assert demoted.lines[-1] == f"action {logged.action_id}"
    assert empty_cli.run("reconcile").out.startswith("nothing differs in ")
    deployment.pipeline.judge_and_load(
        [deployment.ledger.runs.registered(ONE)[1].run]
    )  # known verdict: nothing is published
    assert count_rows(empty_cli) == [("2", 5)]
    restored = empty_cli.run("state", "restore", "1/campaign_daily/2026-01-01", *REASON)
    assert (restored.code, restored.err) == (0, "")
    assert re.split(" {2,}", restored.lines[1].strip())[3:] == ["failed", "success from r1"]
    assert count_rows(empty_cli) == [("1", 1), ("2", 5)]
    assert empty_cli.run("reconcile", "--plan").out.startswith("nothing differs in ")
    assert visible_runs(deployment) == {ONE: "r1", OTHER: "r1"}
    again = empty_cli.run("state", "restore", str(ONE), *REASON)
    assert (again.code, again.lines[0]) == (3, "nothing to restore")
    named = empty_cli.run("state", "restore", str(ONE), "--run", "r2", *REASON, "--json")
    assert [(each["now"], each["becomes"], each["result"]) for each in named.objects] == [
        ("success from r1", "success from r2", "done")
    ]
    assert count_rows(empty_cli) == [("1", 2), ("2", 5)]
    assert empty_cli.run("reconcile", "--plan").code == 0


@pytest.mark.invariant("W3", "W4")
def test_withdraw_demote_and_their_repair_start_no_spark(
    empty_cli: CommandLine, deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows leave the table by the command, or by reconcile when the command died before that."""
    third = key(3)
    deployment.pipeline.judge_and_load([seal_run(deployment, third)])

    def start(_settings: Settings) -> AbstractContextManager[SparkSession]:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(spark_pipeline, "spark_session", start)
    for verb, day in ("withdraw", ONE), ("demote", OTHER):
        result = empty_cli.run("state", verb, str(day), *REASON)
        assert (result.code, result.err) == (0, "")
    assert read_with_duckdb(deployment.warehouse_location) == {third: ({"r1"}, 2)}
    deployment.ledger.withdrawals.begin([third], action_request("act-1"))
    (finding,) = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "demotions"]
    assert "its withdrawal began at" in finding["problem"]
    plan = empty_cli.run("reconcile", "--plan", "--json")
    assert [(each["repair"], each["why"]) for each in plan.objects] == [
        ("withdraw", "its withdrawal is not finished")
    ]
    assert empty_cli.run("reconcile").code == 0
    assert read_with_duckdb(deployment.warehouse_location) == {}
    assert deployment.ledger.states.get(third).status is Status.PENDING


@pytest.mark.invariant("L7", "S16")
def test_rejudge_applies_todays_contract(empty_cli: CommandLine, deployment: LocalDeployment) -> None:
    """It previews the runs, names those that the validator rejects now, and logs the action."""
    corrupt_payload(deployment, deployment.ledger.runs.registered(OTHER)[0].run)
    preview = empty_cli.run("state", "rejudge", "--query", "campaign_daily", *REASON, "--dry-run")
    assert [re.split(" {2,}", line.strip())[3:] for line in preview.lines[1:3]] == [
        ["success from r2", "r2 judged"],
        ["success from r1", "r1 judged"],
    ]
    result = empty_cli.run("state", "rejudge", "--query", "campaign_daily", *REASON)
    assert (result.code, result.err) == (0, "")
    assert f"{OTHER}: rejected: " in result.out
    assert count_rows(empty_cli) == [("1", 2)]
    assert deployment.ledger.states.get(OTHER).status is Status.FAILED
    assert [each.action for key in (ONE, OTHER) for each in deployment.ledger.audit.of_partition(key)] == [
        "rejudge",
        "rejudge",
    ]
    assert empty_cli.run("reconcile", "--plan").code == 0


@pytest.mark.invariant("S14")
def test_unrestorable_partitions_remain(
    empty_cli: CommandLine, deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that the validator rejects now and a partition that changed after the preview stay unchanged."""
    deployment.pipeline.judge_and_load([seal_run(deployment, OTHER, "r2")])
    corrupt_payload(deployment, deployment.ledger.runs.registered(ONE)[0].run)
    began = session.spark_session

    def meanwhile(settings: Settings) -> AbstractContextManager[SparkSession]:
        (newer,) = registered_runs(deployment.ledger, OTHER, "r3")
        record_verdict(deployment.ledger, acceptance(newer))
        return began(settings)

    monkeypatch.setattr(spark_pipeline, "spark_session", meanwhile)
    result = empty_cli.run("state", "restore", "--all", *REASON)
    assert result.code == 2
    assert f"remaining: {ONE}: the validator rejects it now" in result.err
    assert f"remaining: {OTHER}: it changed since the preview" in result.err
    assert result.lines[-2:] == [f"  {ONE} \\", f"  {OTHER}"]
    assert deployment.ledger.states.get(ONE).current_run_id == "r2"
    assert deployment.ledger.states.get(OTHER).current_run_id == "r3"
    assert deployment.ledger.audit.of_partition(ONE) == []


@pytest.mark.invariant("S15")
@pytest.mark.parametrize("verb", ["demote", "restore", "rejudge"])
def test_dry_run_starts_no_spark_and_writes_nothing(empty_cli: CommandLine, verb: str) -> None:
    """A dry run succeeds with the address of a cluster that does not exist."""
    fill_ledger(empty_cli)
    before = read_all_rows(empty_cli)
    result = CommandLine(home=empty_cli.home, more=NO_CLUSTER).process("state", verb, "--all", *REASON, "--dry-run")
    assert (result.code, result.err) == (3 if verb == "restore" else 0, "")  # no partition has an earlier run
    assert result.lines[-1] == "nothing was changed"
    assert read_all_rows(empty_cli) == before
    assert max(map(len, result.lines)) <= 80


@pytest.mark.invariant("S16")
@pytest.mark.parametrize("verb", ["demote", "restore", "rejudge"])
def test_confirmation_precedes_spark(empty_cli: CommandLine, verb: str) -> None:
    """Without a terminal, more than 20 changes are refused with exit code 64 before Spark starts."""
    with open_ledger(empty_cli) as ledger:
        accepted_runs(ledger, keys(21))
        accepted_runs(ledger, keys(21), "r2")
    before = read_all_rows(empty_cli)
    result = CommandLine(home=empty_cli.home, more=NO_CLUSTER).run("state", verb, "--all", *REASON)
    assert (result.code, result.out) == (64, "")
    assert "21 partitions would change, and there is no terminal to ask" in result.err
    assert read_all_rows(empty_cli) == before


def test_nothing_to_do_starts_no_spark(empty_cli: CommandLine) -> None:
    """Partitions without a run to demote or restore are skipped with the reason."""
    fill_ledger(empty_cli)
    cli = CommandLine(home=empty_cli.home, more=NO_CLUSTER)
    demoted = cli.run("state", "demote", str(MARKED), *REASON)
    assert (demoted.code, demoted.lines[0]) == (3, "nothing to demote")
    assert "status is failed: no run is current" in " ".join(demoted.out.split())
    restored = cli.run("state", "restore", str(MARKED), *REASON)
    assert "no earlier run was accepted" in " ".join(restored.out.split())
    same = cli.run("state", "restore", str(SUCCESSFUL[0]), "--run", "r1", *REASON)
    assert "that run is current already" in " ".join(same.out.split())
