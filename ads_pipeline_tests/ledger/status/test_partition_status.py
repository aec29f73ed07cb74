"""Tests how each write folds into the ADR-026 rows, and that row versions grow."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import (
    RAW,
    WAREHOUSE,
    AttemptOutcome,
    DisplayStatus,
    PartitionStatus,
    Tenancy,
    display_status,
)
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.write_steps.partition_status import get_last_write_instant
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
    sealed_runs,
)
from ads_pipeline_tests.ledger.status.finished_attempts import (
    last_attempt,
    materialization,
    read_status,
    read_statuses,
)

COLUMNS = [
    "tenant_id",
    "workspace_id",
    "asset_key",
    "partition_key",
    "last_materialization_run_id",
    "last_materialization_at",
    "last_materialization_code_version",
    "last_attempt_run_id",
    "last_attempt_at",
    "last_attempt_outcome",
    "stale_since",
    "stale_reason_code",
    "partition_values",
    "row_version",
]
SUCCEEDED, FAILED, CANCELLED = AttemptOutcome
HOUR = timedelta(hours=1)


def test_partition_status_has_the_decisions_columns(backdoor: sa.Engine) -> None:
    """The table has ADR-026's fourteen columns in its order and no other, on every database."""
    assert [column["name"] for column in sa.inspect(backdoor).get_columns("partition_status")] == COLUMNS


def test_partition_without_attempt_has_no_row(ledger: Ledger) -> None:
    """A pending state and a registered run are not attempts."""
    ledger.registrations.insert_pending([key(day=2)])
    registered_runs(ledger, key(), "r1")
    for asset in (RAW, WAREHOUSE):
        assert ledger.statuses.get_many(asset, [key(), key(day=2)]) == {key(): None, key(day=2): None}


@pytest.mark.invariant("P1", "P2")
def test_acceptance_is_materialization_and_attempt(timed_ledger: Ledger, clock: FakeClock) -> None:
    """An acceptance that becomes the authority materializes the raw asset, with the schema version of its rows."""
    clock.now = datetime(2026, 3, 1, 4, 5, 6, 789, tzinfo=UTC)
    timed_ledger.registrations.register(sealed_runs(run(key(), "r1"), schema_version="7"))
    clock.tick()
    record_verdict(timed_ledger, acceptance(run(key(), "r1")))
    row = read_status(timed_ledger, key())
    assert row == PartitionStatus(
        tenant_id="default",
        workspace_id="google_ads",
        asset_key="raw/campaign_daily",
        partition_key="1234567890|2026-02-01",
        last_materialization_run_id="r1",
        last_materialization_at=clock.now,
        last_materialization_code_version="7",
        last_attempt_run_id="r1",
        last_attempt_at=clock.now,
        last_attempt_outcome=SUCCEEDED,
        partition_values={"customer": "1234567890", "date": "2026-02-01"},
        row_version=row.row_version,
    )
    assert get_last_write_instant(row.row_version) == clock.now


@pytest.mark.invariant("P1", "P2")
def test_only_promotion_materializes(timed_ledger: Ledger, clock: FakeClock) -> None:
    """Rejections, superseded acceptances and confirmations are attempts. They keep the materialization time."""
    r1, r2, r3 = registered_runs(timed_ledger, key(), "r1", "r2", "r3")
    expected = [
        (rejection(r1), (None, None), ("r1", FAILED)),
        (acceptance(r2), ("r2", "1"), ("r2", SUCCEEDED)),
        (rejection(r3), ("r2", "1"), ("r3", FAILED)),
        (acceptance(r1, "again"), ("r2", "1"), ("r1", SUCCEEDED)),  # superseded
        (acceptance(r2, "again"), ("r2", "1"), ("r2", SUCCEEDED)),  # confirmed: the materialization stays
        (acceptance(r3, "again"), ("r3", "1"), ("r3", SUCCEEDED)),
        (rejection(r3, validation_id="third"), ("r3", "1"), ("r3", FAILED)),  # demoted
        (acceptance(r3, "fourth"), ("r3", "1"), ("r3", SUCCEEDED)),  # promoted again
    ]
    for verdict, expected_materialization, expected_attempt in expected:
        clock.tick()
        before = timed_ledger.statuses.get_many(RAW, [key()])[key()]
        record_verdict(timed_ledger, verdict)
        row = read_status(timed_ledger, key())
        assert (materialization(row), last_attempt(row)) == (expected_materialization, expected_attempt)
        assert row.last_attempt_at == clock.now
        if (
            before is not None
            and verdict.validation_id != "fourth"
            and materialization(before) == expected_materialization
        ):
            assert row.last_materialization_at == before.last_materialization_at
    assert read_status(timed_ledger, key()).last_materialization_at == clock.now


@pytest.mark.invariant("P1", "P2")
def test_verdicts_of_one_call_fold_in_order(timed_ledger: Ledger) -> None:
    """A later rejection in the same call keeps the materialization of an earlier acceptance."""
    r1, r2, r3 = registered_runs(timed_ledger, key(), "r1", "r2", "r3")
    timed_ledger.verdicts.record([acceptance(r1), rejection(r2)])
    row = read_status(timed_ledger, key())
    assert (materialization(row), last_attempt(row)) == (("r1", "1"), ("r2", FAILED))
    assert row.last_materialization_at is not None
    assert row.last_attempt_at == row.last_materialization_at + timedelta(microseconds=1)
    timed_ledger.verdicts.record([acceptance(r3), acceptance(r2, "again"), rejection(r1, validation_id="again")])
    assert (materialization(read_status(timed_ledger, key())), last_attempt(read_status(timed_ledger, key()))) == (
        ("r3", "1"),
        ("r1", FAILED),
    )


@pytest.mark.invariant("P1", "P2")
def test_loads_are_attempts_of_the_warehouse_asset(ledger: Ledger) -> None:
    """A publication materializes the warehouse asset. A failed load is an attempt and keeps the materialization."""
    r1, r2 = registered_runs(ledger, key(), "r1", "r2")
    ledger.loads.record_failed({r1: "the disk is full"})
    assert (
        materialization(read_status(ledger, key(), WAREHOUSE)),
        last_attempt(read_status(ledger, key(), WAREHOUSE)),
    ) == (
        (None, None),
        ("r1", FAILED),
    )
    record_verdict(ledger, acceptance(r1))
    publish_runs(ledger, r1)
    loaded = read_status(ledger, key(), WAREHOUSE)
    assert (materialization(loaded), last_attempt(loaded)) == (("r1", "1"), ("r1", SUCCEEDED))
    assert loaded.asset_key == "warehouse/campaign_daily"
    publish_runs(ledger, r1)
    assert read_status(ledger, key(), WAREHOUSE) == loaded
    record_verdict(ledger, acceptance(r2))
    ledger.loads.record_failed({r2: "the disk is full"})
    row = read_status(ledger, key(), WAREHOUSE)
    assert (materialization(row), last_attempt(row)) == (("r1", "1"), ("r2", FAILED))
    assert row.last_materialization_at == loaded.last_materialization_at
    assert display_status(row, None) is DisplayStatus.LAST_ATTEMPT_FAILED


@pytest.mark.invariant("P1", "P2", "P12")
@pytest.mark.parametrize(
    ("ended", "outcome", "shown"),
    [
        (RunStatus.CANCELLED, CANCELLED, DisplayStatus.MATERIALIZED),
        (RunStatus.FAILED, FAILED, DisplayStatus.LAST_ATTEMPT_FAILED),
        (RunStatus.COMPLETED, FAILED, DisplayStatus.LAST_ATTEMPT_FAILED),
    ],
)
def test_unjudged_rerun_keeps_the_materialization(
    url: str, ended: RunStatus, outcome: AttemptOutcome, shown: DisplayStatus
) -> None:
    """A success stays a success after a failed or cancelled rerun. Only a failed rerun changes the display status."""
    origin = EventOrigin(engine_run_id="engine-1", plan_version="p1")
    with Ledger.opened(url, origin=origin) as ledger:
        accepted_runs(ledger, [key()])
        before = read_status(ledger, key())
        registered_runs(ledger, key(), "r2")
        assert RunCompletionLog(ledger.engine).complete_run(origin, ended) == [key()]
        row = read_status(ledger, key())
        assert (materialization(row), row.last_materialization_at) == (
            materialization(before),
            before.last_materialization_at,
        )
        assert last_attempt(row) == ("r2", outcome)
        assert display_status(row, None) is shown
        assert (ledger.states.get(key()).status, ledger.states.get(key()).current_run_id) == (Status.SUCCESS, "r1")


def test_tenancies_have_separate_rows(url: str) -> None:
    """Every write uses the tenant and the workspace as part of the row key."""
    tenancy = Tenancy(tenant_id="acme", workspace_id="ads")
    origin = EventOrigin(engine_run_id="engine-1", plan_version="p1")
    with Ledger.opened(url, tenancy=tenancy, origin=origin) as ledger:
        accepted_runs(ledger, [key()])
        publish_runs(ledger, run(key(), "r1"))
        registered_runs(ledger, key(day=2), "r1")
        RunCompletionLog(ledger.engine, tenancy=tenancy).complete_run(origin, RunStatus.FAILED)
        table = StatusTable(ledger.engine, tenancy=tenancy)
        assert {(partition.tenant_id, partition.workspace_id) for partition in read_statuses(table)} == {
            ("acme", "ads")
        }
        assert len(read_statuses(table)) == 3
        before = read_statuses(table)
        table.rebuild()
        assert read_statuses(table) == before
        assert last_attempt(read_status(ledger, key(), WAREHOUSE)) == ("r1", SUCCEEDED)
    with LedgerReader.opened(url) as elsewhere:
        assert elsewhere.statuses.get_many(RAW, [key()]) == {key(): None}


@pytest.mark.invariant("P8")
def test_row_versions_grow_when_the_clock_goes_back(url: str, clock: FakeClock) -> None:
    """The next write of a row gets a later instant, even if the clock stops or goes back."""
    with Ledger.opened(url, clock=clock) as one, Ledger.opened(url, clock=clock) as other:
        runs = registered_runs(one, key(), *(f"r{number}" for number in range(9)))
        rows = []
        for number, each in enumerate(runs):
            clock.tick(timedelta(seconds=(number % 3 - 1) * 5))
            ledger = (one, other)[number % 2]
            record_verdict(ledger, rejection(each) if number % 3 == 1 else acceptance(each))
            rows.append(read_status(ledger, key()))
        for earlier, later in pairwise(rows):
            assert earlier.last_attempt_at is not None
            assert later.last_attempt_at is not None
            assert later.row_version > earlier.row_version
            assert later.last_attempt_at > earlier.last_attempt_at
        assert [row.last_attempt_run_id for row in rows] == [each.run_id for each in runs]
