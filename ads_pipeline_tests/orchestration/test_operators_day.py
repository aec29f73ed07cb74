"""Through the real daemon and webserver: what an operator does in the UI, and what comes of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.run_requests import START
from ads_pipeline_tests.orchestration.dagster_server import Served, served
from ads_pipeline_tests.pipeline.builders import LocalDeployment, key, seal_invalid_run, seal_run, visible_runs

RAW, WAREHOUSE = ("raw", "campaign_daily"), ("warehouse", "campaign_daily")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A running instance, and the house it works on."""

    served: Served
    house: LocalDeployment


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession) -> Iterator[Site]:
    home = tmp_path / "home"
    home.mkdir()
    environment = {}
    if request.param == "postgres":
        environment["ADS_PIPELINE_DATABASE_URL"] = request.getfixturevalue("unmigrated_postgres_url")
    url = environment.get("ADS_PIPELINE_DATABASE_URL") or f"sqlite:///{home / 'ledger.db'}"
    with Ledger.opened(url) as ledger, served(home, environment) as instance:
        yield Site(served=instance, house=LocalDeployment(home=home, spark=spark, ledger=ledger))


@pytest.mark.invariant("O1", "W12")
@pytest.mark.timeout(600)
def test_an_operators_day(site: Site) -> None:
    """A backfill of a selection with holes runs exactly the selection, and its one bad partition alone is red; of the
    warehouse alone nothing unjudged is published; a new run turns it green. What was sealed yesterday for a customer
    that nobody knew comes in by itself. The log of events tells of all these runs, and how each ended."""
    house, instance = site.house, site.served
    good, bad, other, hole = key(1, 1), key(1, 2), key(2, 2), key(2, 1)
    seal_run(house, good), seal_invalid_run(house, bad), seal_run(house, other), seal_run(house, hole)
    fresh = replace(key(3), logical_date=(datetime.now(UTC) - timedelta(days=1)).date())
    seal_run(house, fresh)
    for customer in ("1", "2"):
        assert instance.add_customer(customer) == "AddDynamicPartitionSuccess"

    assert instance.end_of(instance.launch([RAW, WAREHOUSE], [good, bad, other])) == "COMPLETED_FAILED"
    assert [instance.check(RAW, each) for each in (good, bad, other, hole)] == [True, False, True, None]
    assert {good: "r1", other: "r1"}.items() <= visible_runs(house).items()
    assert bad not in visible_runs(house)
    assert house.ledger.state(hole).attempt_count == 0

    seal_run(house, bad, "r2")
    mended, unjudged = instance.launch([RAW, WAREHOUSE], [bad]), instance.launch([WAREHOUSE], [hole])
    assert instance.end_of(unjudged) == "COMPLETED_FAILED"
    assert instance.end_of(mended) == "COMPLETED_SUCCESS"
    assert instance.check(RAW, bad) is True

    instance.wait(lambda: fresh in visible_runs(house) or None)
    assert visible_runs(house) == {good: "r1", bad: "r2", other: "r1", fresh: "r1"}
    assert house.ledger.state(fresh).attempt_count == 1
    sensed = [tags for tags in instance.runs().values() if tags.get("dagster/sensor_name") == "raw_arrivals"]
    assert [tags[START] for tags in sensed] == [fresh.dagster_key]

    told = instance.wait(lambda: _ended(house))
    # The backfill is a run for each customer, of which one has the bad partition; then the three others.
    by_clock = {run for run, tags in instance.runs().items() if "dagster/schedule_name" in tags}
    assert sorted(told[run] for run in told.keys() - by_clock) == ["COMPLETED"] * 3 + ["FAILED"] * 2
    statuses = house.ledger.partition_statuses("raw", [bad, fresh])
    assert [each and each.last_materialization_run_id for each in statuses.values()] == ["r2", "r1"]


def _ended(house: LocalDeployment) -> dict[str, str] | None:
    """How the runs of Dagster ended, once the sensor has heard of all."""
    events = EventReader(house.ledger._engine)
    found = {
        head.run_id: snapshot
        for head, snapshot in events.list_newest_runs()
        if head.run_id != house.ledger.origin.run_id
    }
    ended = {run: str(each.status) for run, each in found.items() if each is not None and each.status.is_terminal}
    return ended if ended and len(ended) == len(found) and not events.get_lag() else None
