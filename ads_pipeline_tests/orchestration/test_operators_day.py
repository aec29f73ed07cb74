"""A day of an operator in the UI, and arrivals that run together, with the real daemon and webserver."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.run_launcher import PROCESS_TAG
from ads_pipeline.orchestration.runs.run_tags import CUSTOMERS_TAG, DAYS_TAG, QUERY_TAG, START
from ads_pipeline_tests.builders import write_sealed_run
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    V2,
    LocalDeployment,
    key,
    seal_invalid_run,
    seal_run,
    visible_runs,
)
from ads_pipeline_tests.postgres_server import new_database

NO_SPARK = cast("SparkSession", None)  # only Dagster's processes judge and load
RAW, WAREHOUSE = ("raw", "campaign_daily"), ("warehouse", "campaign_daily")
# Its run has no verdict after the first test. The sensor comes to days of its age after some ticks.
HOLE = key(2, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDeployment:
    """A running Dagster, and the deployment that it works on."""

    server: DagsterServer
    deployment: LocalDeployment


@pytest.fixture(scope="module")
def postgres_database(postgres_server: str) -> Iterator[str]:
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="module", params=["postgres", *(["sqlite"] if TIMES > 1 else [])])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedDeployment]:
    """With Postgres, and with SOAK also with SQLite, which the daemon of `test_misleading_cases` uses.

    Both tests use one server, with different customers.
    """
    home = tmp_path_factory.mktemp("served") / "home"
    home.mkdir()
    environment = {"ADS_PIPELINE_ARRIVAL_SECONDS": "5"}
    if request.param == "postgres":
        environment["ADS_PIPELINE_DATABASE_URL"] = request.getfixturevalue("postgres_database")
    url = environment.get("ADS_PIPELINE_DATABASE_URL") or f"sqlite:///{home / 'ledger.db'}"
    with Ledger.opened(url) as ledger, dagster_server(home, environment, engine=True) as server:
        server.stop_sensor("raw_arrivals")  # it would come to the days that are backfilled
        yield ServedDeployment(server=server, deployment=LocalDeployment(home=home, spark=NO_SPARK, ledger=ledger))


@pytest.mark.invariant("O1", "W12")
@pytest.mark.timeout(1200)
def test_an_operators_day(served: ServedDeployment) -> None:
    """A backfill of a selection with holes runs exactly the selection, and the checks show its bad partition.

    A backfill of the warehouse alone publishes nothing that was not judged. A new run repairs the bad partition. The
    sensor then loads yesterday's run of a new customer. The event log has all these runs with their ends. What an
    operator withdraws turns red without a run of the assets.
    """
    deployment, server = served.deployment, served.server
    good, bad, other = key(1, 1), key(1, 2), key(2, 2)
    for partition in (good, other, HOLE):
        seal_run(deployment, partition, **V2)  # of the version that the query file names
    seal_invalid_run(deployment, bad)
    fresh = replace(key(3), logical_date=(datetime.now(UTC) - timedelta(days=1)).date())
    seal_run(deployment, fresh)
    for customer in ("1", "2"):
        assert server.add_customer(customer) == "AddDynamicPartitionSuccess"

    backfill = server.launch_backfill([RAW, WAREHOUSE], [good, bad, other])
    assert server.wait_for_backfill(backfill) == "COMPLETED_FAILED"
    assert [server.check_passed(RAW, each) for each in (good, bad, other, HOLE)] == [True, False, True, None]
    assert [server.check_passed(WAREHOUSE, each, "readable") for each in (good, bad, other)] == [True, False, True]
    assert [server.stale_status(WAREHOUSE, each) for each in (good, bad, other)] == ["FRESH", "MISSING", "FRESH"]
    assert {good: "r1", other: "r1"}.items() <= visible_runs(deployment).items()
    assert bad not in visible_runs(deployment)
    assert deployment.ledger.states.get(HOLE).attempt_count == 0

    seal_run(deployment, bad, "r2")
    repaired = server.launch_backfill([RAW, WAREHOUSE], [bad])
    unjudged = server.launch_backfill([WAREHOUSE], [HOLE])
    assert server.wait_for_backfill(unjudged) == "COMPLETED_FAILED"
    assert server.wait_for_backfill(repaired) == "COMPLETED_SUCCESS"
    assert server.check_passed(RAW, bad) is True

    server.start_sensor("raw_arrivals")
    requested = server.wait_for(lambda: _find_requested(server))
    server.stop_sensor("raw_arrivals")
    assert [tags[START] for tags in requested] == [fresh.dagster_key]
    server.wait_for(lambda: fresh in visible_runs(deployment))
    assert visible_runs(deployment) == {good: "r1", bad: "r2", other: "r1", fresh: "r1"}
    assert deployment.ledger.states.get(fresh).attempt_count == 1
    assert _find_requested(server) == requested

    statuses = server.wait_for(lambda: _final_run_statuses(deployment))
    # The first backfill is one run per customer, one of them with the bad partition; then the three other runs.
    scheduled = {run for run, tags in server.run_tags().items() if _is_background(tags)}
    assert [statuses[run] for run in statuses.keys() - scheduled] == ["COMPLETED"] * 5
    rows = deployment.ledger.statuses.get_many("raw", [bad, fresh])
    assert [row and row.last_materialization_run_id for row in rows.values()] == ["r2", "r1"]

    deployment.ledger.actions.execute(Action.WITHDRAW, [good], action_request())
    server.wait_for(lambda: server.check_passed(WAREHOUSE, good, "readable") is False)
    assert server.check_passed(WAREHOUSE, other, "readable") is True


@pytest.mark.invariant("O1", "S8")
@pytest.mark.timeout(1200)
def test_arrivals_of_two_queries_are_one_run(served: ServedDeployment) -> None:
    """Partitions of the run's range that are not due keep their colours, verdicts and attempts."""
    deployment, server, ledger = served.deployment, served.server, served.deployment.ledger
    earlier_runs = server.run_tags()
    first, rejected, new, newer = _recent(11, 1), _recent(12, 1), _recent(13, 2), _recent(11, 2)
    other_query = _recent(13, 1, "ad_group_daily")

    def wait_until_judged(*partitions: PartitionKey) -> None:
        server.wait_for(lambda: all(ledger.states.get(each).attempt_count for each in partitions))
        runs = server.run_tags().keys() - earlier_runs.keys()
        server.wait_for(lambda: set(map(server.run_status, runs)) == {"SUCCESS"})

    seal_invalid_run(deployment, rejected)
    seal_run(deployment, first)
    server.start_sensor("raw_arrivals")
    wait_until_judged(first, rejected)
    first_runs = server.run_tags()
    states = ledger.states.get_many([first, rejected])
    colours = [server.partition_status(WAREHOUSE, each) for each in (first, rejected)]

    server.stop_sensor("raw_arrivals")  # no tick may come between the seals
    write_sealed_run(deployment.home / "raw", Run(key=other_query, run_id="r1"), b"{}\n")
    seal_run(deployment, new)  # customer 13 is new, so its runs follow one tick later and together
    seal_run(deployment, newer)
    server.start_sensor("raw_arrivals")
    wait_until_judged(new, other_query, newer)
    later_runs = [tags for run_id, tags in server.run_tags().items() if run_id not in first_runs]
    # Another sensor may have had checks evaluated again meanwhile, and this one may have come to HOLE.
    requested = (tags for tags in later_runs if tags.get("dagster/sensor_name") == "raw_arrivals")
    (tags,) = (tags for tags in requested if tags[CUSTOMERS_TAG] != HOLE.customer_id)
    assert tags[QUERY_TAG] == "ad_group_daily, campaign_daily"
    assert (tags[CUSTOMERS_TAG], tags[DAYS_TAG]) == ("11 to 13", f"{first.logical_date} to {new.logical_date}")
    own = {each: run for each, run in visible_runs(deployment).items() if each.customer_id in {"11", "12", "13"}}
    assert own == dict.fromkeys((first, new, newer), "r1")
    assert ledger.states.get(other_query).status is Status.FAILED
    assert ledger.states.get_many([first, rejected]) == states
    assert [server.partition_status(WAREHOUSE, each) for each in (first, rejected)] == colours
    assert [server.check_passed(RAW, each) for each in (first, rejected)] == [True, False]
    assert [server.check_status(RAW, each, "valid") for each in (first, rejected)] == ["succeeded", "failed"]
    assert server.partition_counts(WAREHOUSE)["numFailed"] == 0


def _recent(customer: int, day: int, query_name: str = QUERY) -> PartitionKey:
    """A day of the last month. A tick of the sensor finds older ones only later."""
    before = datetime.now(UTC).date() - timedelta(days=30)
    return replace(key(customer, query_name=query_name), logical_date=before + timedelta(days=day))


def _find_requested(server: DagsterServer) -> list[dict[str, str]]:
    """The tags with which the sensor `raw_arrivals` requested runs. The launcher adds another one later."""
    return [
        {name: value for name, value in tags.items() if name != PROCESS_TAG}
        for tags in server.run_tags().values()
        if tags.get("dagster/sensor_name") == "raw_arrivals"
    ]


def _is_background(tags: Mapping[str, str]) -> bool:
    """Whether a schedule requested the run, or a sensor that keeps the checks or the report current."""
    return "dagster/schedule_name" in tags or tags.get("dagster/sensor_name") in {
        "readable_changes",
        "report_changes",
    }


def _final_run_statuses(deployment: LocalDeployment) -> dict[str, str] | None:
    """The final status of each Dagster run in the event log; None while one is open or a snapshot is behind."""
    events = EventReader(deployment.ledger.engine)
    snapshots = {
        head.engine_run_id: snapshot
        for head, snapshot in events.list_newest_runs()
        if head.engine_run_id != deployment.ledger.origin.engine_run_id
    }
    final = {run: str(each.status) for run, each in snapshots.items() if each is not None and each.status.is_terminal}
    return final if final and len(final) == len(snapshots) and not events.get_lag() else None
