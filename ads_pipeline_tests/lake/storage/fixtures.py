"""Locations of stores of every kind, each empty. `conftest` makes them fixtures of all tests."""

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ads_pipeline_tests.lake.storage import azurite_server, s3_server

BUCKETS = ["s3", *(["azure"] if azurite_server.COMMAND else [])]


@pytest.fixture(scope="session")
def s3_variables() -> Iterator[socket.socket]:
    """The environment of clients of a server that stands in for S3, also of processes that start before it."""
    with s3_server.reserve_endpoint() as reserved, pytest.MonkeyPatch.context() as patch:
        for name, value in s3_server.variables(s3_server.endpoint_of(reserved)).items():
            patch.setenv(name, value)
        yield reserved


@pytest.fixture(scope="session")
def s3_endpoint(s3_variables: socket.socket) -> Iterator[str]:
    """A server that stands in for S3, and the environment of its clients."""
    with s3_server.start_s3(s3_variables) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def azurite_endpoint() -> Iterator[str]:
    """A server that stands in for Azure, and the environment of its clients."""
    with azurite_server.start_azurite() as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in azurite_server.variables(endpoint).items():
            patch.setenv(name, value)
        yield endpoint


@pytest.fixture
def s3_location(s3_endpoint: str) -> str:
    """An empty place in a bucket."""
    return f"s3://{s3_server.BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def azure_location(azurite_endpoint: str) -> str:
    account = f"{azurite_server.ACCOUNT}.dfs.core.windows.net"
    return f"abfss://{azurite_server.CONTAINER}@{account}/{uuid.uuid4().hex}"


@pytest.fixture
def disk_location(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture(params=["disk", *BUCKETS])
def store_location(request: pytest.FixtureRequest) -> str:
    """An empty place of each kind."""
    place: str = request.getfixturevalue(f"{request.param}_location")
    return place


@pytest.fixture(params=BUCKETS)
def bucket_location(request: pytest.FixtureRequest) -> str:
    """An empty place in a bucket of each kind."""
    place: str = request.getfixturevalue(f"{request.param}_location")
    return place
