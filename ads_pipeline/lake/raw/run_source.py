"""The interface between the raw assets and whatever supplies their sealed runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ads_pipeline.domain.fetching.fetch_results import Backfill, FailedFetch, SkippedFetch
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.discovery import DamagedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """The result of a source for the requested partitions. A source holds no ledger state: its caller records this.

    `runs` are the sealed runs that have no verdict, the oldest first in each partition. A partition in none of the
    three has no sealed run that awaits a verdict. `notes` are what the extractor noted in the seals of its own runs.
    """

    runs: tuple[SealedRun | DamagedRun, ...] = ()
    failed: tuple[FailedFetch, ...] = ()
    skipped: tuple[SkippedFetch, ...] = ()
    notes: Mapping[Run, Mapping[str, Any]] = field(default_factory=dict)


class Source(Protocol):
    """Supplies sealed runs of partitions, either by extracting them or by finding what other extractors sealed."""

    @property
    def fetches(self) -> bool:
        """True if the source extracts runs itself, so that a repeated request can produce a new run."""
        ...

    def land(self, partitions: Sequence[PartitionKey], backfill: Backfill | None = None) -> Landed:
        """Seal or find the runs of these partitions. One partition's failure is in the result and never raised.

        A source that fetches may seal other days of the backfill too. The runs of those days then find them.
        """
        ...
