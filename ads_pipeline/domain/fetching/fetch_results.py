"""The values of a request and of a fetch that seals no run: a backfill, a failure, or a skipped partition.

The sealed runs themselves are in `raw`. `run_source.Landed` joins the three.
"""

import uuid
from dataclasses import dataclass, field
from datetime import datetime

from ads_pipeline.domain.partition import PartitionKey, validate_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFetch:
    """A fetch that produced no run. The id names this attempt, so that a repeated report is recognized.

    `wait_until` is the earliest retry that the source allows, if it named one. Without `failed_at`, the fetch failed
    when it is recorded. `request_id` is the name under which the source's support finds the request.
    """

    key: PartitionKey
    error_class: str
    error_message: str
    wait_until: datetime | None = None
    failed_at: datetime | None = None
    failure_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    request_id: str | None = None

    def __post_init__(self) -> None:
        validate_name("error_class", self.error_class)
        validate_name("failure_id", self.failure_id)
        if not self.error_message:
            raise ValueError(f"{self.key}: a failed fetch needs an error_message")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """The partitions of a query that were requested together. Dagster may divide them among several runs."""

    requested_at: datetime
    keys: frozenset[PartitionKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFetch:
    """A partition that was not fetched: its account is parked, or its day is not closed or out of reach.

    It is no attempt and counts nothing. `until` is the time at which it can be fetched, if that is known.
    """

    key: PartitionKey
    reason: str
    until: datetime | None = None
