"""One loopback server for the tests of this folder, with its own scenario in each test."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.days.settlement import DayLimits
from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.quota import QuotaLimits
from ads_pipeline.google_ads.client import Clients
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.fetch_rules import FetchRules
from ads_pipeline.google_ads.google_ads_source import GoogleAdsSource
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer, loopback_server
from ads_pipeline.google_ads.streaming import STALL_LIMIT, RangeStreams
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.extraction.range_widths import read_known_widths
from ads_pipeline_tests.google_ads.builders import (
    API_VERSION,
    LOGIN,
    fast_budget,
    numbered_run_ids,
    shipped_apis,
)
from ads_pipeline_tests.google_ads.sources import MakeSource
from ads_pipeline_tests.ledger.builders import FakeClock


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


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands on a day when all of October is closed everywhere."""
    clock = FakeClock()
    clock.now = datetime(2026, 11, 19, 12, tzinfo=UTC)
    return clock


@pytest.fixture
def make_source(clients: Clients, timed_ledger: Ledger, clock: FakeClock, tmp_path: Path) -> MakeSource:
    def make(
        *,
        limits: QuotaLimits | None = None,
        accounts: Sequence[Account] = (),
        stall_limit: timedelta = STALL_LIMIT,
        own_clock: Callable[[], datetime] | None = None,
    ) -> GoogleAdsSource:
        raw = RawRuns(tmp_path / "raw", is_in_use=lambda: False)
        parkings = timed_ledger.retry_queue.list_parkings("google_ads")
        rules = FetchRules(
            queries=shipped_apis().queries,
            accounts={each.customer_id: each for each in accounts},
            find_parking=lambda each: next((str(p) for p in parkings if p.includes(each)), None),
            lookback_days=lambda _customer, _query: 30,
            find_refusal=lambda _key, _since: None,
            find_extracted=lambda _keys, _since: (),
            default_login=LOGIN,
            known_widths=read_known_widths(timed_ledger, "google_ads", clock.now),
            limits=DayLimits(),
        )
        return GoogleAdsSource(
            sealed=SealedRuns(raw=raw, runs=timed_ledger.runs),
            rules=rules,
            streams=RangeStreams(clients, raw, make_run_id=numbered_run_ids(), clock=clock, stall_limit=stall_limit),
            budget=fast_budget(timed_ledger, clock, limits=limits),
            clock=own_clock or clock,
        )

    return make
