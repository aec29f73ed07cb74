"""What Dagster shows of days that an operator's command changed: the check `valid` and the last materialization."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.pipeline.actions.row_actions import demote, restore
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.orchestration.builders import WAREHOUSE, Location, open_location
from ads_pipeline_tests.orchestration.sensors.test_readable_changes import SENSOR, execute_checks
from ads_pipeline_tests.orchestration.sensors.ticks import tick
from ads_pipeline_tests.orchestration.test_readable_check import shown
from ads_pipeline_tests.pipeline.builders import V2, key, seal_run

DEMOTED, RESTORED, WITHDRAWN, UNTOUCHED = (key(customer) for customer in (1, 2, 3, 4))
DAYS = (DEMOTED, RESTORED, WITHDRAWN, UNTOUCHED)


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark) as opened:
        opened.add_customers(1, 2, 3, 4)
        for day in DAYS:
            seal_run(opened.deployment, day, **V2)
        seal_run(opened.deployment, RESTORED, "r2", count=3, **V2)
        assert opened.run([DEMOTED, UNTOUCHED]).success
        yield opened


def last_loads(location: Location) -> dict[PartitionKey, tuple[str, dict[str, str]]]:
    """The number of rows and the tags of the last materialization of each day."""
    found = {}
    for day in DAYS:
        event = materialization(location, day)
        found[day] = (str(event.metadata["rows"].value), dict(event.tags or {}))
    return found


def materialization(location: Location, day: PartitionKey) -> dg.AssetMaterialization:
    records = dg.AssetRecordsFilter(asset_key=WAREHOUSE, asset_partitions=[day.dagster_key])
    (record,) = location.instance.fetch_materializations(records, limit=1).records
    assert record.asset_materialization is not None
    return record.asset_materialization


def follow(location: Location, cursor: str | None) -> str | None:
    """Run what the sensor requests."""
    result = tick(location, SENSOR, cursor=cursor)
    execute_checks(location, result)
    return result.cursor


@pytest.mark.invariant("L8", "W4")
def test_dagster_follows_a_demotion_and_a_restore(location: Location) -> None:
    """A demoted day has a failed verdict and a materialization without rows; a restored one has those of its run.

    A withdrawn day keeps its verdict, which no action changed. Repeated ticks report nothing again.
    """
    pipeline, states = location.deployment.pipeline, location.deployment.ledger.states
    before = last_loads(location)
    cursor = tick(location, SENSOR).cursor
    demote(pipeline, [Run(key=DEMOTED, run_id="r1"), Run(key=RESTORED, run_id="r2")], action_request("a1"))
    location.deployment.ledger.actions.execute(Action.WITHDRAW, [WITHDRAWN], action_request("a2"))
    cursor = follow(location, cursor)
    assert location.check_results() == {
        DEMOTED.dagster_key: False,
        RESTORED.dagster_key: False,
        WITHDRAWN.dagster_key: True,
        UNTOUCHED.dagster_key: True,
    }
    after = last_loads(location)
    for day, run_id in ((DEMOTED, "r1"), (RESTORED, "r2"), (WITHDRAWN, "r1")):
        rows, tags = after[day]
        assert (rows, tags["dagster/data_version"]) == ("0", "none")
        assert materialization(location, day).metadata["previous_run_id"].value == run_id
        # Neither the code nor the input changed, so that Dagster does not mark the day as unsynced.
        kept = {name for name in before[day][1] if name != "dagster/data_version"}
        assert {name: tags[name] for name in kept} == {name: before[day][1][name] for name in kept}
    removed = materialization(location, DEMOTED).metadata["removed_because"].value
    assert removed == "Hidden: demoted by ada: on request"
    assert after[UNTOUCHED] == before[UNTOUCHED]
    assert shown(location)[DEMOTED.dagster_key] == (False, removed)

    restore(pipeline, states, [Run(key=RESTORED, run_id="r1")], action_request("a3"))
    cursor = follow(location, cursor)
    assert location.check_results()[RESTORED.dagster_key]
    assert shown(location)[RESTORED.dagster_key][0]
    rows, tags = last_loads(location)[RESTORED]
    assert (rows, tags["dagster/data_version"], tags["dagster/code_version"]) == ("2", "r1", "2")
    reported = count_materializations(location)
    follow(location, None)
    assert count_materializations(location) == reported


def count_materializations(location: Location) -> int:
    return len(location.instance.fetch_materializations(WAREHOUSE, limit=100).records)
