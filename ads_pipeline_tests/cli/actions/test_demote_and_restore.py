"""`state demote` and `state restore`: what readers lose and get again, from which run to which, by whose order."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from pyspark.sql import SparkSession

from ads_pipeline import spark_session
from ads_pipeline.cli.actions import demote_and_restore
from ads_pipeline.domain.transitions import Status
from ads_pipeline.settings import Settings
from ads_pipeline_tests.cli.actions.builders import BECAUSE, GOOD, MARKED, digest, ledger_at, stock
from ads_pipeline_tests.cli.running import CommandLine
from ads_pipeline_tests.ledger.builders import acceptance, accepted_runs, keys, registered_runs
from ads_pipeline_tests.pipeline.builders import LocalDeployment, open_deployment, key, seal_run, corrupt_payload, visible_runs

NOWHERE = {"ADS_PIPELINE_SPARK": "spark://127.0.0.1:1"}
ONE, OTHER = key(1), key(2)
COUNTED = "SELECT customer_id, count(*) AS n FROM campaign_daily GROUP BY ALL ORDER BY ALL"


@pytest.fixture
def house(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    """All rooms in the home that the command is run for: two runs of one partition, one of another."""
    with open_deployment(empty_cli.home, spark, f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        for run_id, count in (("r1", 1), ("r2", 2)):
            opened.pipeline.judge_and_load([seal_run(opened, ONE, run_id, count=count)])
        opened.pipeline.judge_and_load([seal_run(opened, OTHER, "r1", count=5)])
        yield opened


def readable(cli: CommandLine) -> list[tuple[str, int]]:
    """How many rows of each customer `warehouse query` finds."""
    return [(each["customer_id"], each["n"]) for each in cli.run("warehouse", "query", COUNTED, "--json").objects]


@pytest.mark.invariant("S16", "W3", "W5")
def test_a_run_is_demoted_and_an_earlier_one_restored(empty_cli: CommandLine, house: LocalDeployment) -> None:
    """Its rows go, the earlier run's come, the one that was taken back stays away, and nothing is left to mend."""
    assert readable(empty_cli) == [("1", 2), ("2", 5)]
    demoted = empty_cli.run("state", "demote", str(ONE), "--reason", "wrong currency", "--operator", "ada")
    assert (demoted.code, demoted.err) == (0, "")
    assert re.split(" {2,}", demoted.lines[1].strip())[3:] == ["success from r2", "failed, nothing to read"]
    assert readable(empty_cli) == [("2", 5)]
    assert house.ledger.state(ONE).status is Status.FAILED
    (act,) = house.ledger.partition_actions(ONE)
    assert (act.action, act.operator, act.reason) == ("demote", "ada", "wrong currency")
    assert demoted.lines[-1] == f"act {act.action_id}"
    assert empty_cli.run("reconcile").lines == ["nothing differs"]
    house.pipeline.judge_and_load([house.ledger.runs(ONE)[1].run])  # judged before: it gives nothing back
    assert readable(empty_cli) == [("2", 5)]
    restored = empty_cli.run("state", "restore", "1/campaign_daily/2026-01-01", *BECAUSE)
    assert (restored.code, restored.err) == (0, "")
    assert re.split(" {2,}", restored.lines[1].strip())[3:] == ["failed", "success from r1"]
    assert readable(empty_cli) == [("1", 1), ("2", 5)]
    assert empty_cli.run("reconcile", "--plan").lines == ["nothing differs"]
    assert visible_runs(house) == {ONE: "r1", OTHER: "r1"}
    again = empty_cli.run("state", "restore", str(ONE), *BECAUSE)
    assert (again.code, again.lines[0]) == (0, "nothing to restore")
    named = empty_cli.run("state", "restore", str(ONE), "--run", "r2", *BECAUSE, "--json")
    assert [(each["now"], each["becomes"], each["result"]) for each in named.objects] == [
        ("success from r1", "success from r2", "done")
    ]
    assert readable(empty_cli) == [("1", 2), ("2", 5)]
    assert empty_cli.run("reconcile", "--plan").code == 0


@pytest.mark.invariant("S14")
def test_what_cannot_be_restored_remains(empty_cli: CommandLine, house: LocalDeployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that would be rejected today, and a partition that changed after it was demo_cli, stay as they are."""
    house.pipeline.judge_and_load([seal_run(house, OTHER, "r2")])
    corrupt_payload(house, house.ledger.runs(ONE)[0].run)
    began = spark_session.spark_session

    def meanwhile(settings: Settings) -> AbstractContextManager[SparkSession]:
        (newer,) = registered_runs(house.ledger, OTHER, "r3")
        house.ledger.record_verdict(acceptance(newer))
        return began(settings)

    monkeypatch.setattr(demote_and_restore, "spark_session", meanwhile)
    ended = empty_cli.run("state", "restore", "--all", *BECAUSE)
    assert ended.code == 2
    assert f"left: {ONE}: it would be rejected today" in ended.err
    assert f"left: {OTHER}: it changed since it was looked at" in ended.err
    assert ended.lines[-2:] == [f"  {ONE} \\", f"  {OTHER}"]
    assert house.ledger.state(ONE).current_run_id == "r2"
    assert house.ledger.state(OTHER).current_run_id == "r3"
    assert house.ledger.partition_actions(ONE) == []


@pytest.mark.invariant("S15")
@pytest.mark.parametrize("verb", ["demote", "restore"])
def test_a_dry_run_starts_no_spark_and_writes_nothing(empty_cli: CommandLine, verb: str) -> None:
    """From which run to which is shown by a process whose cluster does not exist."""
    stock(empty_cli)
    before = digest(empty_cli)
    ended = CommandLine(home=empty_cli.home, more=NOWHERE).process("state", verb, "--all", *BECAUSE, "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[-1] == "nothing was changed"
    assert digest(empty_cli) == before
    assert max(map(len, ended.lines)) <= 80


@pytest.mark.invariant("S16")
@pytest.mark.parametrize("verb", ["demote", "restore"])
def test_many_are_asked_about_before_spark_is_started(empty_cli: CommandLine, verb: str) -> None:
    """Where nobody can be asked nothing is done, and the code is 64."""
    with ledger_at(empty_cli) as ledger:
        accepted_runs(ledger, keys(21))
        accepted_runs(ledger, keys(21), "r2")
    before = digest(empty_cli)
    ended = CommandLine(home=empty_cli.home, more=NOWHERE).run("state", verb, "--all", *BECAUSE)
    assert (ended.code, ended.out) == (64, "")
    assert "21 partitions would change and nobody can be asked here" in ended.err
    assert digest(empty_cli) == before


def test_where_there_is_nothing_to_do_no_spark_is_started(empty_cli: CommandLine) -> None:
    """What has nothing that could be taken back or given again is named with why."""
    stock(empty_cli)
    cli = CommandLine(home=empty_cli.home, more=NOWHERE)
    demoted = cli.run("state", "demote", str(MARKED), *BECAUSE)
    assert (demoted.code, demoted.lines[0]) == (0, "nothing to demote")
    assert "it is failed: readers have nothing of it" in " ".join(demoted.out.split())
    restored = cli.run("state", "restore", str(MARKED), *BECAUSE)
    assert "no run of it was accepted before" in " ".join(restored.out.split())
    same = cli.run("state", "restore", str(GOOD[0]), "--run", "r1", *BECAUSE)
    assert "readers have that run" in " ".join(same.out.split())
