"""The warehouse root of a test: on a disk, and for the core rules in a bucket as well."""

from collections.abc import Iterator, Mapping

import pytest

from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.spark.servers import connect_server


@pytest.fixture(scope="session")
def spark_server(s3_variables: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Spark Connect server, for processes that race or are killed: none starts a JVM of its own."""
    with connect_server(tmp_path_factory.mktemp("spark")) as (address, _servers):
        yield address


@pytest.fixture
def disk_root(disk_location: str) -> str:
    """For tests of what only a disk has."""
    return disk_location


@pytest.fixture(params=["disk", *(["s3"] if TIMES > 1 else [])])
def root(request: pytest.FixtureRequest) -> str:
    """On a disk, and with SOAK also in a bucket."""
    location: str = request.getfixturevalue(f"{request.param}_location")
    return location


@pytest.fixture(params=["disk", "s3"])
def core_root(request: pytest.FixtureRequest) -> str:
    """On a disk and in a bucket."""
    location: str = request.getfixturevalue(f"{request.param}_location")
    return location
