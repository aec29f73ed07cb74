"""A home with the demonstration in it, which commands only read."""

import fcntl
import os
import pickle
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.demo.reports import Demo, land_demo
from ads_pipeline.settings import read_settings
from ads_pipeline_tests.cli.running import UNTIL, CommandLine, DemoCommandLine
from ads_pipeline_tests.pipeline.builders import open_deployment


@pytest.fixture(scope="session")
def demo_cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DemoCommandLine:
    """A copy of one's own: carrying it takes a Spark, so of all workers one does it for all."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / "shown.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "shown.demo").exists():
            demo = _carried(shared / "shown", request)
            (shared / "shown.demo").write_bytes(pickle.dumps(demo))
    home = own / "shown-here"
    shutil.copytree(shared / "shown", home)
    return DemoCommandLine(home=home, demo=pickle.loads((shared / "shown.demo").read_bytes()))


def _carried(home: Path, request: pytest.FixtureRequest) -> Demo:
    spark: SparkSession = request.getfixturevalue("spark")
    home.mkdir()
    shutil.copy(request.getfixturevalue("sqlite_template"), home / "ledger.db")
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        demo = land_demo(house.raw, read_settings({}).google_apis, until=UNTIL)
        house.pipeline.judge_and_load(demo.landed)
    DemoCommandLine(home=home, demo=demo).run("events", "follow", "--once")  # else it depends on the time whether they are late
    return demo


@pytest.fixture
def empty_cli(tmp_path: Path, sqlite_url: str) -> CommandLine:
    """A ledger of which nobody has made use."""
    return CommandLine(home=tmp_path / "home")
