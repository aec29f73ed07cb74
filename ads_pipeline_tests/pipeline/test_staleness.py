"""How current partitions are said to be, keys of a real ledger: reasons, what is shown, and where it is shown."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from ads_pipeline.domain.days.materialization_status import (
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
from ads_pipeline.pipeline.days.staleness import (
    AssetStatus,
    PartitionStaleness,
    StalenessCalculator,
    asset_code_versions,
)
from ads_pipeline_tests.google_ads.builders import shipped_apis
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    publish_runs,
    record_verdict,
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


def calculate(
    ledger: Ledger, clock: FakeClock, calculator: StalenessCalculator = PLAIN, partition: PartitionKey | None = None
) -> PartitionStaleness:
    selected = partition or key()
    return calculator.calculate(ledger.statuses, [selected], now=clock.now)[selected]


def displays(staleness: PartitionStaleness) -> tuple[DisplayStatus, DisplayStatus]:
    return staleness.raw.display, staleness.warehouse.display


def accept_run(ledger: Ledger, clock: FakeClock, run_id: str, *, loaded: bool = True) -> None:
    (registered_run,) = registered_runs(ledger, key(), run_id)
    clock.tick()
    record_verdict(ledger, acceptance(registered_run))
    clock.tick()
    if loaded:
        publish_runs(ledger, registered_run)
    clock.tick()


def test_partition_without_accepted_run_was_never_materialized(ledger: Ledger, clock: FakeClock) -> None:
    """The last attempt is shown beside the status."""
    calculator = StalenessCalculator({"campaign_daily": POLICY}, {"raw/campaign_daily": _code("9", clock.now)})
    clock.now = datetime(2027, 1, 1, tzinfo=UTC)
    unknown = calculate(ledger, clock, calculator)
    assert unknown == PartitionStaleness(
        raw=AssetStatus(status=None, stale=None), warehouse=AssetStatus(status=None, stale=None)
    )
    assert (displays(unknown), unknown.raw.last_attempt, unknown.raw.reasons) == ((NEVER, NEVER), None, ())
    (r1,) = registered_runs(ledger, key(), "r1")
    assert displays(calculate(ledger, clock, calculator)) == (NEVER, NEVER)
    record_verdict(ledger, rejection(r1))
    rejected = calculate(ledger, clock, calculator)
    assert (displays(rejected), rejected.raw.last_attempt) == ((NEVER, NEVER), AttemptOutcome.FAILED)
    assert rejected.raw.reasons == ()


def test_warehouse_is_stale_until_the_accepted_run_is_loaded(ledger: Ledger, clock: FakeClock) -> None:
    """It is stale since the acceptance."""
    accept_run(ledger, clock, "r1", loaded=False)
    assert displays(calculate(ledger, clock)) == (MATERIALIZED, NEVER)
    publish_runs(ledger, run(key(), "r1"))
    assert displays(calculate(ledger, clock)) == (MATERIALIZED, MATERIALIZED)
    accept_run(ledger, clock, "r2", loaded=False)
    behind = calculate(ledger, clock)
    assert displays(behind) == (MATERIALIZED, STALE)
    assert behind.warehouse.reasons == (UPSTREAM,)
    assert behind.raw.status is not None
    assert behind.warehouse.stale is not None
    assert behind.warehouse.stale.since == behind.raw.status.last_materialization_at
    publish_runs(ledger, run(key(), "r2"))
    assert displays(calculate(ledger, clock)) == (MATERIALIZED, MATERIALIZED)


def test_load_is_later_than_its_verdict(ledger: Ledger, clock: FakeClock) -> None:
    """After the clock went back between verdict and load, the warehouse is still not stale."""
    (r1,) = registered_runs(ledger, key(), "r1")
    clock.tick()
    record_verdict(ledger, acceptance(r1))
    clock.tick(-HOUR)
    publish_runs(ledger, r1)
    assert displays(calculate(ledger, clock)) == (MATERIALIZED, MATERIALIZED)


def test_confirmed_run_keeps_the_warehouse_current(ledger: Ledger, clock: FakeClock) -> None:
    """Accepting the same run again needs no load and does not make the raw asset fresher."""
    calculator = StalenessCalculator({"campaign_daily": POLICY}, {})
    accept_run(ledger, clock, "r1")
    clock.tick(40 * DAY)
    before = calculate(ledger, clock, calculator)
    record_verdict(ledger, acceptance(run(key(), "r1"), "again"))
    clock.tick()
    after = calculate(ledger, clock, calculator)
    assert displays(after) == displays(before) == (STALE, MATERIALIZED)
    assert after.raw.stale == before.raw.stale


def test_failed_load_is_shown_on_the_warehouse_asset(ledger: Ledger, clock: FakeClock) -> None:
    """The raw asset stays materialized; the failure takes precedence over the staleness."""
    accept_run(ledger, clock, "r1")
    accept_run(ledger, clock, "r2", loaded=False)
    ledger.loads.record_failed({run(key(), "r2"): "the disk is full"})
    staleness = calculate(ledger, clock)
    assert displays(staleness) == (MATERIALIZED, LAST_FAILED)
    assert staleness.warehouse.reasons == (UPSTREAM,)
    assert staleness.summary is staleness.warehouse


def test_freshness_policy_applies_to_its_query_only(ledger: Ledger, clock: FakeClock) -> None:
    """The raw asset becomes stale one microsecond after its deadline."""
    other = key(query_name="keyword_daily")
    clock.now = datetime(2026, 2, 2, 5, tzinfo=UTC)
    accepted_runs(ledger, [key(), other])
    publish_runs(ledger, run(key(), "r1"), run(other, "r1"))
    calculator = StalenessCalculator({"campaign_daily": POLICY}, {})
    deadline = datetime(2026, 2, 5, tzinfo=UTC)  # the day is the first, and has ended as the second begins
    clock.now = deadline
    assert displays(calculate(ledger, clock, calculator)) == (MATERIALIZED, MATERIALIZED)
    clock.tick(TICK)
    late = calculate(ledger, clock, calculator)
    assert (displays(late), late.raw.reasons) == ((STALE, MATERIALIZED), (FRESHNESS,))
    assert late.raw.stale is not None
    assert late.raw.stale.since == deadline
    assert displays(calculate(ledger, clock, calculator, other)) == (MATERIALIZED, MATERIALIZED)
    accept_run(ledger, clock, "r2")
    assert displays(calculate(ledger, clock, calculator)) == (MATERIALIZED, MATERIALIZED)
    clock.now = datetime(2026, 3, 4, tzinfo=UTC) + TICK
    assert calculate(ledger, clock, calculator).raw.reasons == (FRESHNESS,)


def test_new_query_version_makes_both_assets_stale(ledger: Ledger, clock: FakeClock) -> None:
    """They are stale since the version was first seen, and current after a rollback."""
    other = key(query_name="keyword_daily")
    accepted_runs(ledger, [key(), other])
    publish_runs(ledger, run(key(), "r1"), run(other, "r1"))
    status_table = StatusTable(ledger.engine)
    status_table.record_code_versions(
        "google_ads", asset_code_versions({"campaign_daily": "2", "keyword_daily": "1"})
    )
    seen = status_table.get_code_versions("google_ads")
    calculator = StalenessCalculator({}, seen)
    changed = calculate(ledger, clock, calculator)
    assert displays(changed) == (STALE, STALE)
    assert (changed.raw.reasons, changed.warehouse.reasons) == ((CODE,), (CODE,))
    assert changed.raw.stale is not None
    assert changed.raw.stale.since == seen["raw/campaign_daily"].since
    assert displays(calculate(ledger, clock, calculator, other)) == (MATERIALIZED, MATERIALIZED)
    status_table.record_code_versions("google_ads", asset_code_versions({"campaign_daily": "1"}))
    back = StalenessCalculator({}, status_table.get_code_versions("google_ads"))
    assert displays(calculate(ledger, clock, back)) == (MATERIALIZED, MATERIALIZED)


def test_stale_reasons_are_ordered(ledger: Ledger, clock: FakeClock) -> None:
    """All reasons are listed; the first one is the main reason."""
    accept_run(ledger, clock, "r1")
    accept_run(ledger, clock, "r2", loaded=False)
    clock.tick(60 * DAY)
    calculator = StalenessCalculator({"campaign_daily": POLICY}, dict.fromkeys(_ASSETS, _code("9", clock.now)))
    staleness = calculate(ledger, clock, calculator)
    assert staleness.raw.reasons == (FRESHNESS, CODE)
    assert staleness.warehouse.reasons == (UPSTREAM, CODE)
    assert staleness.raw.stale is not None
    assert staleness.raw.stale.reason is FRESHNESS


def test_summary_is_the_raw_asset_unless_it_is_materialized(ledger: Ledger, clock: FakeClock) -> None:
    """If the raw asset is plainly materialized, the summary is the warehouse asset."""
    unknown = calculate(ledger, clock)
    assert unknown.summary is unknown.raw
    accept_run(ledger, clock, "r1", loaded=False)
    unloaded = calculate(ledger, clock)
    assert (unloaded.summary is unloaded.warehouse, unloaded.summary.display) == (True, NEVER)
    publish_runs(ledger, run(key(), "r1"))
    current = calculate(ledger, clock)
    assert (current.summary is current.warehouse, current.summary.display) == (True, MATERIALIZED)
    (r2,) = registered_runs(ledger, key(), "r2")
    clock.tick()
    record_verdict(ledger, rejection(r2))
    failed = calculate(ledger, clock)
    assert (failed.summary is failed.raw, failed.summary.display) == (True, LAST_FAILED)


def test_results_keep_the_order_of_the_keys(ledger: Ledger, clock: FakeClock) -> None:
    """Repeated keys appear once; unknown partitions are included."""
    accepted_runs(ledger, [key(day=3)])
    keys = [key(day=4), key(day=3), key(day=4), key(day=1)]
    calculated = PLAIN.calculate(ledger.statuses, keys, now=clock.now)
    assert list(calculated) == [key(day=4), key(day=3), key(day=1)]
    assert [staleness.raw.display for staleness in calculated.values()] == [NEVER, MATERIALIZED, NEVER]
    assert PLAIN.calculate(ledger.statuses, [], now=clock.now) == {}


def test_stored_staleness_uses_the_upstream_of_its_tenant(sqlite_url: str, clock: FakeClock) -> None:
    """A warehouse row is compared with the raw row of its own tenant and workspace."""
    tenancy = Tenancy(tenant_id="acme", workspace_id="ads")
    with Ledger.opened(sqlite_url, clock=clock, tenancy=tenancy) as ledger:
        accept_run(ledger, clock, "r1")
        accept_run(ledger, clock, "r2", loaded=False)
        status_table = StatusTable(ledger.engine, tenancy=tenancy)
        assert PLAIN.store_changes(status_table, now=clock.now) == 1
        (stale_row,) = [row for row in status_table.read_all() if row.stale_reason_code]
        assert (stale_row.asset_key, stale_row.stale_reason_code) == ("warehouse/campaign_daily", UPSTREAM)


_ASSETS = ("raw/campaign_daily", "warehouse/campaign_daily")


def _code(version: str, since: datetime) -> CodeVersion:
    return CodeVersion(version=version, since=since)


def test_code_of_the_query_file_counts_before_a_run_records_it(ledger: Ledger, clock: FakeClock) -> None:
    """After a deployment, a partition is stale at once, and the time does not move from one reading to the next."""
    accept_run(ledger, clock, "r1")
    apis = shipped_apis()
    ledger.statuses.record_code_versions(apis.source, asset_code_versions({key().query_name: "1"}))
    query = apis.queries[key().query_name]
    current = query.model_copy(update={"schema_version": "1"})
    deployed = query.model_copy(update={"schema_version": "99"})
    found = []
    for each in (current, deployed, deployed):
        clock.now += HOUR
        changed = apis.model_copy(update={"queries": {key().query_name: each}})
        calculator = StalenessCalculator.of_ledger(ledger, changed, now=clock.now)
        found.append(calculate(ledger, clock, calculator).raw)
    before, after, again = found
    assert CODE not in before.reasons
    assert CODE in after.reasons
    assert after.stale == again.stale
    assert after.status is not None
    ledger.statuses.record_code_versions(apis.source, asset_code_versions({key().query_name: "99"}))
    calculator = StalenessCalculator.of_ledger(ledger, changed, now=clock.now)
    assert CODE in calculate(ledger, clock, calculator).raw.reasons
