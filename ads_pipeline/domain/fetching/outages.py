"""Decides from the newest calls of all runs whether the source itself is away, and how its callers pause.

A hold stops calls until a time. Then one call is granted, the probe, and the others wait for its outcome. A probe
that the source answers lifts the hold; each probe that it does not answer makes the next pause longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from typing import Final

SOURCE_UNAVAILABLE: Final = "source_unavailable"  # no connection, no token: the fault speaks of the source
TRANSIENT: Final = "transient"  # an internal error, a stream that broke: of one request, or of the source
TIMED_OUT: Final = "timed_out"  # the stream outlived its deadline, or stalled
UNANSWERED: Final = frozenset({SOURCE_UNAVAILABLE, TRANSIENT})
INTERRUPTED: Final = "interrupted"  # the disk or this process failed during the call
NOT_NEEDED: Final = "not_needed"  # the outcome of an operation for days that another run has just fetched
# Outcomes that say nothing about the source.
NO_EVIDENCE: Final = frozenset({INTERRUPTED, NOT_NEEDED})

PAUSES: Final = tuple(timedelta(minutes=minutes) for minutes in (1, 2, 5, 10, 15, 30))  # the last one repeats
PROBE_LIMIT: Final = timedelta(minutes=10)  # a probe without an outcome for so long is replaced
# The account whose call failed last probes this long after the others may: its fault may be its own.
PROBE_TURN: Final = timedelta(minutes=1)
# The longest hold, whatever the source names. Its quota is a rolling day.
LONGEST_HOLD: Final = timedelta(hours=25)
LEAST_ACCOUNTS: Final = 3  # that must fail alike, or all there are
CALLS_JUDGED: Final = 300  # the newest calls that the rule looks at
OWN_CALLS: Final = 3  # unanswered calls of one account, while others are answered: its own fault


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCall:
    """One call with its outcome. A call about no account has no `customer_id`."""

    customer_id: str | None
    outcome: str
    has_rows: bool = False

    @property
    def is_unanswered(self) -> bool:
        """True if the source may have been away. A stream that had rows was only too long."""
        return self.outcome in UNANSWERED or (self.outcome == TIMED_OUT and not self.has_rows)

    @property
    def is_evidence(self) -> bool:
        return self.outcome not in NO_EVIDENCE and not (self.outcome == TIMED_OUT and self.has_rows)


def is_source_away(calls: Sequence[EndedCall], known_accounts: int) -> bool:
    """True if the newest call failed because the source is away. `calls` has the newest first.

    A fault that speaks of the source is enough, unless only this account has it. Of the faults that may concern one
    account, three accounts, or all that are known, must have one, and no call since may have been answered. With
    `known_accounts` of 0 their number is unknown.
    """
    judged = [call for call in calls if call.is_evidence]
    if not judged or not judged[0].is_unanswered:
        return False
    if judged[0].outcome == SOURCE_UNAVAILABLE:
        return not _is_own_fault(judged)
    unanswered = list(takewhile(lambda call: call.is_unanswered, judged))
    needed = min(LEAST_ACCOUNTS, known_accounts or LEAST_ACCOUNTS)
    return len(unanswered) >= LEAST_ACCOUNTS and len({call.customer_id for call in unanswered}) >= needed


def pause_after(failures: int) -> timedelta:
    """The pause after this many unanswered calls in a row."""
    return PAUSES[min(max(failures, 1), len(PAUSES)) - 1]


def _is_own_fault(calls: Sequence[EndedCall]) -> bool:
    """True if the account's last calls were not answered, while calls about other accounts in between were."""
    account = calls[0].customer_id
    own = [index for index, call in enumerate(calls) if call.customer_id == account][:OWN_CALLS]
    if account is None or len(own) < OWN_CALLS or not all(calls[index].is_unanswered for index in own):
        return False
    others = (call for call in calls[: own[-1]] if call.customer_id not in (None, account))
    return any(not call.is_unanswered for call in others)
