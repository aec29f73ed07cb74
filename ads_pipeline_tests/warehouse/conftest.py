"""The warehouse root of a test: on a disk, and for the core rules in a bucket as well."""

import pytest

from ads_pipeline_tests.example_counts import TIMES


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
