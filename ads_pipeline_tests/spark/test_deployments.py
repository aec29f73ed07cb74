"""The pipeline gives the same results on a cluster, over Spark Connect and on local Spark."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.lake.warehouse.builders import read_with_duckdb
from ads_pipeline_tests.spark.pipeline_process import run_pipeline
from ads_pipeline_tests.spark.servers import cluster, connect_server, hide, pipeline_runner

FAILING = ("judge_on_missing_disk", "judge_with_killed_workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResults:
    """The result of each scenario on one kind of Spark, and the table's partitions after `run_pipeline`."""

    by_name: dict[str, Any]
    partitions: Any


@pytest.fixture(scope="module", params=["connect", *(["cluster"] if TIMES > 1 else [])])
def remote_results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScenarioResults]:
    """Results from one session on real servers. Over Connect, the last scenario runs after the server was killed."""
    home, servers_home = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("servers")
    start = cluster if request.param == "cluster" else connect_server
    with start(servers_home) as (address, servers), pipeline_runner(address, home) as run_scenario:
        by_name = {name: run_scenario(name) for name in ("run_pipeline", *FAILING, "judge_ten_thousand_runs")}
        partitions = read_with_duckdb(str(home / "warehouse"))
        if request.param == "connect":
            servers[0].kill()
            by_name["use_stopped_server"] = run_scenario("use_stopped_server")
        yield ScenarioResults(by_name=by_name, partitions=partitions)


@pytest.fixture(scope="module")
def local_results(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ScenarioResults:
    """The result of `run_pipeline` on the tests' local Spark."""
    home: Path = tmp_path_factory.mktemp("local")
    by_name = {"run_pipeline": json.loads(json.dumps(run_pipeline(spark, home), default=str))}
    return ScenarioResults(by_name=by_name, partitions=read_with_duckdb(str(home / "warehouse")))


@pytest.mark.invariant("V4", "V6", "W1", "W16")
def test_pipeline_gives_the_same_results_on_every_spark(
    remote_results: ScenarioResults, local_results: ScenarioResults
) -> None:
    """Verdicts, states, tables and views are equal. Failures are transient errors with a one-line message."""
    expected = local_results.by_name["run_pipeline"]
    outcomes = [judgement["verdict"]["outcome"] for judgement in expected["judged"]]
    assert outcomes.count("accepted") == len(expected["published"]) == 3
    day = "google_ads/{}/campaign_daily/2026-01-0{}".format
    visible = {day(2, 1): "r1", day(3, 1): "r2", day(4, 2): "r1"}
    assert expected["visible"] == expected["visible_in_spark"] == visible
    assert remote_results.by_name["run_pipeline"] == expected
    assert remote_results.partitions == local_results.partitions
    assert remote_results.by_name["judge_ten_thousand_runs"] == 10_000
    for failure in (remote_results.by_name[name] for name in FAILING):
        assert (failure["class"], failure["is_transient"]) == ("JudgingFailed", True)
        assert failure["message"].isprintable()
    missing_disk, killed_workers = (remote_results.by_name[name]["message"] for name in FAILING)
    assert missing_disk.startswith("2 runs could not be judged: ads_pipeline.domain.errors.RawUnavailable: ")
    assert "No such file or directory" in missing_disk
    assert "/not-mounted" in missing_disk
    assert killed_workers == "1 runs could not be judged: Python worker exited unexpectedly (crashed)."
    if "use_stopped_server" in remote_results.by_name:
        assert_unavailable(remote_results.by_name["use_stopped_server"])


def assert_unavailable(result: dict[str, Any]) -> None:
    """A killed Connect server gives transient errors with a one-line message, and no attempt."""
    assert result["attempts"] == 0
    assert (result["judge"]["class"], result["load"]["class"]) == ("JudgingFailed", "JudgingFailed")
    for failure in (result["judge"], result["load"]):
        assert failure["message"].isprintable()
        assert "failed to connect to all addresses" in failure["message"]
        assert failure["is_transient"]


@pytest.mark.invariant("V4", "V6", "W1", "W16")
@pytest.mark.parametrize("start", [cluster, *([connect_server] if TIMES > 1 else [])])
def test_spark_that_sees_no_disk_of_the_driver_uses_the_bucket(
    start: Any, local_results: ScenarioResults, s3_location: str, tmp_path: Path
) -> None:
    """Workers in a namespace without the driver's home judge and load as local Spark does, from and to a bucket."""
    home, servers_home = tmp_path / "home", tmp_path / "servers"
    home.mkdir()
    with (
        start(servers_home, hide(home)) as (address, _servers),
        pipeline_runner(address, home, s3_location) as run_scenario,
    ):
        assert run_scenario("run_pipeline") == local_results.by_name["run_pipeline"]
        unseen = run_scenario("judge_on_disk_of_the_driver")
    assert read_with_duckdb(f"{s3_location}/warehouse") == local_results.partitions
    assert not (home / "raw").exists()
    assert not (home / "warehouse").exists()
    assert "raw-of-driver" in unseen["message"], "the workers do see the driver's disk"
