"""Defines the partitions and asset keys in Dagster, and parses partition names."""

from collections.abc import Iterable
from datetime import date
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey, parse_dagster_key

CUSTOMERS: Final = "google_ads_customers"
CUSTOMER, DATE = "customer", "date"


def define_partitions(start_date: date) -> dg.MultiPartitionsDefinition:
    """Define customer (dynamic) by date (daily from `start_date`)."""
    return dg.MultiPartitionsDefinition(
        {
            CUSTOMER: dg.DynamicPartitionsDefinition(name=CUSTOMERS),
            DATE: dg.DailyPartitionsDefinition(start_date=start_date.isoformat(), timezone="UTC"),
        }
    )


def parse_partition_names(names: Iterable[str], *, source: str, query_name: str) -> list[PartitionKey]:
    """Parse and sort the partition names of one query. Raises BadName for an invalid name."""
    return sorted(parse_dagster_key(str(name), source=source, query_name=query_name) for name in names)


def dimension_tags(key: PartitionKey) -> dict[str, str]:
    """The tags that Dagster adds to materializations of a multi-partition. Our own events need them too."""
    return {
        f"dagster/partition/{CUSTOMER}": key.customer_id,
        f"dagster/partition/{DATE}": key.logical_date.isoformat(),
    }


def asset_keys(query_names: Iterable[str]) -> list[dg.AssetKey]:
    """List the keys of both assets of each query."""
    return [asset(name) for name in query_names for asset in (raw_asset_key, warehouse_asset_key)]


def raw_asset_key(query_name: str) -> dg.AssetKey:
    return dg.AssetKey(["raw", query_name])


def warehouse_asset_key(query_name: str) -> dg.AssetKey:
    return dg.AssetKey(["warehouse", query_name])
