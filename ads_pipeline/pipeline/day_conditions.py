"""Finds the condition of given partitions: what readers get of each, why, and since when.

The conditions are defined in `domain.readability`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import date, datetime

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.readability import DayCondition, Expectation, ParkedSource, describe_day
from ads_pipeline.ledger.control.retries import Parking
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.state.day_facts import read_day_facts, read_first_days


def describe_days(
    ledger: LedgerReader, keys: Iterable[PartitionKey], *, now: datetime
) -> dict[PartitionKey, DayCondition]:
    """Describe each partition, in the order of the keys. A customer is expected from its first sealed day on."""
    unique_keys = list(dict.fromkeys(keys))
    groups = defaultdict[tuple[str, str], list[PartitionKey]](list)
    for key in unique_keys:
        groups[key.source, key.query_name].append(key)
    described: dict[PartitionKey, DayCondition] = {}
    for (source, query_name), group in groups.items():
        customers = {key.customer_id for key in group}
        days = [key.logical_date for key in group]
        rows = read_day_facts(
            ledger.engine, source=source, query_name=query_name, since=min(days), until=max(days), customers=customers
        )
        facts = {(row.customer_id, row.logical_date): row for row in rows}
        first_days = read_first_days(ledger.engine, source, customers)
        parked = find_parked(ledger.retry_queue.list_parkings(source), query_name, customers)
        for key in group:
            first_day = first_days.get(key.customer_id, date.max)
            described[key] = describe_day(
                facts.get((key.customer_id, key.logical_date)),
                key.logical_date,
                Expectation(first_day=first_day),
                parked=parked.get(key.customer_id),
                now=now,
            )
    return {key: described[key] for key in unique_keys}


def find_parked(parkings: Iterable[Parking], query_name: str, customers: Collection[str]) -> dict[str, ParkedSource]:
    """The parking that stops each customer's days of a query."""
    found: dict[str, ParkedSource] = {}
    for parking in parkings:
        reason = f"{parking.scope} {parking.name} is parked: {parking.why}"
        parked = ParkedSource(reason=reason, parked_at=parking.parked_at)
        found |= {customer: parked for customer in customers if parking.covers(customer, query_name)}
    return found
