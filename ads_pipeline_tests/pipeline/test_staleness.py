"""How current partitions are said to be, asked of a real ledger: reasons, what is shown, and where it is shown."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.domain.freshness import (
    AttemptOutcome,
    CodeVersion,
    DisplayStatus,
    FreshnessPolicy,
    StaleReason,
    Tenancy,
)
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.pipeline.staleness import AssetStatus, PartitionStaleness, StalenessCalculator, asset_code_versions
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    publish_runs,
    registered_runs,
    rejection,
    run,
)

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TICK = timedelta(microseconds=1)
POLICY = FreshnessPolicy(reread_after_days=(3, 30))
PLAIN = StalenessCalculator({}, {})
NEVER, MATERIALIZED, STALE, LAST_FAILED = DisplayStatus
FRESHNESS, UPSTREAM, CODE = StaleReason


@pytest.fixture
def ledger(sqlite_url: str, clock: FakeClock) -> Iterator[Ledger]:
    with Ledger.opened(sqlite_url, clock=clock) as opened:
        yield opened


def ask(
    ledger: Ledger, clock: FakeClock, currencies: StalenessCalculator = PLAIN, partition: PartitionKey | None = None
) -> PartitionStaleness:
    asked = partition or key()
    return currencies.calculate(ledger, [asked], now=clock.now)[asked]


def shown(currency: PartitionStaleness) -> tuple[DisplayStatus, DisplayStatus]:
    return currency.raw.display, currency.warehouse.display


def make(ledger: Ledger, clock: FakeClock, run_id: str, *, loaded: bool = True) -> None:
    (landed_run,) = registered_runs(ledger, key(), run_id)
    clock.tick()
    ledger.record_verdict(acceptance(landed_run))
    clock.tick()
    if loaded:
        publish_runs(ledger, landed_run)
    clock.tick()


def test_what_was_never_made_is_shown_as_that(ledger: Ledger, clock: FakeClock) -> None:
    """Unknown, landed and only rejected partitions were never materialized; what was tried is told beside it."""
    everything = StalenessCalculator({"campaign_daily": POLICY}, {"raw/campaign_daily": _code("9", clock.now)})
    clock.now = datetime(2027, 1, 1, tzinfo=UTC)
    unknown = ask(ledger, clock, everything)
    assert unknown == PartitionStaleness(
        raw=AssetStatus(status=None, stale=None), warehouse=AssetStatus(status=None, stale=None)
    )
    assert (shown(unknown), unknown.raw.last_attempt, unknown.raw.reasons) == ((NEVER, NEVER), None, ())
    (r1,) = registered_runs(ledger, key(), "r1")
    assert shown(ask(ledger, clock, everything)) == (NEVER, NEVER)
    ledger.record_verdict(rejection(r1))
    rejected = ask(ledger, clock, everything)
    assert (shown(rejected), rejected.raw.last_attempt) == ((NEVER, NEVER), AttemptOutcome.FAILED)
    assert rejected.raw.reasons == ()


def test_the_warehouse_follows_what_was_accepted(ledger: Ledger, clock: FakeClock) -> None:
    """Accepted again and not loaded, the warehouse is stale since the acceptance, until that run is loaded."""
    make(ledger, clock, "r1", loaded=False)
    assert shown(ask(ledger, clock)) == (MATERIALIZED, NEVER)
    publish_runs(ledger, run(key(), "r1"))
    assert shown(ask(ledger, clock)) == (MATERIALIZED, MATERIALIZED)
    make(ledger, clock, "r2", loaded=False)
    behind = ask(ledger, clock)
    assert shown(behind) == (MATERIALIZED, STALE)
    assert behind.warehouse.reasons == (UPSTREAM,)
    assert behind.raw.status is not None
    assert behind.warehouse.stale is not None
    assert behind.warehouse.stale.since == behind.raw.status.last_materialization_at
    publish_runs(ledger, run(key(), "r2"))
    assert shown(ask(ledger, clock)) == (MATERIALIZED, MATERIALIZED)


def test_a_load_is_later_than_what_it_loads(ledger: Ledger, clock: FakeClock) -> None:
    """When the clock goes back between a verdict and the load of it, the warehouse is current all the same."""
    (r1,) = registered_runs(ledger, key(), "r1")
    clock.tick()
    ledger.record_verdict(acceptance(r1))
    clock.tick(-HOUR)
    publish_runs(ledger, r1)
    assert shown(ask(ledger, clock)) == (MATERIALIZED, MATERIALIZED)


def test_a_confirmed_run_leaves_the_warehouse_current(ledger: Ledger, clock: FakeClock) -> None:
    """A re-validation finds the run as good as it was: there is nothing to load, and nothing was reported again."""
    currencies = StalenessCalculator({"campaign_daily": POLICY}, {})
    make(ledger, clock, "r1")
    clock.tick(40 * DAY)
    before = ask(ledger, clock, currencies)
    ledger.record_verdict(acceptance(run(key(), "r1"), "again"))
    clock.tick()
    after = ask(ledger, clock, currencies)
    assert shown(after) == shown(before) == (STALE, MATERIALIZED)
    assert after.raw.stale == before.raw.stale


def test_a_failed_load_is_shown_where_it_failed(ledger: Ledger, clock: FakeClock) -> None:
    """The raw asset is as current as it was; the warehouse shows the failure and not that it is behind."""
    make(ledger, clock, "r1")
    make(ledger, clock, "r2", loaded=False)
    ledger.record_failed_loads({run(key(), "r2"): "the disk is full"})
    currency = ask(ledger, clock)
    assert shown(currency) == (MATERIALIZED, LAST_FAILED)
    assert currency.warehouse.reasons == (UPSTREAM,)
    assert currency.summary is currency.warehouse


def test_each_query_has_its_own_policy(ledger: Ledger, clock: FakeClock) -> None:
    """Only raw data of a query with a policy age: a microsecond after the deadline that they do not meet."""
    other = key(query_name="keyword_daily")
    clock.now = datetime(2026, 2, 2, 5, tzinfo=UTC)
    accepted_runs(ledger, [key(), other])
    publish_runs(ledger, run(key(), "r1"), run(other, "r1"))
    currencies = StalenessCalculator({"campaign_daily": POLICY}, {})
    deadline = datetime(2026, 2, 5, tzinfo=UTC)  # the day is the first, and has ended as the second begins
    clock.now = deadline
    assert shown(ask(ledger, clock, currencies)) == (MATERIALIZED, MATERIALIZED)
    clock.tick(TICK)
    late = ask(ledger, clock, currencies)
    assert (shown(late), late.raw.reasons) == ((STALE, MATERIALIZED), (FRESHNESS,))
    assert late.raw.stale is not None
    assert late.raw.stale.since == deadline
    assert shown(ask(ledger, clock, currencies, other)) == (MATERIALIZED, MATERIALIZED)
    make(ledger, clock, "r2")
    assert shown(ask(ledger, clock, currencies)) == (MATERIALIZED, MATERIALIZED)
    clock.now = datetime(2026, 3, 4, tzinfo=UTC) + TICK
    assert ask(ledger, clock, currencies).raw.reasons == (FRESHNESS,)


def test_a_new_version_of_a_query_makes_both_its_assets_stale(ledger: Ledger, clock: FakeClock) -> None:
    """Both are stale since the new version was first seen, and current again when the old one is back."""
    other = key(query_name="keyword_daily")
    accepted_runs(ledger, [key(), other])
    publish_runs(ledger, run(key(), "r1"), run(other, "r1"))
    book = StatusTable(ledger._engine)
    book.record_code_versions("google_ads", asset_code_versions({"campaign_daily": "2", "keyword_daily": "1"}))
    seen = book.get_code_versions("google_ads")
    currencies = StalenessCalculator({}, seen)
    changed = ask(ledger, clock, currencies)
    assert shown(changed) == (STALE, STALE)
    assert (changed.raw.reasons, changed.warehouse.reasons) == ((CODE,), (CODE,))
    assert changed.raw.stale is not None
    assert changed.raw.stale.since == seen["raw/campaign_daily"].since
    assert shown(ask(ledger, clock, currencies, other)) == (MATERIALIZED, MATERIALIZED)
    book.record_code_versions("google_ads", asset_code_versions({"campaign_daily": "1"}))
    back = StalenessCalculator({}, book.get_code_versions("google_ads"))
    assert shown(ask(ledger, clock, back)) == (MATERIALIZED, MATERIALIZED)


def test_all_reasons_are_told_in_their_order(ledger: Ledger, clock: FakeClock) -> None:
    """Where several hold the first decides, and the others are told as well."""
    make(ledger, clock, "r1")
    make(ledger, clock, "r2", loaded=False)
    clock.tick(60 * DAY)
    currencies = StalenessCalculator({"campaign_daily": POLICY}, dict.fromkeys(_ASSETS, _code("9", clock.now)))
    currency = ask(ledger, clock, currencies)
    assert currency.raw.reasons == (FRESHNESS, CODE)
    assert currency.warehouse.reasons == (UPSTREAM, CODE)
    assert currency.raw.stale is not None
    assert currency.raw.stale.reason is FRESHNESS


def test_the_one_to_show_is_the_first_that_is_not_current(ledger: Ledger, clock: FakeClock) -> None:
    """Raw speaks when it is not simply current, else the warehouse, which is what readers get."""
    unknown = ask(ledger, clock)
    assert unknown.summary is unknown.raw
    make(ledger, clock, "r1", loaded=False)
    unloaded = ask(ledger, clock)
    assert (unloaded.summary is unloaded.warehouse, unloaded.summary.display) == (True, NEVER)
    publish_runs(ledger, run(key(), "r1"))
    current = ask(ledger, clock)
    assert (current.summary is current.warehouse, current.summary.display) == (True, MATERIALIZED)
    (r2,) = registered_runs(ledger, key(), "r2")
    clock.tick()
    ledger.record_verdict(rejection(r2))
    failed = ask(ledger, clock)
    assert (failed.summary is failed.raw, failed.summary.display) == (True, LAST_FAILED)


def test_partitions_are_answered_in_the_order_asked(ledger: Ledger, clock: FakeClock) -> None:
    """Each once, however often it is asked for, beside those that nobody knows."""
    accepted_runs(ledger, [key(day=3)])
    asked = [key(day=4), key(day=3), key(day=4), key(day=1)]
    answered = PLAIN.calculate(ledger, asked, now=clock.now)
    assert list(answered) == [key(day=4), key(day=3), key(day=1)]
    assert [currency.raw.display for currency in answered.values()] == [NEVER, MATERIALIZED, NEVER]
    assert PLAIN.calculate(ledger, [], now=clock.now) == {}


def test_a_sweep_knows_each_spaces_upstream(sqlite_url: str, clock: FakeClock) -> None:
    """The warehouse's row is compared with the raw row of its own tenant and workspace."""
    tenancy = Tenancy(tenant_id="acme", workspace_id="ads")
    with Ledger.opened(sqlite_url, clock=clock, tenancy=tenancy) as ledger:
        make(ledger, clock, "r1")
        make(ledger, clock, "r2", loaded=False)
        book = StatusTable(ledger._engine, tenancy=tenancy)
        assert PLAIN.store_changes(book, now=clock.now) == 1
        (swept,) = [row for row in book.read_all() if row.stale_reason_code]
        assert (swept.asset_key, swept.stale_reason_code) == ("warehouse/campaign_daily", UPSTREAM)


_ASSETS = ("raw/campaign_daily", "warehouse/campaign_daily")


def _code(version: str, since: datetime) -> CodeVersion:
    return CodeVersion(version=version, since=since)
