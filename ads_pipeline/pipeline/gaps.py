"""Explains why readers do not see an expected partition.

The list of expected partitions is in `pipeline.readers`.
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
    """An expected partition that readers do not see. `detail` is the validator's message."""

    key: PartitionKey
    reason: GapReason
    detail: str | None = None

    @property
    def explanation(self) -> str:
        """The reason and its detail, without the partition."""
        return f"{self.reason}: {self.detail}" if self.detail else str(self.reason)

    def __str__(self) -> str:
        return f"{self.key}: {self.explanation}"


def find_gap(key: PartitionKey, publication: PublicationStatus | None) -> Gap | None:
    """Return why readers do not see this partition, or None when they see it."""
    if publication is None:
        return Gap(key=key, reason=GapReason.NOTHING_SEALED)
    is_success = publication.state.status is Status.SUCCESS
    reason = _explain_unpublished(publication) if is_success else _explain_unsuccessful(publication)
    return None if reason is None else Gap(key=key, reason=reason, detail=publication.state.error_message)


def _explain_unsuccessful(publication: PublicationStatus) -> GapReason:
    if publication.state.status is Status.FAILED:
        return GapReason.REJECTED
    if publication.has_unjudged_run:
        return GapReason.UNJUDGED
    return GapReason.WAITING if publication.state.attempt_count else GapReason.NOTHING_SEALED


def _explain_unpublished(publication: PublicationStatus) -> GapReason | None:
    if publication.demotion_pending:
        return GapReason.DEMOTING
    return None if publication.is_published else GapReason.UNLOADED
