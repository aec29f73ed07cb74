"""The source goes away for hours: no day loses an attempt, few calls are made, and afterwards all is fetched."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from ads_pipeline.domain.fetching.account import Account
from ads_pipeline.domain.fetching.outages import PAUSES
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.google_ads.configuration import ClientConfiguration, read_configuration
from ads_pipeline.google_ads.loopback.credentials import write_key_file
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, RequestFailure, Scenario
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.extraction.due_days import DueDays
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline.pipeline.extraction.held_requests import limit_to_holds
from ads_pipeline.pipeline.retry_scheduling import RetryScheduler
from ads_pipeline.settings.query_file import GoogleApis
from ads_pipeline_tests.builders import acceptance, key
from ads_pipeline_tests.google_ads.builders import shipped_apis
from ads_pipeline_tests.ledger.builders import FakeClock

SOURCE, POLICY = "google_ads", RetryPolicy()
ACCOUNTS = tuple(f"{2_000_000_001 + number}" for number in range(5))
QUERIES = ("campaign_daily", "ad_group_daily")
START = datetime(2026, 10, 12, 20, tzinfo=UTC)
FIRST, REREAD = date(2026, 10, 6), 7
OUTAGE = timedelta(hours=8, minutes=30)
MINUTE = timedelta(minutes=1)
SEARCH_EVERY = 30  # minutes, as the sensor `days_due`
# One at the end of each pause, after a minute in which other accounts go first.
MOST_PROBES = len(PAUSES) + int((OUTAGE - sum(PAUSES, timedelta(0))) / PAUSES[-1]) + 1
# The longest pause, a search, and the ticks that request and run.
RECOVERED_WITHIN = PAUSES[-1] + timedelta(minutes=SEARCH_EVERY + 5)


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    clock.now = START
    return clock


class Deployment:
    """The two sensors and the runs that they request, each minute of a clock. Every sealed run is accepted."""

    def __init__(self, ledger: Ledger, clock: FakeClock, root: Path, configuration: ClientConfiguration) -> None:
        self.ledger, self.clock, self.configuration = ledger, clock, configuration
        self.raw = RawRuns(root / "raw", is_in_use=lambda: False)
        self.apis = _apis()
        self.minutes, self.fetched = 0, Counter[PartitionKey]()

    def run_for(self, duration: timedelta) -> None:
        end = self.clock.now + duration
        while self.clock.now < end:
            self.tick()

    def tick(self) -> None:
        """What the sensors request now is fetched at once."""
        requested = self.find_retries()
        if self.minutes % SEARCH_EVERY == 0:
            requested |= self.find_due()
        self.minutes += 1
        allowed = limit_to_holds(requested, self.ledger.quota.list_holds(SOURCE), self.clock.now)
        if allowed:
            self.fetch(sorted(allowed))
        self.clock.tick(MINUTE)

    def find_due(self) -> dict[PartitionKey, str]:
        days = AccountDays.read(self.ledger, self.apis, now=self.clock.now)
        return DueDays(ledger=self.ledger, days=days, policy=POLICY).find()

    def find_retries(self) -> dict[PartitionKey, str]:
        today = self.clock.now.date()
        return RetryScheduler(ledger=self.ledger, policy=POLICY, source=SOURCE, today=today).next_runs(slots=100)

    def fetch(self, keys: Sequence[PartitionKey]) -> None:
        extraction = Extraction(
            apis=self.apis, configuration=self.configuration, ledger=self.ledger, clock=self.clock, sleep=self.sleep
        )
        landed = extraction.source(self.raw, SealedRuns(raw=self.raw, runs=self.ledger.runs)).land(keys)
        self.ledger.failed_fetches.record(landed.failed, POLICY)
        seals = [each for each in landed.runs if isinstance(each, SealedRun)]
        self.ledger.registrations.register(seals)
        self.ledger.verdicts.record([acceptance(seal.run, seal.record_count) for seal in seals])
        self.fetched.update(seal.run.key for seal in seals)

    def sleep(self, seconds: float) -> None:
        self.clock.tick(timedelta(seconds=seconds))


def _apis() -> GoogleApis:
    shipped = shipped_apis()
    queries = {
        name: shipped.queries[name].model_copy(update={"reread_after_days": (REREAD,), "lookback_days": 30})
        for name in QUERIES
    }
    return shipped.model_copy(update={"start_date": FIRST, "queries": queries})


@pytest.fixture
def deployment(server: LoopbackServer, sqlite_url: str, clock: FakeClock, tmp_path: Path) -> Iterator[Deployment]:
    with Ledger.opened(sqlite_url, clock=clock) as ledger:
        accounts = [
            Account(source=SOURCE, customer_id=each, status="ENABLED", time_zone="Pacific/Auckland")
            for each in ACCOUNTS
        ]
        ledger.accounts.record(SOURCE, accounts)
        yield Deployment(ledger, clock, tmp_path, read_configuration(str(server.configuration), {}))


def days(first: date, last: date) -> set[PartitionKey]:
    return {
        key(customer, query_name=name, day=first + timedelta(days=number))
        for customer in ACCOUNTS
        for name in QUERIES
        for number in range((last - first).days + 1)
    }


@pytest.mark.invariant("L3")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("status", "calls_to_tell"), [("UNAVAILABLE", 1), ("INTERNAL", 9)])
def test_outage_of_a_night_costs_no_attempt(
    server: LoopbackServer, deployment: Deployment, status: str, calls_to_tell: int
) -> None:
    """The source is away for 8.5 hours, over the end of a day. Few calls are made meanwhile, and nothing is counted.

    Within an hour and five minutes afterwards, the new day and the rereads of five accounts and two queries are
    fetched, without a person. An internal error is an outage once three accounts have it, and then of the first too.
    """
    ledger, clock = deployment.ledger, deployment.clock
    deployment.run_for(timedelta(minutes=40))
    assert set(deployment.fetched) == days(FIRST, date(2026, 10, 12))
    deployment.fetched.clear()
    clock.now = datetime(2026, 10, 13, 12, tzinfo=UTC)  # in Auckland the 13th closes two hours later
    server.answer(Scenario(away=status))
    before = sum(server.operations().values())
    deployment.run_for(OUTAGE)
    calls = sum(server.operations().values()) - before
    assert 10 < calls <= calls_to_tell + MOST_PROBES
    assert deployment.fetched == Counter()
    hit = days(date(2026, 10, 13), date(2026, 10, 13)) | days(FIRST, FIRST)
    failures = ledger.retry_queue.find_failures(hit)
    assert failures.keys() <= hit
    assert {each.failures for each in failures.values()} == {0}
    server.answer(Scenario())
    deployment.run_for(RECOVERED_WITHIN)
    assert hit <= set(deployment.fetched)
    assert max(deployment.fetched.values()) == 1
    assert ledger.quota.list_holds(SOURCE) == ()


@pytest.mark.invariant("L3")
def test_token_endpoint_that_is_away(server: LoopbackServer, deployment: Deployment, tmp_path: Path) -> None:
    """Without a token no call is possible: the source is on hold, no account is parked, and no day is counted."""
    document = yaml.safe_load(server.configuration.read_text())
    document["json_key_file_path"] = str(write_key_file(tmp_path, "http://127.0.0.1:9/token"))
    (tmp_path / "google-ads.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "google-ads.yaml").chmod(0o600)
    reachable, deployment.configuration = (
        deployment.configuration,
        read_configuration(str(tmp_path / "google-ads.yaml"), {}),
    )
    deployment.run_for(timedelta(minutes=20))
    (hold,) = deployment.ledger.quota.list_holds(SOURCE)
    assert hold.is_outage
    assert "127.0.0.1" in hold.why
    assert deployment.ledger.retry_queue.list_parkings(SOURCE) == []
    assert server.operations() == {}
    hit = days(FIRST, date(2026, 10, 12))
    assert {each.failures for each in deployment.ledger.retry_queue.find_failures(hit).values()} == {0}
    deployment.configuration = reachable
    deployment.run_for(RECOVERED_WITHIN)
    assert set(deployment.fetched) == hit


@pytest.mark.invariant("L4")
@pytest.mark.timeout(600)
def test_account_that_fails_alone_stops_nobody(server: LoopbackServer, deployment: Deployment) -> None:
    """One account is never answered. The days of the others are fetched at the first search; its own use up tries."""
    alone, others = ACCOUNTS[0], ACCOUNTS[1:]
    for failure in (RequestFailure(code="INTERNAL"), RequestFailure(code="UNAVAILABLE")):
        server.answer(Scenario(customers={alone: Behaviour(failure=failure)}))
        deployment.run_for(timedelta(minutes=35))
    fetched = {each.customer_id for each in deployment.fetched}
    assert fetched == set(others)
    assert set(deployment.fetched) == {each for each in days(FIRST, date(2026, 10, 12)) if each.customer_id != alone}
    failures = deployment.ledger.retry_queue.find_failures(
        each for each in days(FIRST, date(2026, 10, 12)) if each.customer_id == alone
    )
    assert {each.error_class for each in failures.values()} <= {"transient", "source_unavailable"}
