"""What a sweep keeps in a row and when it does not, and since when code is the one that runs."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.freshness import (
    RAW,
    WAREHOUSE,
    CodeVersion,
    FreshnessPolicy,
    PartitionStatus,
    Staleness,
    StaleReason,
    Tenancy,
    make_asset_partition,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.staleness import StalenessCalculator
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    keys,
    registered_runs,
    publish_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.status.builders import DAY, DAYS, lived_in
from ads_pipeline_tests.ledger.status.finishes import made, raw_rows, status

STALE = Staleness(since=datetime(2026, 3, 1, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())


Answer = tuple[datetime, StaleReason] | None


def book_of(ledger: Ledger) -> StatusTable:
    return StatusTable(ledger._engine)


def kept(row: PartitionStatus) -> Answer:
    if row.stale_since is None or row.stale_reason_code is None:
        assert (row.stale_since, row.stale_reason_code) == (None, None)
        return None
    return row.stale_since, row.stale_reason_code


def answers(
    currencies: StalenessCalculator, ledger: Ledger, asked: list[PartitionKey], now: datetime
) -> dict[str, Answer]:
    """What a query says at that moment of each asset partition that has a row."""
    found: dict[str, Answer] = {}
    for currency in currencies.calculate(ledger, asked, now=now).values():
        for look in (currency.raw, currency.warehouse):
            if look.status is not None:
                stale = look.stale
                found[_named(look.status)] = None if stale is None else (stale.since, stale.reason)
    return found


def _named(row: PartitionStatus) -> str:
    return f"{row.asset_key} {row.partition_key}"


@pytest.mark.invariant("P6")
def test_a_sweep_keeps_what_a_query_answers(timed_ledger: Ledger, clock: FakeClock) -> None:
    """After a sweep each row holds the answer of that moment, and another sweep of that moment changes nothing."""
    lived_in(timed_ledger, clock)
    book = book_of(timed_ledger)
    born = clock.now
    seen: set[StaleReason] = set()

    @settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from([(), (3,), (20, 30, 40)]),
        st.sampled_from([None, "1", "2"]),
        st.integers(-1, 50).map(lambda days: born + days * DAY),
    )
    def check(policy: tuple[int, ...], version: str | None, now: datetime) -> None:
        code = CodeVersion(version=version, since=born + DAY) if version else None
        currencies = StalenessCalculator(
            {"campaign_daily": FreshnessPolicy(reread_after_days=policy)},
            {f"{asset}/campaign_daily": code for asset in (RAW, WAREHOUSE)} if code else {},
        )
        expected = answers(currencies, timed_ledger, DAYS, now)
        before = {_named(row): kept(row) for row in book.read_all()}
        assert currencies.store_changes(book, now=now) == sum(before[name] != expected[name] for name in expected)
        assert {_named(row): kept(row) for row in book.read_all()} == expected
        assert answers(currencies, timed_ledger, DAYS, now) == expected
        assert currencies.store_changes(book, now=now) == 0
        seen.update(answer[1] for answer in expected.values() if answer)

    check()
    assert seen == set(StaleReason)


@pytest.mark.invariant("P6")
def test_a_query_does_not_wait_for_a_sweep(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A changed policy and a new version are answered at once, although what the row keeps is the old answer."""
    accepted_runs(timed_ledger, [key()])
    book, now = book_of(timed_ledger), clock.now + 60 * DAY
    StalenessCalculator({}, {}).store_changes(book, now=now)
    policy = StalenessCalculator({"campaign_daily": FreshnessPolicy(reread_after_days=(40,))}, {})
    code = StalenessCalculator({}, {"raw/campaign_daily": CodeVersion(version="2", since=now)})
    assert policy.calculate(timed_ledger, [key()], now=now)[key()].raw.reasons == (StaleReason.FRESHNESS_POLICY,)
    assert code.calculate(timed_ledger, [key()], now=now)[key()].raw.reasons == (StaleReason.CODE_CHANGED,)
    assert kept(status(timed_ledger, key())) is None
    code.store_changes(book, now=now)
    assert kept(status(timed_ledger, key())) == (now, StaleReason.CODE_CHANGED)
    assert StalenessCalculator({}, {}).calculate(timed_ledger, [key()], now=now)[key()].raw.stale is None


@pytest.mark.invariant("P7", "P8")
@pytest.mark.parametrize("asset", [RAW, WAREHOUSE])
def test_what_was_made_since_the_look_is_not_marked(ledger: Ledger, asset: str) -> None:
    """A sweep that looked before a materialization, or before another sweep, changes nothing of that row."""
    others = [key(day=2)]
    accepted_runs(ledger, [key(), *others])
    publish_runs(ledger, run(key(), "r1"), run(others[0], "r1"))
    book = book_of(ledger)
    looked = [row for row in book.read_all() if row.asset_key.startswith(asset)]
    (r2,) = registered_runs(ledger, key(), "r2")
    ledger.record_verdict(acceptance(r2))
    publish_runs(ledger, r2)
    assert book.store_staleness([(row, STALE) for row in looked]) == 1
    fresh, marked = status(ledger, key(), asset), status(ledger, others[0], asset)
    assert (kept(fresh), made(fresh)) == (None, ("r2", "1"))
    assert kept(marked) == (STALE.since, STALE.reason)
    assert marked.row_version > looked[1].row_version
    assert book.store_staleness([(row, None) for row in looked]) == 0


@pytest.mark.invariant("P1", "P2", "P7")
def test_a_mark_lasts_until_something_is_made(ledger: Ledger) -> None:
    """An attempt that made nothing leaves the mark of the last sweep, a materialization takes it away."""
    accepted_runs(ledger, [key()])
    publish_runs(ledger, run(key(), "r1"))
    book = book_of(ledger)
    book.store_staleness([(row, STALE) for row in book.read_all()])
    (r2,) = registered_runs(ledger, key(), "r2")
    ledger.record_verdict(rejection(r2))
    ledger.record_failed_loads({r2: "no"})
    marked = [status(ledger, key(), asset) for asset in (RAW, WAREHOUSE)]
    assert [kept(row) for row in marked] == [(STALE.since, STALE.reason)] * 2
    ledger.record_verdict(acceptance(r2, "again"))
    publish_runs(ledger, r2)
    assert [kept(status(ledger, key(), asset)) for asset in (RAW, WAREHOUSE)] == [None, None]


@pytest.mark.invariant("P7")
def test_a_sweep_that_races_materializations_marks_only_what_it_saw(url: str) -> None:
    """Marked with the time of the data it looked at, no row is ever seen with the mark of other data than its own."""
    contested = keys(3)
    done = threading.Event()
    tally = {"kept": 0, "refused": 0}

    def sweep() -> None:
        with StatusTable.opened(url) as book:
            while not done.is_set():
                looked = [(row, _marked_by_its_data(row)) for row in raw_rows(book)]
                time.sleep(0.002)
                written = book.store_staleness(looked)
                tally["kept"] += written
                tally["refused"] += len(looked) - written

    with Ledger.opened(url) as ledger, StatusTable.opened(url) as watched, ThreadPoolExecutor(1) as pool:
        ledger.register(sealed_runs(*(run(each, f"r{number}") for each in contested for number in range(150))))
        sweeping = pool.submit(sweep)
        until = time.monotonic() + 20
        with set_on_exit(done):
            for number in range(150):
                ledger.record_verdicts([acceptance(run(each, f"r{number}")) for each in contested])
                for row in raw_rows(watched):
                    assert row.stale_since in (None, row.last_materialization_at)
                if (number >= 20 and all(tally.values())) or time.monotonic() > until:
                    break
                time.sleep(0.12 if number % 4 == 0 else 0)  # SQLite's waiters look each 0.1 s
        sweeping.result()
    assert all(tally.values()), tally


def _marked_by_its_data(row: PartitionStatus) -> Staleness:
    assert row.last_materialization_at is not None
    return Staleness(since=row.last_materialization_at, reason=StaleReason.CODE_CHANGED, reasons=())


def test_a_sweep_waits_for_nobody(postgres_url: str) -> None:
    """A row that somebody is writing is passed over; waiting for it could be waiting in a circle."""
    with Ledger.opened(postgres_url) as ledger, StatusTable.opened(postgres_url) as book:
        accepted_runs(ledger, keys(3))
        rows = list(book.read_all())
        touch = sa.text("UPDATE partition_status SET tenant_id = tenant_id WHERE partition_key = :key")
        with ledger._engine.begin() as writing, ThreadPoolExecutor(1) as pool:
            writing.execute(touch, {"key": rows[1].partition_key})
            sweeping = pool.submit(book.store_staleness, [(row, STALE) for row in rows])
            assert sweeping.result(timeout=10) == 2
        assert [kept(row) for row in book.read_all()] == [(STALE.since, STALE.reason), None, (STALE.since, STALE.reason)]


def test_a_version_is_as_old_as_its_first_sight(ledger: Ledger) -> None:
    """Said again, a version keeps its time; another one, also one that was there before, is dated by its coming."""
    book = book_of(ledger)
    assert book.get_code_versions("google_ads") == {}
    book.record_code_versions("google_ads", {"raw/q": "A", "warehouse/q": "A"})
    first = book.get_code_versions("google_ads")
    assert {each.version for each in first.values()} == {"A"}
    time.sleep(0.01)
    book.record_code_versions("google_ads", {"raw/q": "A", "warehouse/q": "B"})
    second = book.get_code_versions("google_ads")
    assert second["raw/q"] == first["raw/q"]
    assert second["warehouse/q"].version == "B"
    assert second["warehouse/q"].since > first["warehouse/q"].since
    time.sleep(0.01)
    book.record_code_versions("google_ads", {"warehouse/q": "A"})
    third = book.get_code_versions("google_ads")
    assert third["raw/q"] == first["raw/q"]
    assert third["warehouse/q"].version == "A"
    assert third["warehouse/q"].since > second["warehouse/q"].since


def test_versions_of_one_source_are_not_anothers(ledger: Ledger) -> None:
    """Two sources may have queries of one name; what is seen of the one says nothing of the other."""
    book = book_of(ledger)
    book.record_code_versions("google_ads", {"raw/q": "A"})
    book.record_code_versions("bing_ads", {"raw/q": "B"})
    assert book.get_code_versions("google_ads")["raw/q"].version == "A"
    book.record_code_versions("google_ads", {"raw/q": "B"})
    book.record_code_versions("bing_ads", {"raw/q": "A"})
    assert book.get_code_versions("google_ads")["raw/q"].version == "B"
    assert book.get_code_versions("bing_ads")["raw/q"].version == "A"
    assert StatusTable(ledger._engine, tenancy=Tenancy(tenant_id="acme")).get_code_versions("google_ads") == {}


def test_rows_are_listed_in_the_order_of_their_keys(ledger: Ledger) -> None:
    """Asset, then customer, then day: the same order on every database, and as of one moment."""
    asked = [
        key(customer, query_name=name, day=day) for customer in ("20", "3") for name in ("b", "a") for day in (2, 1)
    ]
    accepted_runs(ledger, asked)
    places = [row.asset_partition for row in book_of(ledger).read_all()]
    assert places == sorted(make_asset_partition(RAW, each) for each in asked)
    looking = book_of(ledger).read_all()
    first = next(looking)
    accepted_runs(ledger, [key("999", query_name="c")])
    assert [first.asset_partition, *(row.asset_partition for row in looking)] == places
    assert date.fromisoformat(first.partition_values["date"]) == date(2026, 2, 1)
