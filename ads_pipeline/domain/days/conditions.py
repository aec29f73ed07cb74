"""The table of the conditions that a day can have, and the reasons why readers do not see a day.

`readability` finds the condition of a day.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Final


class Condition(StrEnum):
    """The condition of one day of one customer and query."""

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


class NextActor(StrEnum):
    """The one whose turn it is on a day of this condition."""

    OPERATOR = "an operator"
    PIPELINE = "the pipeline, by itself"
    DECIDED = "nobody: an operator has decided"
    GIVEN_UP = "nobody: no figures can be had"
    NOBODY = "nobody: nothing is wrong"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionEntry:
    """One row of the table of conditions, from which every screen, check and message derives.

    `has_rows`: readers see rows of the day. `is_overdue`: past its deadline, the day counts as overdue.
    `needs_no_run`: a day of which nothing is recorded may have it. `needs_no_event`: it may begin as time passes.
    """

    label: str
    meaning: str
    next_actor: NextActor
    has_rows: bool = False
    is_overdue: bool = False
    needs_no_run: bool = False
    needs_no_event: bool = False

    @property
    def needs_operator(self) -> bool:
        return self.next_actor is NextActor.OPERATOR

    @property
    def is_fine(self) -> bool:
        """True if nothing is to be explained or done."""
        return self.next_actor is NextActor.NOBODY


# The order is that of urgency.
CONDITIONS: Final[Mapping[Condition, ConditionEntry]] = {
    Condition.REJECTED: ConditionEntry(
        label="Rejected",
        meaning="The validator rejected the run. Readers see no rows of the day.",
        next_actor=NextActor.OPERATOR,
    ),
    Condition.BLOCKED: ConditionEntry(
        label="Blocked",
        meaning="A run cannot be judged, loaded or withdrawn without a person. Readers see no rows of the day.",
        next_actor=NextActor.OPERATOR,
        is_overdue=True,
        needs_no_event=True,
    ),
    Condition.MISSING: ConditionEntry(
        label="Missing",
        meaning="No run arrived, and the day is no longer fresh.",
        next_actor=NextActor.OPERATOR,
        is_overdue=True,
        needs_no_run=True,
        needs_no_event=True,
    ),
    Condition.LATE: ConditionEntry(
        label="Late",
        meaning="The day is past its deadline, and no accepted run has arrived.",
        next_actor=NextActor.OPERATOR,
        is_overdue=True,
        needs_no_run=True,
        needs_no_event=True,
    ),
    Condition.PARKED: ConditionEntry(
        label="Parked",
        meaning="The account or the query is not fetched until an operator releases it.",
        next_actor=NextActor.OPERATOR,
        needs_no_run=True,
        needs_no_event=True,
    ),
    Condition.REJECTED_RERUN: ConditionEntry(
        label="Readable, rejected rerun",
        meaning="The newest run was rejected. Readers still see the accepted run before it.",
        next_actor=NextActor.OPERATOR,
        has_rows=True,
    ),
    Condition.BLOCKED_RERUN: ConditionEntry(
        label="Readable, blocked rerun",
        meaning="A newer run cannot be judged or loaded without a person. Readers still see the run before it.",
        next_actor=NextActor.OPERATOR,
        has_rows=True,
        needs_no_event=True,
    ),
    Condition.IN_PROGRESS: ConditionEntry(
        label="In progress",
        meaning="A run is being judged or loaded, for at most 6 hours, or the fetch waits for a quota.",
        next_actor=NextActor.PIPELINE,
        needs_no_run=True,
    ),
    Condition.ACKNOWLEDGED: ConditionEntry(
        label="Acknowledged",
        meaning="An operator knows the problem, or marked the day as terminal. Readers see no rows of the day.",
        next_actor=NextActor.DECIDED,
        needs_no_run=True,
    ),
    Condition.ACKNOWLEDGED_RERUN: ConditionEntry(
        label="Readable, acknowledged rerun",
        meaning="An operator knows that the newest run was rejected or is blocked. Readers see the run before it.",
        next_actor=NextActor.DECIDED,
        has_rows=True,
    ),
    Condition.HIDDEN: ConditionEntry(
        label="Hidden",
        meaning="An operator withdrew the day or demoted its run.",
        next_actor=NextActor.DECIDED,
    ),
    Condition.UNRECOVERABLE: ConditionEntry(
        label="Unrecoverable",
        meaning="No run was accepted, and the source no longer serves the figures of the day.",
        next_actor=NextActor.GIVEN_UP,
        needs_no_run=True,
        needs_no_event=True,
    ),
    Condition.READABLE: ConditionEntry(
        label="Readable", meaning="Readers see the accepted run.", next_actor=NextActor.NOBODY, has_rows=True
    ),
    Condition.RESTATED: ConditionEntry(
        label="Readable, restated",
        meaning="Readers see a run that replaced an earlier accepted run.",
        next_actor=NextActor.NOBODY,
        has_rows=True,
    ),
    Condition.NOT_EXPECTED: ConditionEntry(
        label="Not expected",
        meaning="The day is before the customer's first day, or not yet due.",
        next_actor=NextActor.NOBODY,
    ),
}


def conditions_of(*actors: NextActor) -> tuple[Condition, ...]:
    """The conditions on which one of these acts next, the most urgent first."""
    return tuple(condition for condition, entry in CONDITIONS.items() if entry.next_actor in actors)


NEEDS_OPERATOR: Final = conditions_of(NextActor.OPERATOR)
READABLE_CONDITIONS: Final = frozenset(each for each, entry in CONDITIONS.items() if entry.has_rows)
UNREADABLE_CONDITIONS: Final = frozenset(CONDITIONS) - READABLE_CONDITIONS - {Condition.NOT_EXPECTED}
OVERDUE_CONDITIONS: Final = frozenset(each for each, entry in CONDITIONS.items() if entry.is_overdue)
BLOCKED_CONDITIONS: Final = frozenset({Condition.BLOCKED, Condition.BLOCKED_RERUN})
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
    """The reason why readers do not see a day. The values complete the sentence "missing because …"."""

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


def count_unreadable(unreadable: int, expected: int) -> str:
    """One sentence: how many of the expected days readers do not get."""
    if expected == 0:
        return "no day is expected"
    days = "day" if expected == 1 else "days"
    if unreadable == 0:
        return f"all {expected:,} expected {days} are readable" if expected != 1 else "the expected day is readable"
    verb = "is" if unreadable == 1 else "are"
    return f"{unreadable:,} of {expected:,} expected {days} {verb} not readable"
