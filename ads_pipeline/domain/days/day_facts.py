"""The facts that the ledger records of one day, from which `readability` derives its condition."""

from datetime import date, datetime
from typing import NamedTuple

from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.reason import DEMOTED, Reason
from ads_pipeline.domain.transitions import Outcome, Status


class Withdrawal(NamedTuple):
    """The operator's action that hides a day."""

    operator: str
    reason: str
    performed_at: datetime


class Acknowledgement(NamedTuple):
    """The operator's action after which a day needs nobody, as long as it is the newest event of the day.

    Marking a day as terminal is one, because an operator gave the day up.
    """

    operator: str
    reason: str
    performed_at: datetime
    is_terminal: bool = False

    def __str__(self) -> str:
        done = "marked as terminal" if self.is_terminal else "acknowledged"
        operator, reason = printable(self.operator), printable(self.reason)
        return f"{done} by {operator} at {self.performed_at:%Y-%m-%d %H:%M} UTC: {reason}"


class DayFacts(NamedTuple):
    """The facts that the ledger records of one partition. A tuple, because there may be millions.

    The `newest_` fields describe the last verdict on the newest judged run. They are read only for partitions that
    failed or that have several attempts, and are None otherwise. `demotion` is the reason of a demotion that has
    begun and is not recorded yet. `fetch_error` is the last failed fetch of a pending partition, and
    `fetch_wait_until` the earliest retry that the source allowed. `extracted_at` is when the accepted run was
    extracted.

    The `unjudged_` fields describe the newest run without a verdict; of a success, only one that is newer than the
    accepted run. `unjudged_is_newest`: no newer run has a verdict. `is_loaded`: readers see the accepted run, not the
    one before it. `accepted_version` is its schema version, and `unloadable_since` is when its files were first found
    missing or changed.
    """

    customer_id: str
    logical_date: date
    status: Status
    attempt_count: int
    record_count: int | None
    updated_at: datetime
    is_published: bool
    has_unjudged_run: bool
    is_restated: bool
    newest_outcome: Outcome | None = None
    newest_reason: Reason | None = None
    newest_judged_at: datetime | None = None
    demotion: Reason | None = None
    demotion_started_at: datetime | None = None
    withdrawal: Withdrawal | None = None
    fetch_error: str | None = None
    fetch_failed_at: datetime | None = None
    fetch_error_class: str | None = None
    fetch_wait_until: datetime | None = None
    extracted_at: datetime | None = None
    unjudged_version: str | None = None
    unjudged_since: datetime | None = None
    unjudged_is_newest: bool = True
    is_loaded: bool = True
    accepted_version: str | None = None
    unloadable_since: datetime | None = None

    @property
    def awaits_verdict(self) -> bool:
        """True if the verdict on an unjudged run would decide what readers get."""
        return self.has_unjudged_run and (self.unjudged_is_newest or self.status is Status.PENDING)

    @property
    def is_demoted(self) -> bool:
        """True if an operator rejected the newest judged run."""
        return self.newest_reason is not None and self.newest_reason.error_class == DEMOTED
