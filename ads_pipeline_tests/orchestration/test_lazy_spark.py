"""The hourly and the nightly job start Spark only when they have work for it."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.orchestration.builders import Location, open_location
from ads_pipeline_tests.pipeline.builders import key, seal_invalid_run, seal_run, visible_runs

BUILDER = "counting_sessions"
EMPTY_DEPLOYMENT = """
import dagster as dg
from pyspark import SparkContext
from ads_pipeline.definitions import defs
for name in ("reconcile", "maintenance"):
    assert defs().resolve_job_def(name).execute_in_process(instance=dg.DagsterInstance.ephemeral()).success
assert SparkContext._gateway is None
"""


@dataclass(slots=True, kw_only=True)
class Builder:
    """The function of `ADS_PIPELINE_SPARK`. It counts its calls."""

    spark: SparkSession
    calls: list[None] = field(default_factory=list)

    def build(self) -> SparkSession:
        self.calls.append(None)
        return self.spark


@pytest.fixture
def builder(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Builder:
    builder = Builder(spark=spark)
    monkeypatch.setitem(sys.modules, BUILDER, builder)
    return builder


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession, builder: Builder) -> Iterator[Location]:
    """A location with one loaded and one rejected day, whose sessions the builder returns."""
    with open_location(tmp_path / "home", spark) as opened:
        opened.deployment.pipeline.judge_and_load(
            [seal_run(opened.deployment, key(1)), seal_invalid_run(opened.deployment, key(2))]
        )
        settings = replace(opened.settings, spark=f"{BUILDER}:build")
        yield replace(opened, settings=settings, defs=build_location(settings))


def execute(location: Location, job: str) -> None:
    assert location.defs.resolve_job_def(job).execute_in_process(instance=location.instance).success


@pytest.mark.parametrize("job", ["reconcile", "maintenance"])
def test_job_without_work_starts_no_session(location: Location, builder: Builder, job: str) -> None:
    """The tables hold what the ledger says, and no day has several small files."""
    execute(location, job)
    assert builder.calls == []


def test_reconcile_with_work_starts_a_session(location: Location, builder: Builder) -> None:
    """An accepted run that is not loaded yet."""
    location.deployment.pipeline.validation.judge([seal_run(location.deployment, key(3))])
    execute(location, "reconcile")
    assert builder.calls
    assert key(3) in visible_runs(location.deployment)


def test_jobs_of_an_empty_deployment_start_no_jvm(tmp_path: Path) -> None:
    """In a process of their own."""
    done = subprocess.run(
        [sys.executable, "-c", EMPTY_DEPLOYMENT],
        env=CommandLine(home=tmp_path / "home").environ(),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr


def test_session_of_spark_connect_comes_from_dagster_pyspark(tmp_path: Path) -> None:
    """Its resource builds the session from options alone."""
    settings = read_settings({"ADS_PIPELINE_HOME": str(tmp_path), "ADS_PIPELINE_SPARK": "sc://spark.example:15002"})
    resources = build_location(settings).resources or {}
    with dg.build_resources({"pyspark": resources["pyspark"]}) as opened:
        assert type(opened.pyspark) is LazyPySparkResource
        assert opened.pyspark.spark_config["spark.remote"] == settings.spark
