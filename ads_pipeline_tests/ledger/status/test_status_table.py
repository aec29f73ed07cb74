"""Tests stored staleness, code versions and the listing of status rows."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.days.materialization_status import (
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
from ads_pipeline.pipeline.days.staleness import StalenessCalculator
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    accepted_runs,
    key,
    keys,
    open_part,
    publish_runs,
    record_verdict,
    registered_runs,
    rejection,
    run,
    sealed_runs,
    set_on_exit,
)
from ads_pipeline_tests.ledger.status.builders import DAY, DAYS, create_all_conditions
from ads_pipeline_tests.ledger.status.finished_attempts import materialization, raw_rows, read_status

STALE = Staleness(since=datetime(2026, 3, 1, tzinfo=UTC), reason=StaleReason.CODE_CHANGED, reasons=())


StaleValue = tuple[datetime, StaleReason] | None


def open_table(ledger: Ledger) -> StatusTable:
    return StatusTable(ledger.engine)


def stored_staleness(row: PartitionStatus) -> StaleValue:
    if row.stale_since is None or row.stale_reason_code is None:
        assert (row.stale_since, row.stale_reason_code) == (None, None)
        return None
    return row.stale_since, row.stale_reason_code


def calculate_all(
    calculator: StalenessCalculator, ledger: Ledger, keys: list[PartitionKey], now: datetime
) -> dict[str, StaleValue]:
    """Return the calculated staleness of each asset partition that has a status row."""
    found: dict[str, StaleValue] = {}
    for partition in calculator.calculate(ledger.statuses, keys, now=now).values():
        for asset in (partition.raw, partition.warehouse):
            if asset.status is not None:
                stale = asset.stale
                found[_row_name(asset.status)] = None if stale is None else (stale.since, stale.reason)
    return found


def _row_name(row: PartitionStatus) -> str:
    return f"{row.asset_key} {row.partition_key}"


@pytest.mark.invariant("P6")
def test_sweep_stores_what_the_calculator_returns(timed_ledger: Ledger, clock: FakeClock) -> None:
    """After a sweep each row holds the calculated staleness. A second sweep at the same instant writes nothing."""
    create_all_conditions(timed_ledger, clock)
    table = open_table(timed_ledger)
    start = clock.now
    seen: set[StaleReason] = set()

    @settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.sampled_from([(), (3,), (20, 30, 40)]),
        st.sampled_from([None, "1", "2"]),
        st.integers(-1, 50).map(lambda days: start + days * DAY),
    )
    def check(policy: tuple[int, ...], version: str | None, now: datetime) -> None:
        code = CodeVersion(version=version, since=start + DAY) if version else None
        calculator = StalenessCalculator(
            {"campaign_daily": FreshnessPolicy(reread_after_days=policy)},
            {f"{asset}/campaign_daily": code for asset in (RAW, WAREHOUSE)} if code else {},
        )
        expected = calculate_all(calculator, timed_ledger, DAYS, now)
        before = {_row_name(row): stored_staleness(row) for row in table.read_all()}
        assert calculator.store_changes(table, now=now) == sum(before[name] != expected[name] for name in expected)
        assert {_row_name(row): stored_staleness(row) for row in table.read_all()} == expected
        assert calculate_all(calculator, timed_ledger, DAYS, now) == expected
        assert calculator.store_changes(table, now=now) == 0
        seen.update(value[1] for value in expected.values() if value)

    check()
    assert seen == set(StaleReason)


@pytest.mark.invariant("P6")
def test_calculated_staleness_does_not_need_a_sweep(timed_ledger: Ledger, clock: FakeClock) -> None:
    """A changed policy and a new code version count at once, while the row still stores the earlier staleness."""
    accepted_runs(timed_ledger, [key()])
    table, now = open_table(timed_ledger), clock.now + 60 * DAY
    StalenessCalculator({}, {}).store_changes(table, now=now)
    policy = StalenessCalculator({"campaign_daily": FreshnessPolicy(reread_after_days=(40,))}, {})
    code = StalenessCalculator({}, {"raw/campaign_daily": CodeVersion(version="2", since=now)})
    assert policy.calculate(timed_ledger.statuses, [key()], now=now)[key()].raw.reasons == (
        StaleReason.FRESHNESS_POLICY,
    )
    assert code.calculate(timed_ledger.statuses, [key()], now=now)[key()].raw.reasons == (StaleReason.CODE_CHANGED,)
    assert stored_staleness(read_status(timed_ledger, key())) is None
    code.store_changes(table, now=now)
    assert stored_staleness(read_status(timed_ledger, key())) == (now, StaleReason.CODE_CHANGED)
    assert StalenessCalculator({}, {}).calculate(timed_ledger.statuses, [key()], now=now)[key()].raw.stale is None


@pytest.mark.invariant("P7", "P8")
@pytest.mark.parametrize("asset", [RAW, WAREHOUSE])
def test_sweep_skips_rows_that_changed_since_the_read(ledger: Ledger, asset: str) -> None:
    """A sweep that read a row before a materialization, or before another sweep, does not write that row."""
    others = [key(day=2)]
    accepted_runs(ledger, [key(), *others])
    publish_runs(ledger, run(key(), "r1"), run(others[0], "r1"))
    table = open_table(ledger)
    read = [row for row in table.read_all() if row.asset_key.startswith(asset)]
    (r2,) = registered_runs(ledger, key(), "r2")
    record_verdict(ledger, acceptance(r2))
    publish_runs(ledger, r2)
    assert table.store_staleness([(row, STALE) for row in read]) == 1
    fresh, stale = read_status(ledger, key(), asset), read_status(ledger, others[0], asset)
    assert (stored_staleness(fresh), materialization(fresh)) == (None, ("r2", "1"))
    assert stored_staleness(stale) == (STALE.since, STALE.reason)
    assert stale.row_version > read[1].row_version
    assert table.store_staleness([(row, None) for row in read]) == 0


@pytest.mark.invariant("P1", "P2", "P7")
def test_stored_staleness_lasts_until_materialization(ledger: Ledger) -> None:
    """An attempt without materialization keeps the stored staleness. A materialization clears it."""
    accepted_runs(ledger, [key()])
    publish_runs(ledger, run(key(), "r1"))
    table = open_table(ledger)
    table.store_staleness([(row, STALE) for row in table.read_all()])
    (r2,) = registered_runs(ledger, key(), "r2")
    record_verdict(ledger, rejection(r2))
    ledger.loads.record_failed({r2: "no"})
    stale = [read_status(ledger, key(), asset) for asset in (RAW, WAREHOUSE)]
    assert [stored_staleness(row) for row in stale] == [(STALE.since, STALE.reason)] * 2
    record_verdict(ledger, acceptance(r2, "again"))
    publish_runs(ledger, r2)
    assert [stored_staleness(read_status(ledger, key(), asset)) for asset in (RAW, WAREHOUSE)] == [None, None]


@pytest.mark.invariant("P7")
def test_racing_sweep_writes_only_rows_that_it_read(url: str) -> None:
    """A row never shows staleness that a sweep calculated from an earlier materialization."""
    contested = keys(3)
    done = threading.Event()
    tally = {"written": 0, "skipped": 0}

    def sweep() -> None:
        with open_part(StatusTable, url) as table:
            while not done.is_set():
                found = [(row, _stale_since_materialization(row)) for row in raw_rows(table)]
                time.sleep(0.002)
                written = table.store_staleness(found)
                tally["written"] += written
                tally["skipped"] += len(found) - written

    with Ledger.opened(url) as ledger, open_part(StatusTable, url) as watched, ThreadPoolExecutor(1) as pool:
        ledger.registrations.register(
            sealed_runs(*(run(each, f"r{number}") for each in contested for number in range(150)))
        )
        sweeping = pool.submit(sweep)
        until = time.monotonic() + 600
        with set_on_exit(done):
            for number in range(150):
                ledger.verdicts.record([acceptance(run(each, f"r{number}")) for each in contested])
                for row in raw_rows(watched):
                    assert row.stale_since in (None, row.last_materialization_at)
                if (number >= 20 and all(tally.values())) or time.monotonic() > until:
                    break
                time.sleep(0.12 if number % 4 == 0 else 0)  # SQLite retries a busy lock every 0.1 s
        sweeping.result()
    assert all(tally.values()), tally


def _stale_since_materialization(row: PartitionStatus) -> Staleness:
    assert row.last_materialization_at is not None
    return Staleness(since=row.last_materialization_at, reason=StaleReason.CODE_CHANGED, reasons=())


def test_sweep_skips_locked_rows(postgres_url: str) -> None:
    """A sweep skips a row that another transaction holds, because waiting could deadlock."""
    with Ledger.opened(postgres_url) as ledger, open_part(StatusTable, postgres_url) as table:
        accepted_runs(ledger, keys(3))
        rows = list(table.read_all())
        touch = sa.text("UPDATE partition_status SET tenant_id = tenant_id WHERE partition_key = :key")
        with ledger.engine.begin() as writing, ThreadPoolExecutor(1) as pool:
            writing.execute(touch, {"key": rows[1].partition_key})
            sweeping = pool.submit(table.store_staleness, [(row, STALE) for row in rows])
            assert sweeping.result(timeout=120) == 2
        assert [stored_staleness(row) for row in table.read_all()] == [
            (STALE.since, STALE.reason),
            None,
            (STALE.since, STALE.reason),
        ]


def test_code_version_is_dated_by_its_first_record(ledger: Ledger) -> None:
    """A repeated version keeps its time. A changed version gets a new time, also when it was current earlier."""
    table = open_table(ledger)
    assert table.get_code_versions("google_ads") == {}
    table.record_code_versions("google_ads", {"raw/q": "A", "warehouse/q": "A"})
    first = table.get_code_versions("google_ads")
    assert {each.version for each in first.values()} == {"A"}
    time.sleep(0.01)
    table.record_code_versions("google_ads", {"raw/q": "A", "warehouse/q": "B"})
    second = table.get_code_versions("google_ads")
    assert second["raw/q"] == first["raw/q"]
    assert second["warehouse/q"].version == "B"
    assert second["warehouse/q"].since > first["warehouse/q"].since
    time.sleep(0.01)
    table.record_code_versions("google_ads", {"warehouse/q": "A"})
    third = table.get_code_versions("google_ads")
    assert third["raw/q"] == first["raw/q"]
    assert third["warehouse/q"].version == "A"
    assert third["warehouse/q"].since > second["warehouse/q"].since


def test_code_versions_are_separate_per_source(ledger: Ledger) -> None:
    """Two sources may have a query of the same name, with different code versions."""
    table = open_table(ledger)
    table.record_code_versions("google_ads", {"raw/q": "A"})
    table.record_code_versions("bing_ads", {"raw/q": "B"})
    assert table.get_code_versions("google_ads")["raw/q"].version == "A"
    table.record_code_versions("google_ads", {"raw/q": "B"})
    table.record_code_versions("bing_ads", {"raw/q": "A"})
    assert table.get_code_versions("google_ads")["raw/q"].version == "B"
    assert table.get_code_versions("bing_ads")["raw/q"].version == "A"
    assert StatusTable(ledger.engine, tenancy=Tenancy(tenant_id="acme")).get_code_versions("google_ads") == {}


def test_rows_are_read_in_key_order(ledger: Ledger) -> None:
    """Rows come by asset, customer and day, in the same order on every database, as of one moment."""
    partitions = [
        key(customer, query_name=name, day=day) for customer in ("20", "3") for name in ("b", "a") for day in (2, 1)
    ]
    accepted_runs(ledger, partitions)
    expected = [row.asset_partition for row in open_table(ledger).read_all()]
    assert expected == sorted(make_asset_partition(RAW, each) for each in partitions)
    rest = open_table(ledger).read_all()
    first = next(rest)
    accepted_runs(ledger, [key("999", query_name="c")])
    assert [first.asset_partition, *(row.asset_partition for row in rest)] == expected
    assert date.fromisoformat(first.partition_values["date"]) == date(2026, 2, 1)
