"""Measures the queries of the UI's asset pages. Runs are in `dagster_runs`, loading the definitions in `starts`."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import yaml

from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline_tests.benchmarks.ratios import Figure, Ratio, measure_time
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server

CUSTOMERS = [str(1_000_000_000 + number) for number in range(1_000)]
ROUNDS = 3
COPIES = [f"query_{number}" for number in range(1, 10)]  # of the first shipped query
CONTRACTS = """
from ads_pipeline.validation.contract_models import CONTRACTS as SHIPPED
CONTRACTS = {{(copy, {version!r}): SHIPPED[{name!r}, {version!r}] for copy in {copies!r}}}
"""
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
    with tempfile.TemporaryDirectory() as directory:
        yield from _measure_asset_pages(Path(directory))


def _measure_asset_pages(directory: Path) -> Iterator[Figure]:
    """The GraphQL queries of the asset pages, with ten report queries, 1,000 customers and one year."""
    document = yaml.safe_load(DEFAULT_QUERIES_FILE.read_text())
    (name, query), *_others = document["queries"].items()
    document["queries"] = {name: query} | dict.fromkeys(COPIES, query)
    document["start_date"], document["contracts"] = "2025-11-18", "contracts.py"
    contracts = CONTRACTS.format(name=name, version=str(query["schema_version"]), copies=COPIES)
    (directory / "contracts.py").write_text(contracts)
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
    assert answer["assetNodeOrError"], "Dagster does not know the asset: did the definitions load?"
