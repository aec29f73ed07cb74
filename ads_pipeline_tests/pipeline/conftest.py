"""Deployments on each database, and on SQLite alone where the database makes no difference."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.pipeline.builders import LocalDeployment, open_deployment


@pytest.fixture
def deployment_on_each_database(tmp_path: Path, spark: SparkSession, ledger: Ledger) -> LocalDeployment:
    return LocalDeployment(home=tmp_path / "home", spark=spark, ledger=ledger)


@pytest.fixture
def deployment(tmp_path: Path, spark: SparkSession, sqlite_url: str) -> Iterator[LocalDeployment]:
    with open_deployment(tmp_path / "home", spark, sqlite_url) as opened:
        yield opened


@pytest.fixture(params=["disk", "s3"])
def deployment_on_each_store(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession, sqlite_url: str
) -> Iterator[LocalDeployment]:
    """A deployment whose lake is on a disk, and one whose lake is in a bucket."""
    lake = None if request.param == "disk" else request.getfixturevalue("s3_location")
    with open_deployment(tmp_path / "home", spark, sqlite_url, lake=lake) as opened:
        yield opened
