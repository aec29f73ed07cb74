"""Says why readers do not see a partition, from where it stands between its verdict and them.

Which partitions are expected, and what readers see of the others, is `reading`'s.
"""

from dataclasses import dataclass
from enum import StrEnum

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.values import PublicationStatus


class GapReason(StrEnum):
    """Why a day is missing. The values complete the sentence "missing because …"."""

    NOTHING_SEALED = "no run was registered"
    UNJUDGED = "a run awaits its verdict"
    WAITING = "it waits for another run"
    REJECTED = "its run was rejected"
    UNLOADED = "it is accepted and not loaded yet"
    DEMOTING = "its rows are being withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """An expected partition that readers do not see. `detail` is what the validator said."""

    key: PartitionKey
    reason: GapReason
    detail: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.reason}" + (f": {self.detail}" if self.detail else "")


def gap_of(key: PartitionKey, standing: PublicationStatus | None) -> Gap | None:
    """Why readers do not see this partition; None when they do."""
    if standing is None:
        return Gap(key=key, reason=GapReason.NOTHING_SEALED)
    reason = _unread(standing) if standing.state.status is Status.SUCCESS else _unfinished(standing)
    return None if reason is None else Gap(key=key, reason=reason, detail=standing.state.error_message)


def _unfinished(standing: PublicationStatus) -> GapReason:
    if standing.state.status is Status.FAILED:
        return GapReason.REJECTED
    if standing.unjudged:
        return GapReason.UNJUDGED
    return GapReason.WAITING if standing.state.attempt_count else GapReason.NOTHING_SEALED


def _unread(standing: PublicationStatus) -> GapReason | None:
    if standing.demoting:
        return GapReason.DEMOTING
    return None if standing.pointed else GapReason.UNLOADED
