"""Translates between partitions and Dagster's names for them."""

from collections.abc import Iterable
from datetime import date
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey, parse_dagster_key

CUSTOMERS: Final = "google_ads_customers"
CUSTOMER, DAY = "customer", "date"


def partitions_from(start_date: date) -> dg.MultiPartitionsDefinition:
    """Every customer that was ever added, on every day from the first that is asked for."""
    return dg.MultiPartitionsDefinition(
        {
            CUSTOMER: dg.DynamicPartitionsDefinition(name=CUSTOMERS),
            DAY: dg.DailyPartitionsDefinition(start_date=start_date.isoformat(), timezone="UTC"),
        }
    )


def parsed(names: Iterable[str], *, source: str, query_name: str) -> list[PartitionKey]:
    """The partitions of one query that Dagster asks for, in order; BadName says which name is none."""
    return sorted(parse_dagster_key(str(name), source=source, query_name=query_name) for name in names)


def dimension_tags(key: PartitionKey) -> dict[str, str]:
    """What Dagster itself puts on the materialization of a multi-partition, and what we owe it on our own."""
    return {
        f"dagster/partition/{CUSTOMER}": key.customer_id,
        f"dagster/partition/{DAY}": key.logical_date.isoformat(),
    }


def assets_of(query_names: Iterable[str]) -> list[dg.AssetKey]:
    """Every asset of these queries."""
    return [asset(name) for name in query_names for asset in (raw_asset, warehouse_asset)]


def raw_asset(query_name: str) -> dg.AssetKey:
    return dg.AssetKey(["raw", query_name])


def warehouse_asset(query_name: str) -> dg.AssetKey:
    return dg.AssetKey(["warehouse", query_name])
