"""What arrives together runs together, with the real daemon."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.sensors.run_tags import CUSTOMERS_TAG, DAYS_TAG, QUERY_TAG
from ads_pipeline_tests.builders import write_sealed_run
from ads_pipeline_tests.orchestration.dagster_server import dagster_server
from ads_pipeline_tests.pipeline.builders import QUERY, LocalDeployment, key, seal_invalid_run, seal_run, visible_runs

NO_SPARK = cast("SparkSession", None)  # only Dagster's processes judge and load
RAW, WAREHOUSE = ("raw", "campaign_daily"), ("warehouse", "campaign_daily")
BEFORE = datetime.now(UTC).date() - timedelta(days=30)  # a tick finds older days only later


def recent(customer: int, day: int, query_name: str = QUERY) -> PartitionKey:
    return replace(key(customer, query_name=query_name), logical_date=BEFORE + timedelta(days=day))


FIRST, REJECTED, NEW, NEWER = recent(1, 1), recent(2, 1), recent(3, 2), recent(1, 2)
OTHER_QUERY = recent(3, 1, "ad_group_daily")


@pytest.mark.invariant("O1", "S8")
@pytest.mark.timeout(1200)
def test_arrivals_of_two_queries_are_one_run(tmp_path: Path) -> None:
    """Partitions of the run's range that are not due keep their colours, verdicts and attempts."""
    home = tmp_path / "home"
    home.mkdir()
    with (
        Ledger.opened(f"sqlite:///{home / 'ledger.db'}") as ledger,
        dagster_server(home, {"ADS_PIPELINE_ARRIVAL_SECONDS": "5"}) as server,
    ):
        deployment = LocalDeployment(home=home, spark=NO_SPARK, ledger=ledger)

        def wait_until_judged(*partitions: PartitionKey) -> None:
            server.wait_for(lambda: all(ledger.states.get(each).attempt_count for each in partitions))
            server.wait_for(lambda: set(map(server.run_status, server.run_tags())) == {"SUCCESS"})

        seal_invalid_run(deployment, REJECTED)
        seal_run(deployment, FIRST)
        wait_until_judged(FIRST, REJECTED)
        first_runs = server.run_tags()
        states = ledger.states.get_many([FIRST, REJECTED])
        colours = [server.partition_status(WAREHOUSE, each) for each in (FIRST, REJECTED)]

        server.stop_sensor("raw_arrivals")  # no tick may come between the seals
        write_sealed_run(home / "raw", Run(key=OTHER_QUERY, run_id="r1"), b"{}\n")  # customer 3 is new, so its
        seal_run(deployment, NEW)  # runs follow one tick later and together
        seal_run(deployment, NEWER)
        server.start_sensor("raw_arrivals")
        wait_until_judged(NEW, OTHER_QUERY, NEWER)
        later_runs = [tags for run_id, tags in server.run_tags().items() if run_id not in first_runs]
        # Another sensor may have had checks evaluated again meanwhile.
        (tags,) = (tags for tags in later_runs if tags.get("dagster/sensor_name") == "raw_arrivals")
        assert tags[QUERY_TAG] == "ad_group_daily, campaign_daily"
        assert (tags[CUSTOMERS_TAG], tags[DAYS_TAG]) == ("1 to 3", f"{FIRST.logical_date} to {NEW.logical_date}")
        assert visible_runs(deployment) == dict.fromkeys((FIRST, NEW, NEWER), "r1")
        assert ledger.states.get(OTHER_QUERY).status is Status.FAILED
        assert ledger.states.get_many([FIRST, REJECTED]) == states
        assert [server.partition_status(WAREHOUSE, each) for each in (FIRST, REJECTED)] == colours
        assert [server.check_passed(RAW, each) for each in (FIRST, REJECTED)] == [True, False]
        assert [server.check_status(RAW, each, "valid") for each in (FIRST, REJECTED)] == ["succeeded", "failed"]
        assert server.partition_counts(WAREHOUSE)["numFailed"] == 0
