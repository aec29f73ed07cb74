"""What a state that is not final is: who ends it, within which time, what follows if nobody does, and who is told."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NO_LIMIT: Final = "no limit: a person decides"
DECIDED: Final = "no limit: an operator has decided"


class StateKind(StrEnum):
    """What has a state."""

    STATUS = "status"
    CONDITION = "condition"
    GAP = "reason of a gap"
    POLICY = "failed fetch or run"
    TERMINAL = "terminal partition"
    PARKING = "parking"
    REQUEST = "request"
    REPORT = "figures"
    DISPLAY = "display status"
    STALE = "stale because"
    ATTEMPT = "attempt"
    POINTER = "pointer"
    RUN = "run in the event log"
    STEP = "step in the event log"
    TABLE = "rows in the ledger"
    FILE = "files"
    ENGINE = "Dagster"
    PROCESS = "processes"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenState:
    """A state that something has to end.

    `names` are values of an enum, names of tables, or plain words for what the code does not enumerate.
    """

    kind: StateKind
    names: tuple[str, ...]
    ended_by: str
    within: str
    otherwise: str
    told: str


def open_state(kind: StateKind, *names: str, ended_by: str, within: str, otherwise: str, told: str) -> OpenState:
    return OpenState(kind=kind, names=names, ended_by=ended_by, within=within, otherwise=otherwise, told=told)
