"""`reconcile`: what differs between ledger, pointers and tables is told, and mended when that is asked for."""

import shutil
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.cli.running import CommandLine, DemoCommandLine
from ads_pipeline_tests.ledger.builders import accepted_runs, keys
from ads_pipeline_tests.pipeline.builders import LocalDeployment, open_deployment, key, land_run, visible_runs

NOWHERE = {"ADS_PIPELINE_SPARK": "spark://127.0.0.1:1"}


@pytest.fixture
def house(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    """All rooms in the home that the command is run for."""
    with open_deployment(empty_cli.home, spark, f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        yield opened


def test_where_nothing_differs_no_spark_is_started(demo_cli: DemoCommandLine) -> None:
    """Neither to look nor to mend: the cluster that is named here does not exist."""
    cli = CommandLine(home=demo_cli.home, more=NOWHERE)
    for words in (("reconcile", "--plan"), ("reconcile",)):
        ended = cli.process(*words)
        assert (ended.code, ended.out, ended.err) == (0, "nothing differs\n", "")


def test_a_plan_changes_nothing(empty_cli: CommandLine) -> None:
    """It says what is to be done to which partition and why, and by its code that something is."""
    cli = CommandLine(home=empty_cli.home, more=NOWHERE)
    url = f"sqlite:///{empty_cli.home / 'ledger.db'}"
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(2))
    first, second = (cli.process("reconcile", "--plan") for _time in range(2))
    assert (first.code, first.err) == (1, "")
    assert first == second
    assert first.lines[0] == "campaign_daily"
    assert first.lines[1].split() == ["mend", "customer", "day", "why"]
    assert first.lines[2].split(maxsplit=3)[:3] == ["load", "1000", "2026-02-01"]
    assert "the table holds nothing, current is r1" in first.lines[2]
    assert first.lines[-1] == "2 differences: 2 to load"
    assert max(map(len, first.lines)) <= 80
    asked = cli.run("reconcile", "--plan", "--json", "--query", "campaign_daily")
    assert asked.objects[0] == {
        "source": "google_ads",
        "customer_id": "1000",
        "query_name": "campaign_daily",
        "logical_date": "2026-02-01",
        "mend": "load",
        "why": "the table holds nothing, current is r1",
    }
    assert (asked.code, asked.err) == (1, "2 differences: 2 to load\n")
    other = cli.run("reconcile", "--plan", "--query", "ad_group_daily")
    assert (other.code, other.lines) == (0, ["nothing differs"])


def test_a_misspelt_query_is_refused(empty_cli: CommandLine) -> None:
    """Else it would look as if nothing differed."""
    assert empty_cli.run("reconcile", "--plan", "--query", "campaign_dayly").code == 64


def test_a_ledger_that_is_not_there_is_not_made(empty_cli: CommandLine) -> None:
    """Looking in the wrong home is a mistake of the settings, also for the command that writes."""
    (empty_cli.home / "ledger.db").unlink()
    assert empty_cli.run("reconcile").code == 78
    assert not (empty_cli.home / "ledger.db").exists()


def test_what_differs_is_mended_and_what_cannot_be_is_told(empty_cli: CommandLine, house: LocalDeployment) -> None:
    """Each repair is told, and by the code whether anything is left; what was done is a run in the log of events. The
    session that this process has is left running."""
    unloaded, lost = land_run(house, key(1)), land_run(house, key(2))
    house.pipeline.validation.judge([unloaded, lost])
    shutil.rmtree(house.home / "raw" / lost.path)
    ended = empty_cli.run("reconcile")
    assert ended.code == 1
    assert ended.lines[2].split()[:3] == ["load", "1", "2026-01-01"]
    assert ended.lines[-1] == "1 difference mended, 1 left"
    (left,) = ended.err.splitlines()
    assert left.startswith(f"left: load {lost.key}: the table holds nothing, current is r1: ")
    assert "no such run" in left
    assert visible_runs(house) == {unloaded.key: "r1"}
    shutil.copytree(house.home / "raw" / unloaded.path, house.home / "raw" / lost.path)
    assert empty_cli.run("reconcile").code == 1  # a copy is not that partition's data
    shutil.rmtree(house.home / "raw" / lost.path)
    land_run(house, key(2))
    mended = empty_cli.run("reconcile", "--json")
    assert (mended.code, mended.err) == (0, "1 difference mended\n")
    assert [(each["mend"], each["customer_id"]) for each in mended.objects] == [("load", "2")]
    assert visible_runs(house) == {unloaded.key: "r1", lost.key: "r1"}
    assert empty_cli.run("reconcile").lines == ["nothing differs"]
    with EventReader.opened(f"sqlite:///{empty_cli.home / 'ledger.db'}") as events:
        told = {each.event.event_type for each in events.find_step_events(str(lost.key))}
    assert {"LoadFailed", "PartitionLoaded"} <= told
    assert house.spark.range(3).count() == 3
