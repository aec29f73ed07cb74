"""`reconcile`: lists and repairs differences between ledger, pointers and tables."""

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import duckdb
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.completed_runs import COMMAND_KILLED, COMMAND_SILENCE
from ads_pipeline.ledger.events.event_log import EventLog, new_origin
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.lake.warehouse.builders import give_customer_bounds, list_version_files
from ads_pipeline_tests.ledger.builders import accepted_runs, keys, open_part
from ads_pipeline_tests.operations.cli.running import CommandLine, DemoCommandLine
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, open_deployment, seal_run, visible_runs

NOTHING_DIFFERS = "nothing differs in ad_group_daily, campaign_daily, keyword_daily, search_term_daily"
UNREACHABLE_SPARK = {"ADS_PIPELINE_SPARK": "spark://127.0.0.1:1"}


@pytest.fixture
def deployment(empty_cli: CommandLine, spark: SparkSession) -> Iterator[LocalDeployment]:
    """A deployment in the same home as the command line."""
    with open_deployment(empty_cli.home, spark, f"sqlite:///{empty_cli.home / 'ledger.db'}") as opened:
        yield opened


def test_no_difference_starts_no_spark(demo_cli: DemoCommandLine) -> None:
    """Without differences neither planning nor repairing starts Spark; the configured cluster does not exist."""
    cli = CommandLine(home=demo_cli.home, more=UNREACHABLE_SPARK)
    for arguments in (("reconcile", "--plan"), ("reconcile",)):
        result = cli.process(*arguments)
        assert (result.code, " ".join(result.out.split()), result.err) == (0, NOTHING_DIFFERS, "")


def test_command_that_starts_spark_prints_its_answer_alone(
    empty_cli: CommandLine, deployment: LocalDeployment
) -> None:
    """Java's and Spark's own lines reach neither stream, with and without --json."""
    deployment.pipeline.validation.judge([seal_run(deployment, key(1))])
    result = empty_cli.process("reconcile", "--json")
    assert (result.code, result.err) == (0, "1 difference repaired\n")
    assert [each["repair"] for each in result.objects] == ["load"]
    deployment.pipeline.validation.judge([seal_run(deployment, key(2))])
    result = empty_cli.process("reconcile")
    assert (result.code, result.err) == (0, "")
    assert result.lines[0] == "campaign_daily"


def test_command_shows_why_spark_does_not_start(empty_cli: CommandLine, deployment: LocalDeployment) -> None:
    """The cause stands only in what Java or its launcher prints."""
    deployment.pipeline.validation.judge([seal_run(deployment, key(1))])
    result = empty_cli.process("reconcile", JAVA_HOME="/no/such/java")
    assert result.code != 0
    assert "/no/such/java/bin/java" in result.err


def test_repair_writes_the_status_file(demo_cli: DemoCommandLine) -> None:
    """The command does what the hourly job does: the file is there also where no schedule runs."""
    file = demo_cli.home / "partition_status.parquet"
    file.unlink(missing_ok=True)
    assert demo_cli.run("reconcile", "--plan").code == 0
    assert not file.exists()
    assert demo_cli.run("reconcile").code == 0
    found = duckdb.sql(f"SELECT asset_key, partition_values['date'] FROM '{file}'").fetchall()
    assert {asset for asset, _day in found} == {
        f"{asset}/{name}"
        for asset in ("raw", "warehouse")
        for name in ("campaign_daily", "ad_group_daily", "search_term_daily")
    }


def test_repair_folds_events_and_closes_killed_commands(empty_cli: CommandLine) -> None:
    """The snapshots are up to date afterwards. The run of a command that was killed hours ago ends as failed."""
    url, killed = f"sqlite:///{empty_cli.home / 'ledger.db'}", new_origin()
    earlier = datetime.now(UTC) - COMMAND_SILENCE - timedelta(minutes=1)
    with open_part(EventLog, url, clock=lambda: earlier) as log:
        log.append(killed.make_event("RunStarted", at=earlier))
    result = empty_cli.run("reconcile")
    assert (result.code, result.err) == (0, f"run {killed.engine_run_id} was closed as failed: {COMMAND_KILLED}\n")
    with open_part(EventLog, url) as log:
        assert log.list_lagging_runs() == []
        assert log.get_current_snapshot(killed.engine_run_id).status is RunStatus.FAILED


def test_plan_changes_nothing(empty_cli: CommandLine) -> None:
    """A plan lists each difference with partition and reason, exits with 1, and is the same when repeated."""
    cli = CommandLine(home=empty_cli.home, more=UNREACHABLE_SPARK)
    url = f"sqlite:///{empty_cli.home / 'ledger.db'}"
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, keys(2))
    first, second = (cli.process("reconcile", "--plan") for _repetition in range(2))
    assert (first.code, first.err) == (1, "")
    assert first == second
    assert first.lines[0] == "campaign_daily"
    assert first.lines[1].split() == ["repair", "customer", "day", "why"]
    assert first.lines[2].split(maxsplit=3)[:3] == ["load", "1000", "2026-02-01"]
    assert "the table holds nothing, current is r1" in first.lines[2]
    assert first.lines[-1] == "2 differences: 2 to load"
    assert max(map(len, first.lines)) <= 80
    as_json = cli.run("reconcile", "--plan", "--json", "--query", "campaign_daily")
    assert as_json.objects[0] == {
        "source": "google_ads",
        "customer_id": "1000",
        "query_name": "campaign_daily",
        "logical_date": "2026-02-01",
        "repair": "load",
        "why": "the table holds nothing, current is r1",
    }
    assert (as_json.code, as_json.err) == (1, "2 differences: 2 to load\n")
    other = cli.run("reconcile", "--plan", "--query", "ad_group_daily")
    assert (other.code, other.lines) == (0, ["nothing differs in ad_group_daily"])


@pytest.mark.invariant("L7")
def test_statistics_of_earlier_releases_are_removed_and_said_once(
    empty_cli: CommandLine, deployment: LocalDeployment
) -> None:
    """Statistics of columns make readers drop rows: doctor and the plan say so, and reconcile removes them."""
    deployment.pipeline.judge_and_load([seal_run(deployment, key(1))])
    give_customer_bounds(deployment.warehouse_location)
    found = "the log has statistics of 1 file, with which pandas and other readers drop rows"
    planned = empty_cli.run("reconcile", "--plan")
    assert (planned.code, f"campaign_daily: {found}" in " ".join(planned.out.split())) == (1, True)
    (finding,) = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"]
    assert finding["severity"] == "error"
    assert finding["problem"] == "statistics in its log make pandas and other readers drop rows; files: 1"
    repaired = empty_cli.run(*finding["next"].split()[1:])
    said = "campaign_daily: statistics of 1 file are removed from the log; with them, pandas and others dropped rows"
    assert repaired.code == 0
    assert " ".join(repaired.out.split()) == f"{said} nothing differs in campaign_daily"
    for command in ("reconcile", "--plan"), ("reconcile",):
        assert " ".join(empty_cli.run(*command).out.split()) == NOTHING_DIFFERS
    assert [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"] == []


@pytest.mark.invariant("L7", "L9", "L12")
def test_missing_data_file_is_named_by_every_command_and_repaired(
    empty_cli: CommandLine, deployment: LocalDeployment
) -> None:
    """Query, plan and doctor name the file, its partitions and the command, which repairs all it can and names the
    rest."""
    runs = [seal_run(deployment, key(customer, day)) for customer in (1, 2) for day in (1, 2)]
    deployment.pipeline.judge_and_load(runs)
    (path,) = (path for path in list_version_files(deployment.warehouse_location) if "2026-01-01" in path)
    (deployment.home / "warehouse" / "google_ads" / "campaign_daily" / path).unlink()
    shutil.rmtree(deployment.home / "raw" / key(2).path)
    missing, held = f"data file {path} is missing", "it held 2026-01-01 of customers 1, 2"
    queried = empty_cli.run("warehouse", "query", "SELECT count(clicks) FROM campaign_daily")
    assert queried.code == 69
    assert f"{missing}; {held}; ads-pipeline reconcile --query campaign_daily loads" in queried.err
    assert "^" not in queried.err
    assert len(queried.err.splitlines()) == 1
    other = empty_cli.run("warehouse", "query", "SELECT clicks FROM campaign_daily WHERE logical_date = '2026-01-02'")
    assert (other.code, other.lines[-1]) == (0, "4 rows")
    planned = empty_cli.run("reconcile", "--plan", "--query", "campaign_daily")
    assert planned.code == 1
    assert f"campaign_daily: {missing}" in " ".join(planned.out.split())
    assert planned.lines[-1] == "2 differences: 2 to reload"
    (finding,) = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] == "tables"]
    assert finding["severity"] == "error"
    assert finding["location"] == f"google_ads/campaign_daily/{path}"
    assert finding["problem"] == f"is missing; {held}; the run of {key(2)} cannot be loaded again"
    requested, _semicolon, reconciled = finding["next"].partition("; ")
    assert requested == f"ads-pipeline state reprocess {key(2).short_name} --reason TEXT"
    assert empty_cli.run(*requested.split()[1:], "--yes").code == 0
    command, _loads, _rest = reconciled.partition(" loads the others of the file")
    repaired = empty_cli.run(*command.split()[1:])
    assert repaired.code == 1
    assert f"campaign_daily: {missing}; the table has it no more" in " ".join(repaired.out.split())
    assert repaired.lines[-1] == "1 difference repaired, 1 left"
    (left,) = [line for line in repaired.err.splitlines() if line.startswith("left: ")]
    assert left.startswith(f"left: load {key(2)}: ")
    assert "no such run" in left
    assert set(visible_runs(deployment)) == {key(1), key(1, 2), key(2, 2)}


@pytest.mark.invariant("L7")
@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "changed"])
@pytest.mark.parametrize("is_cut", [True, False], ids=["file cut", "not loaded"])
def test_doctor_advises_no_reconcile_where_raw_is_lost(
    empty_cli: CommandLine, deployment: LocalDeployment, is_gone: bool, is_cut: bool
) -> None:
    """Where the raw run of a partition is gone or changed too, doctor prints the command of its day. It succeeds."""
    run = seal_run(deployment, key(1))
    deployment.pipeline.validation.judge([run])
    if is_cut:
        deployment.pipeline.loader.load([run.key])
        (path,) = list_version_files(deployment.warehouse_location)
        file = deployment.home / "warehouse" / "google_ads" / "campaign_daily" / path
        os.truncate(file, file.stat().st_size // 2)
    payload = deployment.home / "raw" / run.path / "payload.jsonl"
    if is_gone:
        shutil.rmtree(payload.parent)
    else:
        payload.write_bytes(payload.read_bytes() + b"{}\n")
    findings = [each for each in empty_cli.run("doctor", "--json").objects if each["check"] in {"tables", "raw"}]
    command = f"ads-pipeline state reprocess {run.key.short_name} --reason TEXT"
    assert {each["check"]: each["next"] for each in findings} == {
        "tables": command,
        "raw": f"restore its files, or: {command}",
    }
    assert empty_cli.run(*command.split()[1:], "--yes").code == 0


def test_misspelt_query_is_refused(empty_cli: CommandLine) -> None:
    """An unknown query is an error, because "nothing differs" would mislead."""
    assert empty_cli.run("reconcile", "--plan", "--query", "campaign_dayly").code == 64


def test_missing_ledger_is_not_created(empty_cli: CommandLine) -> None:
    """A home without a ledger is a settings error, also for a writing command."""
    (empty_cli.home / "ledger.db").unlink()
    assert empty_cli.run("reconcile").code == 78
    assert not (empty_cli.home / "ledger.db").exists()


def test_repairs_are_listed_and_the_rest_is_explained(empty_cli: CommandLine, deployment: LocalDeployment) -> None:
    """Each repair is listed, and the exit code shows whether differences are left. The repair is logged as a run, and
    the Spark session of this process keeps running."""
    unloaded, lost = seal_run(deployment, key(1)), seal_run(deployment, key(2))
    deployment.pipeline.validation.judge([unloaded, lost])
    shutil.rmtree(deployment.home / "raw" / lost.path)
    result = empty_cli.run("reconcile")
    assert result.code == 1
    assert result.lines[2].split()[:3] == ["load", "1", "2026-01-01"]
    assert result.lines[-1] == "1 difference repaired, 1 left"
    (left,) = result.err.splitlines()
    assert left.startswith(f"left: load {lost.key}: the table holds nothing, current is r1: ")
    assert "no such run" in left
    assert visible_runs(deployment) == {unloaded.key: "r1"}
    shutil.copytree(deployment.home / "raw" / unloaded.path, deployment.home / "raw" / lost.path)
    assert empty_cli.run("reconcile").code == 1  # a copy of another partition's run is not accepted
    shutil.rmtree(deployment.home / "raw" / lost.path)
    seal_run(deployment, key(2))
    repaired = empty_cli.run("reconcile", "--json")
    assert (repaired.code, repaired.err) == (0, "1 difference repaired\n")
    assert [(each["repair"], each["customer_id"]) for each in repaired.objects] == [("load", "2")]
    assert visible_runs(deployment) == {unloaded.key: "r1", lost.key: "r1"}
    assert " ".join(empty_cli.run("reconcile").out.split()) == NOTHING_DIFFERS
    with open_part(EventReader, f"sqlite:///{empty_cli.home / 'ledger.db'}") as events:
        event_types = {each.event.event_type for each in events.find_step_events(str(lost.key))}
    assert {"LoadFailed", "PartitionLoaded"} <= event_types
    assert deployment.spark.range(3).count() == 3
