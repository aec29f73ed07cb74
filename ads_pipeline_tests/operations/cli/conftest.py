"""Fixtures: command lines of a home with the demo data, and of an empty one."""

import fcntl
import os
import pickle
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.demo.made_up_reports import Demo, land_demo
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline_tests.operations.cli.running import UNTIL, CommandLine, DemoCommandLine
from ads_pipeline_tests.pipeline.builders import open_deployment


@pytest.fixture(scope="session")
def demo_cli(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DemoCommandLine:
    """A private copy of the demo home. Loading it needs Spark, so one test worker does it for all."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with (shared / "demo.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "demo.demo").exists():
            demo = _load_demo(shared / "demo", request)
            (shared / "demo.demo").write_bytes(pickle.dumps(demo))
    home = own / "demo-here"
    shutil.copytree(shared / "demo", home)
    return DemoCommandLine(home=home, demo=pickle.loads((shared / "demo.demo").read_bytes()))


def _load_demo(home: Path, request: pytest.FixtureRequest) -> Demo:
    spark: SparkSession = request.getfixturevalue("spark")
    home.mkdir()
    shutil.copy(request.getfixturevalue("sqlite_template"), home / "ledger.db")
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as deployment:
        demo = land_demo(
            deployment.raw,
            read_settings({"ADS_PIPELINE_QUERIES": str(DEFAULT_QUERIES_FILE)}).google_apis,
            until=UNTIL,
        )
        deployment.pipeline.judge_and_load(demo.landed)
    DemoCommandLine(home=home, demo=demo).fold_events()  # otherwise "behind" marks would depend on timing
    return demo


@pytest.fixture
def empty_cli(tmp_path: Path, sqlite_url: str) -> CommandLine:
    """The command line of a home with an empty ledger."""
    return CommandLine(home=tmp_path / "home")
