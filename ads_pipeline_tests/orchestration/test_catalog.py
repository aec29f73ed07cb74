"""The catalogue of assets in Dagster: the report, the external assets, and where the partitions begin."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.transitions import Action
from ads_pipeline.orchestration.catalog import REPORT
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import DATE
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, open_location
from ads_pipeline_tests.pipeline.builders import QUERY, key, seal_invalid_run, seal_run


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark, start_date=date(2026, 1, 1)) as opened:
        yield opened


def test_report_lists_the_days_that_need_an_operator(location: Location) -> None:
    """The metadata of its materialization has customer, query, day and reason. A hidden day is not among them."""
    location.add_customers(1, 2)
    day = datetime.now(UTC).date() - timedelta(days=2)
    good, bad = (replace(key(customer), logical_date=day) for customer in (1, 2))
    seal_run(location.deployment, good)
    seal_invalid_run(location.deployment, bad)
    location.run([good, bad])
    location.deployment.ledger.actions.execute(Action.WITHDRAW, [good], action_request())
    job = location.defs.resolve_implicit_global_asset_job_def()
    assert job.execute_in_process(instance=location.instance, asset_selection=[Names().key(REPORT)]).success
    event = location.instance.get_latest_materialization_event(Names().key(REPORT))
    assert event is not None
    assert event.asset_materialization is not None
    metadata: Any = event.asset_materialization.metadata
    assert Path(metadata["report"].value).is_file()
    rows = [each.data for each in metadata["days_that_need_you"].records]
    (rejected,) = [row for row in rows if row["query"] == QUERY and row["day"] == day.isoformat()]
    assert rejected["customer"] == "2"
    assert str(rejected["reason"]).startswith("Rejected: cost_micros must be at least 0")


def test_no_figure_of_a_partition_is_a_number(location: Location) -> None:
    """Dagster plots every number over the partitions of all customers, whatever their currencies."""
    location.add_customers(1)
    partition = replace(key(1), logical_date=datetime.now(UTC).date() - timedelta(days=2))
    seal_run(location.deployment, partition)
    assert location.run([partition]).success
    for asset in (RAW, WAREHOUSE):
        event = location.instance.get_latest_materialization_event(asset)
        assert event is not None
        assert event.asset_materialization is not None
        values = event.asset_materialization.metadata.values()
        assert not [each for each in values if isinstance(each, dg.IntMetadataValue | dg.FloatMetadataValue)]


def test_every_asset_has_the_path_of_the_report_and_a_description(location: Location) -> None:
    """Also the external ones."""
    for spec in location.defs.resolve_all_asset_specs():
        assert spec.metadata["report"] == dg.MetadataValue.path(location.settings.home / "report.html"), spec.key
        assert spec.description
        assert spec.description.endswith((".", "```"))


def test_partitions_begin_at_the_start_date(location: Location) -> None:
    """The query file names the first day that can exist."""
    partitions = location.defs.resolve_assets_def(WAREHOUSE).partitions_def
    assert isinstance(partitions, dg.MultiPartitionsDefinition)
    assert partitions.get_partitions_def_for_dimension(DATE).get_first_partition_key() == "2026-01-01"
