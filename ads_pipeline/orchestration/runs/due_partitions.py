"""The partitions that a run is for. It leaves the other partitions of its range as they are.

A run in Dagster covers a rectangle of customers and days. The sensors name the due ones in the run's configuration. A
run without this configuration, such as a backfill of an operator, is for its whole range.
"""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

import dagster as dg

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import PartitionKey, parse_date
from ads_pipeline.orchestration.naming.names import Names

RESOURCE: Final = "run_resources"
DUE: Final = "due"
DUE_SCHEMA: Final = {
    DUE: dg.Field(
        {str: {str: {str: str}}},
        is_required=False,
        description="Query, customer and day of each partition that the run is for, with a digest of the reason. "
        "Without it, the run is for all partitions of its range.",
    )
}

Reasons = Mapping[PartitionKey, str]


def digest_of(content: object) -> str:
    """A short digest for run keys, tags and reasons."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:12]


def build_run_config(names: Names, digests: Reasons) -> dict[str, Any]:
    """The configuration of a run for these partitions, each with the digest of its reason."""
    due: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))
    for key in sorted(digests):
        due[key.query_name][key.customer_id][key.logical_date.isoformat()] = digests[key]
    plain = {query: {customer: dict(days) for customer, days in found.items()} for query, found in due.items()}
    return {"resources": {names.name(RESOURCE): {"config": {DUE: plain}}}}


def read_run_config(names: Names, run_config: Mapping[str, Any], source: str) -> dict[PartitionKey, str] | None:
    """The partitions that a run with this configuration is for, or None when it is for its whole range.

    Raises BadName for a configuration of another form, which an operator may have written.
    """
    try:
        resource = (run_config.get("resources") or {}).get(names.name(RESOURCE)) or {}
        return read_due(resource.get("config") or {}, source)
    except (AttributeError, TypeError) as error:
        raise BadName("run configuration", run_config, "its resources must be mappings") from error


def read_due(config: Mapping[str, Any], source: str) -> dict[PartitionKey, str] | None:
    """The same from the configuration of the resource."""
    if DUE not in config:
        return None
    try:
        return {
            PartitionKey(source=source, customer_id=customer, query_name=query, logical_date=parse_date(day)): digest
            for query, customers in config[DUE].items()
            for customer, days in customers.items()
            for day, digest in days.items()
        }
    except (AttributeError, TypeError) as error:
        raise BadName(DUE, config[DUE], "it must map queries to customers and days") from error
