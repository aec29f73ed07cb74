"""Measures our assets against empty ones, loading the code location, and the queries of the UI's asset pages."""

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import yaml

from ads_pipeline.orchestration.partitions import define_partitions
from ads_pipeline.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare, measure_time
from ads_pipeline_tests.benchmarks.runs import FIRST_DAY, write_runs
from ads_pipeline_tests.benchmarks.validator import local_spark
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, open_location
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server

CUSTOMERS = [str(1_000_000_000 + number) for number in range(1_000)]
ROUNDS = 3
STATUSES = """
query($asset: AssetKeyInput!) {
  assetNodeOrError(assetKey: $asset) { ... on AssetNode {
    assetPartitionStatuses { ... on MultiPartitionStatuses { ranges { primaryDimStartKey } } }
    partitionStats { numPartitions numMaterialized numFailed }
  } }
}"""
DIMENSIONS = """
query($asset: AssetKeyInput!) {
  assetNodeOrError(assetKey: $asset) { ... on AssetNode { partitionKeysByDimension { name partitionKeys } } }
}"""


def measure() -> Iterator[Ratio | Figure]:
    yield measure_time("loading the definitions in a new process", _load_definitions, rounds=ROUNDS, limit=2.0)
    with tempfile.TemporaryDirectory() as directory:
        yield from _measure_run(Path(directory) / "home")
    with tempfile.TemporaryDirectory() as directory:
        yield from _measure_asset_pages(Path(directory))


def _load_definitions(_number: int) -> None:
    subprocess.run([sys.executable, "-c", "import ads_pipeline.definitions"], check=True, capture_output=True)


def _measure_run(home: Path) -> Iterator[Ratio]:
    """A run of 1,000 customers, one day per round. The baseline has empty assets and an empty check."""
    spark = local_spark()
    with open_location(home, spark) as location:
        write_runs(home / "raw", customers=len(CUSTOMERS), days=ROUNDS, rows=5)
        location.instance.add_dynamic_partitions("google_ads_customers", CUSTOMERS)
        empty = _define_empty_assets(location)
        yield compare(
            "a run of 1,000 partitions",
            lambda number: _run(location, location.defs, number),
            lambda number: _run(location, empty, number),
            baseline_name="a run of empty assets",
            rounds=ROUNDS,
            required=1 / 1.3,
        )
    spark.stop()


def _run(location: Location, defs: dg.Definitions, number: int) -> None:
    day = date.fromordinal(FIRST_DAY.toordinal() + number)
    tags = {
        "dagster/asset_partition_range_start": f"{CUSTOMERS[0]}|{day}",
        "dagster/asset_partition_range_end": f"{CUSTOMERS[-1]}|{day}",
    }
    job = defs.resolve_implicit_global_asset_job_def()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert job.execute_in_process(instance=location.instance, asset_selection=[RAW, WAREHOUSE], tags=tags).success


def _define_empty_assets(location: Location) -> dg.Definitions:
    partitions = define_partitions(location.settings.google_apis.start_date)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = dg.BackfillPolicy.multi_run(1_000)

        @dg.asset(key=RAW, partitions_def=partitions, backfill_policy=policy)
        def raw() -> None: ...

        @dg.asset_check(asset=raw, name="valid", blocking=True, partitions_def=partitions)  # type: ignore[arg-type]
        def valid(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
            for name in context.partition_keys:
                yield dg.AssetCheckEvaluation(
                    asset_key=RAW, check_name="valid", partition=str(name), passed=True, blocking=False
                )
            yield dg.Output(None)

        @dg.asset(key=WAREHOUSE, deps=[RAW], partitions_def=partitions, backfill_policy=policy)
        def warehouse() -> None: ...

    return dg.Definitions(
        assets=[raw, warehouse],
        asset_checks=[valid],
        resources={"io_manager": dg.mem_io_manager},
        executor=dg.in_process_executor,
    )


def _measure_asset_pages(directory: Path) -> Iterator[Figure]:
    """The GraphQL queries of the asset pages, with ten report queries, 1,000 customers and one year."""
    document = yaml.safe_load(DEFAULT_QUERIES_FILE.read_text())
    (name, query), *_others = document["queries"].items()
    document["queries"] = {name: query} | {f"query_{number}": query for number in range(1, 10)}
    document["start_date"] = "2025-11-18"
    (directory / "queries.yaml").write_text(json.dumps(document, default=str))
    with dagster_server(directory / "home", {"ADS_PIPELINE_QUERIES": str(directory / "queries.yaml")}) as server:
        for customer in CUSTOMERS:
            server.add_customer(customer)
        for title, graphql in (("statuses", STATUSES), ("dimensions", DIMENSIONS)):
            yield measure_time(
                f"partition {title} of one asset in the UI, with 10 queries x 1,000 customers x 365 days",
                lambda _number, graphql=graphql: _send(server, graphql),  # type: ignore[misc]
                rounds=ROUNDS,
                limit=1.0,
            )


def _send(server: DagsterServer, query: str) -> None:
    answer = server.query(query, asset={"path": ["warehouse", "campaign_daily"]})
    assert answer["assetNodeOrError"]
