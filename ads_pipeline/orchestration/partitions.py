"""Defines the partitions in Dagster, and parses partition names."""

import logging
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Final

import dagster as dg

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, find_customer_problem, parse_dagster_key
from ads_pipeline.orchestration.naming.names import Names

CUSTOMERS: Final = "google_ads_customers"  # the set of dynamic partitions, below the prefix
CUSTOMER, DATE = "customer", "date"
DELETE_CUSTOMER: Final = "delete it on the page of any asset, by 'Delete partitions' in the menu beside 'Materialize'"


def define_partitions(names: Names, start_date: date) -> dg.MultiPartitionsDefinition:
    """Define customer (dynamic) by date (daily from `start_date`)."""
    return dg.MultiPartitionsDefinition(
        {
            CUSTOMER: dg.DynamicPartitionsDefinition(name=names.name(CUSTOMERS)),
            DATE: dg.DailyPartitionsDefinition(start_date=start_date.isoformat(), timezone="UTC"),
        }
    )


def parse_partition_names(
    names: Iterable[str], *, source: str, query_name: str, log: logging.Logger | None = None
) -> list[PartitionKey]:
    """Parse and sort the partition names of one query, without those of invalid customers.

    The log gets a warning for each invalid customer. Raises BadName when no customer is valid.
    """
    customers = {str(name): str(name).rpartition("|")[0] for name in names}  # a customer from the UI may have a bar
    invalid = find_invalid_customers(customers.values())
    valid = [name for name, customer in customers.items() if customer not in invalid]
    if invalid and not valid:
        raise next(iter(invalid.values()))
    if log is not None:
        _warn_of_invalid_customers(log, invalid)
    return sorted(parse_dagster_key(name, source=source, query_name=query_name) for name in valid)


def find_refused_names(names: Iterable[str]) -> dict[str, BadName]:
    """Return the partition names of invalid customers, and why. Those of a customer with a bar cannot be read."""
    customers = {str(name): str(name).rpartition("|")[0] for name in names}
    invalid = find_invalid_customers(customers.values())
    return {name: invalid[each] for name, each in customers.items() if each in invalid and each and "|" not in each}


def find_invalid_customers(customers: Iterable[str]) -> dict[str, BadName]:
    """Return the customers whose names break the rule, because the Dagster UI accepts any text.

    An account that is written with hyphens is invalid too. In Dagster, its partitions differ from those of the
    account without hyphens; in the ledger, both would be the same.
    """
    problems = ((customer, find_customer_problem(customer)) for customer in dict.fromkeys(customers))
    return {
        customer: BadName("customer_id", customer, f"{problem}; {DELETE_CUSTOMER}")
        for customer, problem in problems
        if problem is not None
    }


def drop_invalid_customers(log: logging.Logger, customers: Iterable[str]) -> list[str]:
    """Return the valid customers, and log a warning for each other one."""
    distinct = list(dict.fromkeys(customers))
    invalid = find_invalid_customers(distinct)
    _warn_of_invalid_customers(log, invalid)
    return [customer for customer in distinct if customer not in invalid]


def _warn_of_invalid_customers(log: logging.Logger, invalid: Mapping[str, BadName]) -> None:
    for problem in invalid.values():
        log.warning("a customer was left out. %s", problem)


def dimension_tags(key: PartitionKey) -> dict[str, str]:
    """The tags that Dagster adds to materializations of a multi-partition. Our own events need them too."""
    return {
        f"dagster/partition/{CUSTOMER}": key.customer_id,
        f"dagster/partition/{DATE}": key.logical_date.isoformat(),
    }
