"""The table of states that are not final: it lists every value that the code and the ledger's schema define."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest

from ads_pipeline.domain.days.conditions import (
    CONDITIONS,
    NEEDS_OPERATOR,
    Condition,
    GapReason,
    NextActor,
    conditions_of,
)
from ads_pipeline.domain.days.materialization_status import AttemptOutcome, DisplayStatus, StaleReason
from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.fetching.retry_policy import PARKING_SCOPES, ErrorPolicy, TerminalReason
from ads_pipeline.domain.run_snapshots import TERMINAL_STATUSES, RunStatus, StepStatus
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.schema.texts import read_text
from ads_pipeline_tests.test_docs import marked_section

TEXT = read_text("sqlite")
PERSON_DECIDES = "no limit: a person decides"
DECIDED = "no limit: an operator has decided"


class OpenState(NamedTuple):
    """One line of the table in docs/concepts.md."""

    kind: str
    names: tuple[str, ...]
    ended_by: str
    within: str
    otherwise: str
    told: str


def read_table() -> list[OpenState]:
    """The lines of the table."""
    lines = marked_section("docs/concepts.md", "open states").splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [
        OpenState(name.partition(": ")[0], tuple(name.partition(": ")[2].split(", ")), *others)
        for name, *others in cells
    ]


def values_of(column: str) -> set[str]:
    """The values that the schema allows in a column."""
    found = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", TEXT)
    assert found is not None, column
    return set(re.findall(r"'([^']+)'", found.group(1)))


OPEN_STATES = read_table()
DEFINED: dict[str, Iterable[str]] = {
    "status": Status,
    "condition": Condition,
    "reason of a gap": GapReason,
    "failed fetch or run": ErrorPolicy,
    "terminal partition": TerminalReason,
    "parking": set(PARKING_SCOPES.values()) | values_of("scope"),
    "request": values_of("kind"),
    "figures": ReportState,
    "display status": DisplayStatus,
    "stale because": StaleReason,
    "attempt": AttemptOutcome,
    "pointer": values_of("availability"),
    "run in the event log": RunStatus,
    "step in the event log": StepStatus,
    "rows in the ledger": re.findall(r"CREATE TABLE (\w+)", TEXT),
}
# Values that nothing has to end, and tables of facts that only grow or that others replace as a whole.
FINAL: dict[str, Iterable[str]] = {
    "status": {Status.SUCCESS},
    "condition": {Condition.READABLE, Condition.RESTATED, Condition.UNRECOVERABLE, Condition.NOT_EXPECTED},
    "reason of a gap": {GapReason.OUT_OF_REACH},
    "figures": {ReportState.SETTLED},
    "display status": {DisplayStatus.MATERIALIZED},
    "attempt": AttemptOutcome,
    "pointer": {"published"},
    "run in the event log": TERMINAL_STATUSES,
    "step in the event log": {StepStatus.SUCCEEDED, StepStatus.FAILED, StepStatus.CANCELLED, StepStatus.SKIPPED},
    "rows in the ledger": {
        "attempts",
        "code_versions",
        "control_action_partitions",
        "control_actions",
        "finished_attempts",
        "load_records",
        "partition_state",
        "partition_status",
        "run_events",
        "runs",
        "warehouse_pointer",
    },
}


@pytest.mark.invariant("L2", "L6")
@pytest.mark.parametrize("kind", DEFINED)
def test_every_defined_state_is_listed_once(kind: str) -> None:
    """Each value of an enum, of a checked column and each table is either in the table, once, or final."""
    listed = [name for state in OPEN_STATES if state.kind == kind for name in state.names]
    assert Counter([*listed, *map(str, FINAL.get(kind, ()))]) == Counter(map(str, DEFINED[kind]))


def test_kinds_of_states_are_known() -> None:
    """The other kinds are states outside the ledger."""
    assert {state.kind for state in OPEN_STATES} - set(DEFINED) == {"files", "Dagster", "processes"}


@pytest.mark.invariant("L2")
def test_only_what_needs_an_operator_has_no_limit() -> None:
    """A condition of a day without a limit needs an operator, and whoever acts on it is told of it."""
    unlimited = {name for state in OPEN_STATES if state.within == PERSON_DECIDES for name in state.names}
    conditions = {name for name in Condition if name in unlimited}
    assert Condition.MISSING in conditions
    assert [name for name in conditions if not CONDITIONS[name].needs_operator] == []


def test_only_what_an_operator_decided_is_quiet() -> None:
    """A condition that an operator decided has no limit either, and needs nobody."""
    decided = {name for state in OPEN_STATES if state.within == DECIDED for name in state.names}
    assert decided == set(conditions_of(NextActor.DECIDED))
    assert not decided.intersection(NEEDS_OPERATOR)


def test_every_cell_has_a_text() -> None:
    """No state lacks who ends it, within which time, what follows otherwise, or who is told."""
    for state in OPEN_STATES:
        assert all(state), state.names
