"""A file of a table's log that is missing or cut: every command names it, the advice repairs it, others go on."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from ads_pipeline_tests.lake.warehouse.builders import table_path, table_uri
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, open_deployment, seal_run, visible_runs

RECONCILE = "ads-pipeline reconcile --query campaign_daily"


@pytest.fixture
def deployment(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    """Four versions, with a checkpoint of the third one."""
    with open_deployment(empty_cli.home, spark, f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        for day in (1, 2, 3):
            opened.pipeline.judge_and_load([seal_run(opened, key(1, day))])
        DeltaTable(table_uri(opened.warehouse_location), version=2).create_checkpoint()
        yield opened


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def follow(advice: str, log: Path) -> None:
    """What a person does who reads the advice."""
    action, _, _command = advice.partition(";")
    if action.startswith("delete "):
        for path in action.removeprefix("delete ").split(" and "):
            Path(path).unlink()
    else:
        assert action == f"move {log.parent} away"
        shutil.move(log.parent, log.parent.parent / "_away")


@pytest.mark.invariant("L12", "L7", "L4")
@pytest.mark.parametrize(
    ("name", "damage", "problem", "repaired"),
    [
        ("00000000000000000003.json", cut, "is cut or damaged", "loads again what it had added"),
        ("00000000000000000002.checkpoint.parquet", cut, "is cut or damaged", "the log is complete without them"),
        ("00000000000000000002.checkpoint.parquet", Path.unlink, "names a checkpoint that is missing", ""),
    ],
)
def test_damaged_log_is_named_and_the_advice_repairs_it(
    empty_cli: CommandLine,
    deployment: LocalDeployment,
    name: str,
    damage: Callable[[Path], None],
    problem: str,
    repaired: str,
) -> None:
    """Nothing is asked to be tried again later. After the advice, every partition is readable as before."""
    before, log = visible_runs(deployment), table_path(deployment.warehouse_location) / "_delta_log"
    damage(log / name)
    queried = empty_cli.run("warehouse", "query", "SELECT 1")
    assert queried.code == 0
    assert problem in queried.err
    assert "later" not in queried.err
    (finding,) = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"]
    assert finding["location"].startswith("google_ads/campaign_daily/_delta_log/")
    assert (finding["severity"], finding["problem"]) == ("error", problem)
    assert repaired in finding["next"]
    for command in ("reconcile", "--plan"), ("reconcile",):
        done = empty_cli.run(*command)
        assert done.code == 1
        assert finding["next"] in done.err
    follow(finding["next"], log)
    assert empty_cli.run(*RECONCILE.split()[1:]).code == 0
    assert visible_runs(deployment) == before
    assert [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"] == []


@pytest.mark.invariant("L12", "L7")
def test_table_with_a_lost_entry_is_loaded_again_from_raw(
    empty_cli: CommandLine, deployment: LocalDeployment
) -> None:
    """An entry that later ones build on cannot be left out: the advice is to move the table away."""
    before, log = visible_runs(deployment), table_path(deployment.warehouse_location) / "_delta_log"
    for path in log.glob("*checkpoint*"):
        path.unlink()
    (log / "00000000000000000002.json").unlink()
    (finding,) = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"]
    assert finding["problem"] == "is missing"
    assert finding["next"].endswith(f"{RECONCILE} loads the table again from raw")
    follow(finding["next"], log)
    assert empty_cli.run(*RECONCILE.split()[1:]).code == 0
    assert visible_runs(deployment) == before
