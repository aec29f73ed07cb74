"""The pipeline does on a cluster and over Connect what it does on a local Spark, and says when they are gone."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ads_pipeline_tests.spark.pipeline_process import carried
from ads_pipeline_tests.spark.servers import asked, cluster, connect_server
from ads_pipeline_tests.warehouse.builders import by_duckdb

FAILING = ("judged_without_disk", "judged_by_dying_workers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What came of the works on one kind of Spark, and what its table held after `carried`."""

    of: dict[str, Any]
    held: Any


@pytest.fixture(scope="module", params=["cluster", "connect"])
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """The works in one session on real servers; the last one, over Connect, after the server was killed."""
    home, servers_home = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("servers")
    starting = cluster if request.param == "cluster" else connect_server
    with starting(servers_home) as (address, servers), asked(address, home) as ask:
        of = {work: ask(work) for work in ("carried", *FAILING, "judged_by_thousands")}
        held = by_duckdb(home / "warehouse")
        if request.param == "connect":
            servers[0].kill()
            of["asked_of_nobody"] = ask("asked_of_nobody")
        yield Answers(of=of, held=held)


@pytest.fixture(scope="module")
def here(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The same on the local Spark of all tests."""
    home: Path = tmp_path_factory.mktemp("here")
    of = {"carried": json.loads(json.dumps(carried(spark, home), default=str))}
    return Answers(of=of, held=by_duckdb(home / "warehouse"))


@pytest.mark.invariant("V4", "V6", "W1", "W16")
def test_the_pipeline_is_the_same_everywhere(answers: Answers, here: Answers) -> None:
    """Verdicts, states, tables and readers' views are the same to the letter; failures say what failed, in a line."""
    done = here.of["carried"]
    assert [each["verdict"]["outcome"] for each in done["judged"]].count("accepted") == len(done["published"]) == 3
    day = "google_ads/{}/campaign_daily/2026-01-0{}".format
    assert done["visible"] == done["visible_in_spark"] == {day(2, 1): "r1", day(3, 1): "r2", day(4, 2): "r1"}
    assert answers.of["carried"] == done
    assert answers.held == here.held
    assert answers.of["judged_by_thousands"] == 10_000
    for failure in (answers.of[work] for work in FAILING):
        assert (failure["kind"], failure["is_transient"]) == ("JudgingFailed", True)
        assert failure["message"].isprintable()
    without, dying = (answers.of[work]["message"] for work in FAILING)
    assert without.startswith("2 runs could not be judged: FileNotFoundError: ")
    assert "/away/" in without
    assert dying == "1 runs could not be judged: Python worker exited unexpectedly (crashed)."
    if "asked_of_nobody" in answers.of:
        assert_told_that_nobody_is_there(answers.of["asked_of_nobody"])


def assert_told_that_nobody_is_there(told: dict[str, Any]) -> None:
    """A killed Connect server is nobody's verdict, and is told in a line."""
    assert told["attempts"] == 0
    assert (told["judge"]["kind"], told["load"]["kind"]) == ("JudgingFailed", "JudgingFailed")
    for failure in (told["judge"], told["load"]):
        assert failure["message"].isprintable()
        assert "failed to connect to all addresses" in failure["message"]
        assert failure["is_transient"]
