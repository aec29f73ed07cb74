"""A backfill that Dagster divides into a run for each day costs no more operations than one run would."""

import multiprocessing
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ads_pipeline.domain.fetching.fetch_results import Backfill
from ads_pipeline.domain.fetching.quota import Granted, Operation, QuotaLimits
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.google_ads.configuration import read_configuration
from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import Behaviour, Scenario
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.pipeline.arrivals import SealedRuns
from ads_pipeline.pipeline.extraction.google_ads_extraction import Extraction
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline_tests.builders import acceptance, key
from ads_pipeline_tests.google_ads.builders import failing, shipped_apis

DAYS = CUSTOMERS = 7
FIRST = datetime.now(UTC).date() - timedelta(days=DAYS + 3)
NAMES = [f"{4_000_000_000 + number}" for number in range(CUSTOMERS)]
DENIED = NAMES[3]
LEASE = timedelta(seconds=60)
RunDay = Callable[..., Landed]


def keys_of(day: int) -> list[PartitionKey]:
    return [key(customer, day=FIRST + timedelta(days=day)) for customer in NAMES]


def make_backfill(requested_at: datetime) -> Backfill:
    return Backfill(requested_at=requested_at, keys=frozenset(each for day in range(DAYS) for each in keys_of(day)))


@pytest.fixture
def run_day(server: LoopbackServer, url: str, tmp_path: Path) -> RunDay:
    """A run of Dagster for one day of all customers: a lease and clients of its own, and claims on its day."""

    def run(day: int, backfill: Backfill | None) -> Landed:
        raw = RawRuns(tmp_path / "raw", is_in_use=lambda: False)
        origin = EventOrigin(engine_run_id=f"day-{day}-{uuid.uuid4().hex}", plan_version="p1")
        with ExitStack() as stack:
            engine = stack.enter_context(database.open_checked_engine(url))
            lease = stack.enter_context(Lease.held(engine, origin.engine_run_id, duration=LEASE))
            lease.claim(keys_of(day))
            ledger = Ledger(engine, origin=origin, lease=lease)
            extraction = Extraction(
                apis=shipped_apis(), configuration=read_configuration(str(server.configuration), {}), ledger=ledger
            )
            source = extraction.source(raw, SealedRuns(raw=raw, runs=ledger.runs))
            return source.land(keys_of(day), backfill)

    return run


def landed_keys(landed: Landed) -> list[PartitionKey]:
    return sorted(each.run.key for each in landed.runs if each.run is not None)


def count_sealed(root: Path) -> int:
    return len(list(root.rglob("metadata.json")))


@pytest.mark.timeout(300)
def test_concurrent_runs_of_each_day_share_their_requests(
    server: LoopbackServer, run_day: RunDay, tmp_path: Path
) -> None:
    """Seven runs start at once. Each account costs one operation, a denied one too, and each day has one run."""
    slow = {name: Behaviour(delay_seconds=0.3) for name in NAMES if name != DENIED}
    refused = failing("authorization_error", "USER_PERMISSION_DENIED", code="PERMISSION_DENIED")
    server.answer(Scenario(customers={**slow, DENIED: Behaviour(failure=refused, delay_seconds=0.3)}))
    backfill = make_backfill(datetime.now(UTC))
    with ThreadPoolExecutor(DAYS) as pool:
        days = list(pool.map(lambda day: run_day(day, backfill), range(DAYS)))
    assert server.operations() == dict.fromkeys(NAMES, 1)
    for day, landed in enumerate(days):
        assert landed_keys(landed) == [each for each in keys_of(day) if each.customer_id != DENIED]
        assert [(each.key.customer_id, each.error_class) for each in landed.failed] == [(DENIED, "permission_denied")]
        assert landed.skipped == ()
    reasons = {(each.error_message, each.request_id) for landed in days for each in landed.failed}
    assert len(reasons) == 1, "the run whose call was refused and those that took its answer state the same reason"
    assert reasons.pop()[0].startswith("authorization_error.USER_PERMISSION_DENIED: ")
    assert count_sealed(tmp_path / "raw") == DAYS * (CUSTOMERS - 1)


def test_later_runs_find_what_the_first_has_fetched(server: LoopbackServer, run_day: RunDay, tmp_path: Path) -> None:
    """One after the other: only the first run calls. Without a backfill, a run fetches its own day alone."""
    backfill = make_backfill(datetime.now(UTC))
    for day in range(DAYS):
        assert landed_keys(run_day(day, backfill)) == keys_of(day)
    assert server.operations() == dict.fromkeys(NAMES, 1)
    assert count_sealed(tmp_path / "raw") == DAYS * CUSTOMERS
    later = make_backfill(datetime.now(UTC))
    assert landed_keys(run_day(0, later)) == keys_of(0)  # not judged yet, so they are taken
    assert server.operations() == dict.fromkeys(NAMES, 1)


def test_all_days_of_a_refused_account_wait_for_its_release(
    server: LoopbackServer, run_day: RunDay, url: str
) -> None:
    """A day whose run began after the parking fails like the first. So all are retried when it is released."""
    refused = failing("authorization_error", "USER_PERMISSION_DENIED", code="PERMISSION_DENIED")
    server.answer(Scenario(customers={DENIED: Behaviour(failure=refused)}))
    backfill = make_backfill(datetime.now(UTC))
    with Ledger.opened(url) as ledger:
        for day in (5, 0):
            landed = run_day(day, backfill)
            assert [(each.key, each.error_class) for each in landed.failed] == [
                (keys_of(day)[3], "permission_denied")
            ]
            ledger.failed_fetches.record(landed.failed, RetryPolicy())
        waiting = ledger.retry_queue.find_failures([keys_of(day)[3] for day in range(DAYS)])
    assert {each.logical_date for each in waiting} == {FIRST, FIRST + timedelta(days=5)}
    assert server.operations() == dict.fromkeys(NAMES, 1)
    alone = run_day(1, None)
    assert [each.key.customer_id for each in alone.skipped] == [DENIED]


def test_judged_runs_of_the_backfill_are_not_fetched_again(
    server: LoopbackServer, run_day: RunDay, url: str, tmp_path: Path
) -> None:
    """A sensor may have a fetched day judged before its own run starts. A later backfill fetches it again."""
    backfill = make_backfill(datetime.now(UTC))
    landed = run_day(0, backfill)
    with Ledger.opened(url) as ledger:
        SealRegister(raw=RawRuns(tmp_path / "raw"), registrations=ledger.registrations).register(landed.runs)
        ledger.verdicts.record(
            [acceptance(each.run, each.record_count) for each in landed.runs if isinstance(each, SealedRun)]
        )
    again = run_day(0, backfill)
    assert (again.runs, again.failed, again.skipped) == ((), (), ())
    assert server.operations() == dict.fromkeys(NAMES, 1)
    later = make_backfill(datetime.now(UTC))
    assert landed_keys(run_day(0, later)) == keys_of(0)
    assert server.operations() == dict.fromkeys(NAMES, 2)


def die_in_call(url: str) -> None:
    """Reserve the call of the first customer as a run that never ends it."""
    backfill = make_backfill(datetime.now(UTC))
    days = sorted(each.logical_date for each in backfill.keys)
    operation = Operation(
        source="google_ads", customer_id=NAMES[0], query_name="campaign_daily", since=days[0], until=days[-1]
    )
    engine = database.open_engine(url)
    lease = Lease(engine, "dead", duration=timedelta(seconds=5))
    lease.open()
    ledger = Ledger(engine, origin=EventOrigin(engine_run_id="dead", plan_version="p1"), lease=lease)
    assert isinstance(ledger.quota.reserve(operation, QuotaLimits()), Granted)


@pytest.mark.timeout(120)
def test_call_of_a_dead_run_is_made_again(server: LoopbackServer, run_day: RunDay, url: str) -> None:
    """A run died in its call. Others wait until its lease has expired, and then fetch the days themselves."""
    backfill = make_backfill(datetime.now(UTC) - timedelta(seconds=5))
    process = multiprocessing.get_context("spawn").Process(target=die_in_call, args=(url,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert landed_keys(run_day(0, backfill)) == keys_of(0)
    assert server.operations() == dict.fromkeys(NAMES, 1)
