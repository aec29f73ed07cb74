"""The plan of a backfill says what a day needs, and the server counts as many operations."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import ListedAccount, Scenario
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.days.account_days import AccountDays
from ads_pipeline.pipeline.extraction.due_days import DueDays
from ads_pipeline.pipeline.extraction.fetch_plan import plan_fetches
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.settings.query_file import GoogleApis
from ads_pipeline_tests.google_ads.builders import LOGIN, shipped_apis
from ads_pipeline_tests.ledger.builders import FakeClock, acceptance

FIRST = date(2026, 3, 16)
REREAD, WINDOW, WEEK = 7, 20, 7
STEADY = WINDOW + 3  # days after which every day has been read again a last time
ZONES = ("Pacific/Kiritimati", "Etc/UTC", "America/Los_Angeles")
ACCOUNTS = tuple(f"{2_000_000_000 + number}" for number in range(WEEK))  # one conversion window a day
TICKS = 8  # of a simulated day; days end and close at other times
QUERY = "campaign_daily"


@pytest.fixture
def apis() -> GoogleApis:
    shipped = shipped_apis()
    query = shipped.queries[QUERY].model_copy(update={"reread_after_days": (REREAD,), "lookback_days": None})
    return shipped.model_copy(update={"start_date": FIRST - timedelta(days=30), "queries": {QUERY: query}})


class SimulatedDays:
    """Discovery once a day, and all due days every three hours. Every fetched run is accepted."""

    def __init__(self, server: LoopbackServer, ledger: Ledger, apis: GoogleApis, raw: Path, clock: FakeClock) -> None:
        self._server, self._ledger, self._apis, self._clock = server, ledger, apis, clock
        self._raw = RawRuns(raw, is_in_use=ledger.runs.exist)
        configuration = read_configuration(str(server.configuration), {})
        self._extraction = Extraction(apis=apis, configuration=configuration, ledger=ledger, clock=clock)

    def plan(self) -> int:
        """The operations that a day needs, as the plan of an empty backfill says."""
        days = AccountDays.read(self._ledger, self._apis, now=self._clock.now)
        return sum(plan_fetches(self._ledger, days, []).daily_operations.values())

    def spend(self, day: date) -> Mapping[str, int]:
        """Let a day pass, and return the operations of each account."""
        before = self._server.operations()
        start = datetime(day.year, day.month, day.day, 0, 30, tzinfo=UTC)
        for number in range(TICKS):
            self._clock.now = start + timedelta(hours=number * 24 / TICKS)
            if number == 0:
                self._extraction.discover()
            self._fetch()
        after = self._server.operations()
        return {name: after[name] - before.get(name, 0) for name in after}

    def _fetch(self) -> None:
        days = AccountDays.read(self._ledger, self._apis, now=self._clock.now)
        found = DueDays(ledger=self._ledger, days=days, policy=RetryPolicy()).find()
        source = self._extraction.source(self._raw, SealedRuns(raw=self._raw, runs=self._ledger.runs))
        if found:
            landed = source.land(sorted(found))
            assert (landed.failed, landed.skipped) == ((), ())
            runs = [each for each in landed.runs if isinstance(each, SealedRun)]
            SealRegister(raw=self._raw, registrations=self._ledger.registrations).register(runs)
            self._ledger.verdicts.record([acceptance(each.run) for each in runs])


@pytest.fixture
def simulated(
    server: LoopbackServer, timed_ledger: Ledger, apis: GoogleApis, tmp_path: Path, clock: FakeClock
) -> SimulatedDays:
    accounts = [ListedAccount(customer_id=LOGIN, level=0, manager=True)]
    accounts += [
        ListedAccount(customer_id=each, time_zone=ZONES[number % len(ZONES)]) for number, each in enumerate(ACCOUNTS)
    ]
    windows = {each: {"ENABLED": WINDOW} for each in ACCOUNTS}
    server.answer(Scenario(accessible=(LOGIN,), clients={LOGIN: tuple(accounts)}, conversion_windows=windows))
    return SimulatedDays(server, timed_ledger, apis, tmp_path / "raw", clock)


def test_plan_says_what_a_day_spends(simulated: SimulatedDays) -> None:
    """The first week of an account costs one operation, each day of the next two weeks one, and then the plan's.

    Over a week the plan has as many operations as the server counts: for yesterday, rereads and discovery.
    """
    days = [FIRST + timedelta(days=number) for number in range(STEADY + WEEK)]
    first = simulated.spend(days[0])
    assert {first[each] for each in ACCOUNTS} == {3}, "its conversion windows, its first week, and the next day"
    early = [simulated.spend(day) for day in days[1:WEEK]]
    assert {spent[each] for spent in early for each in ACCOUNTS} == {1}
    for day in days[WEEK:STEADY]:
        simulated.spend(day)
    planned, spent = 0, 0
    for day in days[STEADY:]:
        planned += simulated.plan()
        spent += sum(simulated.spend(day).values())
    assert spent == planned == WEEK * (2 * len(ACCOUNTS) + 3)
