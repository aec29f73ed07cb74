"""What our assets add to Dagster's own cost of a run; how fast the code location loads, and its pages answer."""

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

from ads_pipeline.orchestration.partitions import partitions_from
from ads_pipeline.settings import SHIPPED_QUERIES
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, compare, timed
from ads_pipeline_tests.benchmarks.runs import FIRST_DAY, put
from ads_pipeline_tests.benchmarks.validator import local_spark
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, location_at
from ads_pipeline_tests.orchestration.dagster_server import Served, served

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
    yield timed("loading the definitions in a new process", _load, rounds=ROUNDS, most=2.0)
    with tempfile.TemporaryDirectory() as place:
        yield from _beside_empty_assets(Path(place) / "home")
    with tempfile.TemporaryDirectory() as place:
        yield from _pages(Path(place))


def _load(_number: int) -> None:
    subprocess.run([sys.executable, "-c", "import ads_pipeline.definitions"], check=True, capture_output=True)


def _beside_empty_assets(home: Path) -> Iterator[Ratio]:
    """A thousand customers, a day a round, beside assets and a check of the same shape that do nothing."""
    spark = local_spark()
    with location_at(home, spark) as location:
        put(home / "raw", customers=len(CUSTOMERS), days=ROUNDS, rows=5)
        location.instance.add_dynamic_partitions("google_ads_customers", CUSTOMERS)
        empty = _empty(location)
        yield compare(
            "a run of 1,000 partitions, against empty assets in the same shape (at most 1.3x their time)",
            lambda number: _run(location, location.defs, number),
            lambda number: _run(location, empty, number),
            rounds=ROUNDS,
            least=1 / 1.3,
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


def _empty(location: Location) -> dg.Definitions:
    partitions = partitions_from(location.settings.google_apis.start_date)
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


def _pages(place: Path) -> Iterator[Figure]:
    """Ten queries, a thousand customers, a year: what the asset pages ask for, through the webserver."""
    document = yaml.safe_load(SHIPPED_QUERIES.read_text())
    (name, query), *_others = document["queries"].items()
    document["queries"] = {name: query} | {f"query_{number}": query for number in range(1, 10)}
    document["start_date"] = "2025-11-18"
    (place / "queries.yaml").write_text(json.dumps(document, default=str))
    with served(place / "home", {"ADS_PIPELINE_QUERIES": str(place / "queries.yaml")}) as instance:
        for customer in CUSTOMERS:
            instance.add_customer(customer)
        for words, question in (("statuses", STATUSES), ("dimensions", DIMENSIONS)):
            yield timed(
                f"the UI's partition {words} of one of 10 queries x 1,000 customers x 365 days",
                lambda _number, question=question: _ask(instance, question),  # type: ignore[misc]
                rounds=ROUNDS,
                most=1.0,
            )


def _ask(instance: Served, question: str) -> None:
    answer = instance.ask(question, asset={"path": ["warehouse", "campaign_daily"]})
    assert answer["assetNodeOrError"]
