"""The tags of runs over a range of partitions, which the UI lists beside each run."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import dagster as dg

from ads_pipeline.domain.errors import BadName
from ads_pipeline.orchestration.naming.names import Names

QUERY_TAG: Final = "ads_pipeline/query"
CUSTOMERS_TAG, DAYS_TAG, WHY_TAG = "ads_pipeline/customers", "ads_pipeline/days", "ads_pipeline/why"
START, END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
_PARTITION_NAME: Final = re.compile(r"[^|]*\|\d{4}-\d\d-\d\d", re.ASCII)
MAX_NAMES: Final = 3  # of queries in a tag; Postgres cannot index a long value


def range_tags(names: Names, query_names: Sequence[str], start: str, end: str, *, why: str) -> dict[str, str]:
    """The tags of a run over a range of partitions of these queries."""
    (first_customer, _, first_day), (last_customer, _, last_day) = start.rpartition("|"), end.rpartition("|")
    return {
        START: start,
        END: end,
        names.tag(QUERY_TAG): _describe_queries(query_names),
        names.tag(CUSTOMERS_TAG): _describe_span(first_customer, last_customer),
        names.tag(DAYS_TAG): _describe_span(first_day, last_day),
        names.tag(WHY_TAG): why,
    }


def describe_range(names: Names, tags: Mapping[str, str]) -> str:
    """The queries, customers and days of a run with the tags of `range_tags`."""
    queries, customers, days = (tags[names.tag(each)] for each in (QUERY_TAG, CUSTOMERS_TAG, DAYS_TAG))
    return f"{queries}, customers {customers}, days {days}"


def log_requests(names: Names, log: logging.Logger, requests: Iterable[dg.RunRequest]) -> None:
    """Log what each requested run is about. The UI shows the log beside the tick."""
    for request in requests:
        log.info("requests %s: %s", describe_range(names, request.tags), request.tags[names.tag(WHY_TAG)])


def partition_names(tags: Mapping[str, str], partitions: dg.MultiPartitionsDefinition) -> list[str]:
    """The partitions of a run with these tags. A range is empty if the customer at one of its ends was deleted.

    Raises BadName for a range that is incomplete, or whose ends are not the names of a customer and a day.
    """
    if START not in tags and END not in tags:
        return [tags["dagster/partition"]] if "dagster/partition" in tags else []
    start, end = _read_end(tags, START), _read_end(tags, END)
    try:
        return [str(name) for name in partitions.get_partition_keys_in_range(dg.PartitionKeyRange(start, end))]
    except dg.DagsterInvalidInvocationError:
        return []  # the run fails when it starts
    except ValueError as error:
        raise BadName("partition range", f"{start}..{end}", "its days must exist") from error


def _read_end(tags: Mapping[str, str], tag: str) -> str:
    name = tags.get(tag, "")
    if _PARTITION_NAME.fullmatch(name) is None:
        raise BadName(tag, name, "it must be a customer and a day, as in 1180250317|2026-03-01")
    return name


def _describe_queries(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"


def _describe_span(first: str, last: str) -> str:
    return first if first == last else f"{first} to {last}"
