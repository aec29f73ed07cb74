"""A home with the demonstration in it, which commands only read."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.demo import land_demo
from ads_pipeline.settings import read_settings
from ads_pipeline_tests.cli.words import UNTIL, Place, Shown
from ads_pipeline_tests.pipeline.words import house_at


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, spark: SparkSession) -> Shown:
    home = tmp_path_factory.mktemp("shown")
    shutil.copy(sqlite_template, home / "ledger.db")
    with house_at(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        demo = land_demo(house.raw, read_settings({}).google_apis, until=UNTIL)
        house.pipeline.carry(demo.landed)
    shown = Shown(home=home, demo=demo)
    shown.run("events", "follow", "--once")  # else it depends on the time whether the snapshots are late
    return shown


@pytest.fixture
def empty(tmp_path: Path, sqlite_url: str) -> Place:
    """A ledger of which nobody has made use."""
    return Place(home=tmp_path / "home")
