"""The two demos where they cannot run: in a home of other data, and on a machine where Spark does not start."""

import shutil
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, narrow_query_file
from ads_pipeline_tests.builders import seal_facts
from ads_pipeline_tests.operations.cli.running import CommandLine, DemoCommandLine

BOTH = pytest.mark.parametrize("arguments", [(), ("--google-ads",)], ids=["plain", "google-ads"])


@BOTH
def test_home_with_another_query_file_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Dagster has no partitions before the file's first day. Nothing is written, and the way out is named."""
    query_file = tmp_path / DEFAULT_QUERIES_FILE.name
    query_file.write_text(narrow_query_file(datetime.now(UTC).date(), ["campaign_daily"]))
    result = CommandLine(home=tmp_path).run("demo", *arguments)
    assert result.code == 64
    assert f"{query_file} does not fit the demo" in result.err
    assert "ADS_PIPELINE_HOME" in result.err
    assert list(tmp_path.iterdir()) == [query_file]


@BOTH
def test_home_with_other_runs_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """Made-up runs never stand beside real ones. The customer, and a home that works, are named."""
    key = PartitionKey(
        source="google_ads", customer_id="5550001111", query_name="campaign_daily", logical_date=date(2026, 3, 1)
    )
    RawRuns(tmp_path / "raw").land(Run(key=key, run_id="r1"), [], seal_facts())
    result = CommandLine(home=tmp_path).run("demo", *arguments)
    assert result.code == 64
    assert "has runs of customer 5550001111, which the demo did not make" in result.err
    assert "ADS_PIPELINE_HOME=~/.ads_pipeline_demo" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_ledger_with_other_runs_is_refused(tmp_path: Path, demo_cli: DemoCommandLine) -> None:
    """The ledger counts as well: a home whose raw runs lie elsewhere is still in use."""
    shutil.copy(demo_cli.home / "ledger.db", tmp_path / "ledger.db")
    result = CommandLine(home=tmp_path).run("demo", "--google-ads")
    assert result.code == 64
    assert "has runs of customer 1180250317" in result.err


def test_demo_has_a_home_of_its_own(tmp_path: Path) -> None:
    """Without ADS_PIPELINE_HOME, the default home of real data is left alone."""
    command = CommandLine(home=Path())
    environ = {"ADS_PIPELINE_HOME": "", "HOME": str(tmp_path), "JAVA_HOME": str(tmp_path)}
    assert command.process("demo", **environ).code == 78
    (tmp_path / ".ads_pipeline_demo").mkdir()
    (tmp_path / ".ads_pipeline_demo" / DEFAULT_QUERIES_FILE.name).write_text("broken")
    done = command.process("demo", **environ)
    assert f"{tmp_path}/.ads_pipeline_demo" in done.err


def write_java(folder: Path, script: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


@BOTH
@pytest.mark.parametrize("broken", ["no-java", "old-java", "failing-java", "no-spark", "other-spark", "no-space"])
def test_machine_without_spark_is_named_before_anything_is_written(
    tmp_path: Path, broken: str, arguments: tuple[str, ...]
) -> None:
    """The message has the variable, the cause and what to do, and `doctor` finds the same."""
    old = "echo 'openjdk version \"11.0.2\" 2019' >&2"
    (tmp_path / "spark" / "bin").mkdir(parents=True)
    (tmp_path / "spark" / "bin" / "spark-submit").touch()
    (tmp_path / "file").touch()
    variable, value, text = {
        "no-java": ("JAVA_HOME", tmp_path / "nothing", "there is no program"),
        "old-java": ("JAVA_HOME", write_java(tmp_path / "old", old), "is Java 11; Spark needs 17"),
        "failing-java": ("JAVA_HOME", write_java(tmp_path / "failing", "exit 1"), "does not answer"),
        "no-spark": ("SPARK_HOME", tmp_path / "nothing", "there is no Spark at"),
        "other-spark": ("SPARK_HOME", tmp_path / "spark", "is not Spark 4"),
        "no-space": ("SPARK_LOCAL_DIRS", tmp_path / "file" / "folder", "cannot write its temporary files"),
    }[broken]
    command = CommandLine(home=tmp_path / "home", more={variable: str(value)})
    result = command.run("demo", *arguments)
    assert result.code == 78
    assert text in result.err
    assert not (tmp_path / "home").exists()
    findings = command.run("doctor", "--json").objects
    assert [text in each["problem"] for each in findings if each["check"] == "spark"] == [True]


def test_failed_run_is_named_with_its_log(tmp_path: Path) -> None:
    """When Spark dies in the run, the demo stops there: one line has the error and the log, and nothing is judged."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.driver.memory 64m\n")
    home = tmp_path / "home"
    command = CommandLine(home=home, more={"SPARK_CONF_DIR": str(tmp_path / "conf")})
    done = command.process("demo", ADS_PIPELINE_SPARK="local[1]")
    assert done.code == 69
    (line,) = done.err.splitlines()
    assert "a run of the assets failed: ad_group_daily: " in line
    assert "Insufficient driver memory" in line
    assert str(home / "demo.log") in line
    assert "Traceback" not in line
    assert "Rejected partitions" not in done.out
