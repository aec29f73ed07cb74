"""One loopback server for the tests of this folder, with its own scenario in each test."""

from collections.abc import Iterator

import pytest

from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.process import LoopbackServer, loopback_server
from ads_pipeline_tests.google_ads.builders import API_VERSION


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with loopback_server(tmp_path_factory.mktemp("loopback"), API_VERSION) as server:
        yield server


@pytest.fixture
def server(running_server: LoopbackServer) -> LoopbackServer:
    """The server, with an empty scenario and no operations counted."""
    running_server.reset()
    return running_server


@pytest.fixture(scope="session")
def shared_clients(running_server: LoopbackServer) -> Clients:
    return Clients(read_configuration(str(running_server.configuration), {}), API_VERSION)


@pytest.fixture
def clients(server: LoopbackServer, shared_clients: Clients) -> Clients:
    """The product's clients, configured for the loopback server. Building one for each test would take seconds."""
    return shared_clients
