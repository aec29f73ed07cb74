"""One run takes all that arrived together, over all queries, and leaves the rest of its range as it is."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import LedgerUnavailable
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.orchestration.asset_checks import check_keys
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import define_partitions
from ads_pipeline.orchestration.runs.run_tags import QUERY_TAG
from ads_pipeline.orchestration.sensors.run_requests import build_run_requests
from ads_pipeline.pipeline.loading import Loader
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.ledger.test_database_constraints import read_all_tables
from ads_pipeline_tests.orchestration.builders import (
    RAW,
    WAREHOUSE,
    Location,
    dagster_keys,
    open_location,
    request_partitions,
)
from ads_pipeline_tests.orchestration.sensors.ticks import (
    due_partitions,
    execute_requests,
    requested_ranges,
    tick,
)
from ads_pipeline_tests.pipeline.builders import QUERY, key, seal_invalid_run, seal_run, visible_runs

READABLE, REJECTED, ABSENT, NEW, NEWER = key(1, 1), key(2, 1), key(2, 2), key(1, 3), key(3, 1)


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    clock = FakeClock()
    clock.now = datetime(2026, 2, 1, 12, tzinfo=UTC)
    with open_location(tmp_path / "home", spark, clock=clock) as opened:
        opened.add_customers(1, 2, 3)
        seal_run(opened.deployment, READABLE), seal_invalid_run(opened.deployment, REJECTED)
        opened.run([READABLE, REJECTED])
        yield opened


def count_materializations(location: Location, asset: dg.AssetKey) -> Counter[str]:
    """The number of materializations of each of the partitions that are not due."""
    records = location.instance.fetch_materializations(asset, limit=100).records
    return Counter(str(each.partition_key) for each in records if each.partition_key not in dagster_keys(NEW, NEWER))


def show_checks(location: Location) -> list[Any]:
    """The last evaluation of both checks of the partitions that are not due: the outcome, and what it says."""
    shown = []
    for check in check_keys(Names(), QUERY):
        history = location.instance.event_log_storage.get_asset_check_execution_history(check, limit=100)
        events = [each.event.dagster_event for each in history if each.event is not None]
        evaluations: list[Any] = [
            each.event_specific_data
            for each in events
            if each is not None and each.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ]
        for partition in (READABLE, REJECTED):
            last = next(each for each in evaluations if each.partition == partition.dagster_key)
            said = {name: last.metadata.get(name) for name in ("reason", "violations", "condition", "run_id")}
            shown.append((check.name, partition, last.passed, said))
    return shown


@pytest.mark.invariant("S8", "W6")
def test_partitions_that_are_not_due_stay_as_they_are(location: Location) -> None:
    """No attempt, load or materialization is added. The checks keep their verdicts, with the reasons."""
    seal_run(location.deployment, NEW), seal_run(location.deployment, NEWER)
    ledger = location.deployment.ledger
    states = ledger.states.get_many([READABLE, REJECTED, ABSENT])
    counts = count_materializations(location, RAW), count_materializations(location, WAREHOUSE)
    shown = show_checks(location)
    result = tick(location)
    assert requested_ranges(result) == ["1|2026-01-01..3|2026-01-03"]
    assert due_partitions((result.run_requests or [])[0]) == {NEW, NEWER}
    execute_requests(location, result)
    assert ledger.states.get_many([READABLE, REJECTED, ABSENT]) == states
    assert (count_materializations(location, RAW), count_materializations(location, WAREHOUSE)) == counts
    assert show_checks(location) == shown
    assert visible_runs(location.deployment) == dict.fromkeys((READABLE, NEW, NEWER), "r1")
    done = dagster_keys(READABLE, NEW, NEWER)
    assert location.materialized_and_failed(WAREHOUSE) == (done, set())
    assert location.materialized_and_failed(RAW) == (done | dagster_keys(REJECTED), set())


@pytest.mark.invariant("O1")
def test_all_queries_share_one_run(location: Location) -> None:
    """The run has the assets of those queries that have something due in its range."""
    others = [key(1, 3, query_name=name) for name in ("ad_group_daily", "keyword_daily")]
    requested = request_partitions(dict.fromkeys([NEW, *others], "r1"))
    partitions = define_partitions(Names(), location.settings.google_apis.start_date)
    (request,) = build_run_requests(location.instance, partitions, requested, now=datetime.now(UTC))
    names = ["ad_group_daily", QUERY, "keyword_daily"]
    assert request.asset_selection == Names().assets(names)
    assert request.tags[QUERY_TAG] == ", ".join(names)
    assert due_partitions(request) == {NEW, *others}


@pytest.mark.invariant("O1")
def test_failed_run_does_not_hold_back_what_arrives_later(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request is repeated as it was after a delay, and later arrivals have a run of their own at once.

    Dagster shows every partition of a failed run's range as failed, and the repeated run restores them.
    """
    seal_run(location.deployment, NEW), seal_run(location.deployment, NEWER)
    with monkeypatch.context() as patch:
        patch.setattr(Loader, "commit", _fail)
        execute_requests(location, tick(location))
    assert location.materialized_and_failed(WAREHOUSE)[1] == dagster_keys(*_all_of_range())
    seal_run(location.deployment, ABSENT)
    assert requested_ranges(tick(location)) == ["2|2026-01-02..2|2026-01-02"]


def test_repeated_request_restores_what_dagster_shows(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed run has finished all that it was for. It is repeated for nothing, and then never again."""
    partitions = define_partitions(Names(), location.settings.google_apis.start_date)
    seal_run(location.deployment, NEW), seal_run(location.deployment, NEWER)
    requested = request_partitions({NEW: "r1", NEWER: "r1"})
    (request,) = build_run_requests(location.instance, partitions, requested, now=datetime.now(UTC))
    with monkeypatch.context() as patch:
        patch.setattr("ads_pipeline.orchestration.asset_checks.describe_days", _fail)
        execute_requests(location, dg.SensorResult(run_requests=[request]))
    nothing, later = request_partitions({}), datetime.now(UTC) + timedelta(minutes=3)
    assert build_run_requests(location.instance, partitions, nothing, now=datetime.now(UTC)) == []
    (again,) = build_run_requests(location.instance, partitions, nothing, now=later)
    assert due_partitions(again) == set()
    before = read_all_tables(location.deployment.ledger.engine)
    execute_requests(location, dg.SensorResult(run_requests=[again]))
    changed = {
        name for name, rows in read_all_tables(location.deployment.ledger.engine).items() if rows != before[name]
    }
    assert changed <= {"run_events", "run_head", "run_leases", "leases"}
    assert location.materialized_and_failed(WAREHOUSE)[1] == set()
    assert build_run_requests(location.instance, partitions, nothing, now=later) == []


def _all_of_range() -> list[PartitionKey]:
    return [key(customer, day) for customer in (1, 2, 3) for day in (1, 2, 3)]


def _fail(*_args: object, **_kwargs: object) -> None:
    raise LedgerUnavailable("the ledger's database is busy or out of reach: no connection")
