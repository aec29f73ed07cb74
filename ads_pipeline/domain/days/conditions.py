"""The conditions of days, how they are shown, which of them need an operator, and why readers do not see a day.

`readability` finds the condition of a day.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final


class Condition(StrEnum):
    """The condition of one day of one customer and query, the most urgent first."""

    REJECTED = "rejected"
    BLOCKED = "blocked"
    MISSING = "missing"
    LATE = "late"
    PARKED = "parked"
    REJECTED_RERUN = "rejected_rerun"
    BLOCKED_RERUN = "blocked_rerun"
    IN_PROGRESS = "in_progress"
    ACKNOWLEDGED = "acknowledged"
    ACKNOWLEDGED_RERUN = "acknowledged_rerun"
    HIDDEN = "hidden"
    UNRECOVERABLE = "unrecoverable"
    READABLE = "readable"
    RESTATED = "restated"
    NOT_EXPECTED = "not_expected"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionText:
    """How a condition is shown, and whether an operator should act on it."""

    label: str
    meaning: str
    needs_operator: bool = False


CONDITIONS: Final[Mapping[Condition, ConditionText]] = {
    Condition.REJECTED: ConditionText(
        label="Rejected",
        meaning="The validator rejected the run. Readers see no rows of the day.",
        needs_operator=True,
    ),
    Condition.BLOCKED: ConditionText(
        label="Blocked",
        meaning="A run cannot be judged, loaded or withdrawn without a person. Readers see no rows of the day.",
        needs_operator=True,
    ),
    Condition.MISSING: ConditionText(
        label="Missing", meaning="No run arrived, and the day is no longer fresh.", needs_operator=True
    ),
    Condition.LATE: ConditionText(
        label="Late", meaning="The day is past its deadline, and no accepted run has arrived.", needs_operator=True
    ),
    Condition.PARKED: ConditionText(
        label="Parked",
        meaning="The account or the query is not fetched until an operator releases it.",
        needs_operator=True,
    ),
    Condition.REJECTED_RERUN: ConditionText(
        label="Readable, rejected rerun",
        meaning="The newest run was rejected. Readers still see the accepted run before it.",
        needs_operator=True,
    ),
    Condition.BLOCKED_RERUN: ConditionText(
        label="Readable, blocked rerun",
        meaning="A newer run cannot be judged or loaded without a person. Readers still see the run before it.",
        needs_operator=True,
    ),
    Condition.IN_PROGRESS: ConditionText(
        label="In progress",
        meaning="A run is being judged or loaded, for at most 6 hours, or the fetch waits for a quota.",
    ),
    Condition.ACKNOWLEDGED: ConditionText(
        label="Acknowledged",
        meaning="An operator knows the problem, or marked the day as terminal. Readers see no rows of the day.",
    ),
    Condition.ACKNOWLEDGED_RERUN: ConditionText(
        label="Readable, acknowledged rerun",
        meaning="An operator knows that the newest run was rejected or is blocked. Readers see the run before it.",
    ),
    Condition.HIDDEN: ConditionText(label="Hidden", meaning="An operator withdrew the day or demoted its run."),
    Condition.UNRECOVERABLE: ConditionText(
        label="Unrecoverable", meaning="No run was accepted, and the source no longer serves the figures of the day."
    ),
    Condition.READABLE: ConditionText(label="Readable", meaning="Readers see the accepted run."),
    Condition.RESTATED: ConditionText(
        label="Readable, restated", meaning="Readers see a run that replaced an earlier accepted run."
    ),
    Condition.NOT_EXPECTED: ConditionText(
        label="Not expected", meaning="The day is before the customer's first day, or not yet due."
    ),
}


READABLE_CONDITIONS: Final = frozenset(
    {
        Condition.READABLE,
        Condition.RESTATED,
        Condition.REJECTED_RERUN,
        Condition.BLOCKED_RERUN,
        Condition.ACKNOWLEDGED_RERUN,
    }
)


NEEDS_OPERATOR: Final = tuple(condition for condition, text in CONDITIONS.items() if text.needs_operator)


BLOCKED_CONDITIONS: Final = frozenset({Condition.BLOCKED, Condition.BLOCKED_RERUN})


# What an operator decided, and nobody has to act on.
QUIET_CONDITIONS: Final = (Condition.ACKNOWLEDGED, Condition.ACKNOWLEDGED_RERUN, Condition.HIDDEN)


_URGENCY: Final = {condition: number for number, condition in enumerate(CONDITIONS)}


# What a day becomes that needs an operator, once an operator has acknowledged it.
ACKNOWLEDGED_AS: Final = {
    each: Condition.ACKNOWLEDGED_RERUN if each in READABLE_CONDITIONS else Condition.ACKNOWLEDGED
    for each in NEEDS_OPERATOR
}


def urgency(condition: Condition, day: date) -> tuple[int, int]:
    """The order of work lists, as a key to sort by: the most urgent condition first, of each the newest day first."""
    return _URGENCY[condition], -day.toordinal()


class GapReason(StrEnum):
    """Why readers do not see a day. The values complete the sentence "missing because …"."""

    NOTHING_SEALED = "no run arrived"
    UNJUDGED = "a run awaits its verdict"
    NO_CONTRACT = "no contract judges its run"
    WAITING = "it waits for another run"
    FETCH_FAILED = "its last fetch failed"
    QUOTA = "its fetch waits for the quota"
    REJECTED = "its run was rejected"
    UNLOADED = "it is accepted and not loaded yet"
    UNLOADABLE = "the files of its accepted run are missing or changed"
    DEMOTING = "its rows are being withdrawn"
    DEMOTED = "an operator demoted its run"
    WITHDRAWN = "an operator withdrew it"
    PARKED = "its fetches are stopped"
    OUT_OF_REACH = "the source no longer serves it"


class ReportState(StrEnum):
    """Whether the source may still change the figures of a readable day."""

    PROVISIONAL = "provisional"
    SETTLED = "settled"


def count_unreadable(unreadable: int, expected: int) -> str:
    """One sentence: how many of the expected days readers do not get."""
    if expected == 0:
        return "no day is expected"
    days = "day" if expected == 1 else "days"
    if unreadable == 0:
        return f"all {expected:,} expected {days} are readable" if expected != 1 else "the expected day is readable"
    verb = "is" if unreadable == 1 else "are"
    return f"{unreadable:,} of {expected:,} expected {days} {verb} not readable"
