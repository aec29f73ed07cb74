"""The table of states that are not final: it lists every value that the code and the ledger's schema define."""

import re
from collections import Counter
from typing import Any

import pytest

from ads_pipeline.domain.days.conditions import (
    CONDITIONS,
    NEEDS_OPERATOR,
    QUIET_CONDITIONS,
    Condition,
    GapReason,
    ReportState,
)
from ads_pipeline.domain.days.materialization_status import AttemptOutcome, DisplayStatus, StaleReason
from ads_pipeline.domain.days.open_state import DECIDED, NO_LIMIT, StateKind
from ads_pipeline.domain.days.open_states import FINAL_STATES, OPEN_STATES, names_of
from ads_pipeline.domain.fetching.retry_policy import PARKING_SCOPES, ErrorPolicy, TerminalReason
from ads_pipeline.domain.run_snapshots import TERMINAL_STATUSES, RunStatus, StepStatus
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.schema.texts import read_text
from ads_pipeline_tests.test_docs import marked_section

TEXT = read_text("sqlite")


def values_of(column: str) -> set[str]:
    """The values that the schema allows in a column."""
    found = re.search(rf"CHECK \({column} IN \(([^)]*)\)\)", TEXT)
    assert found is not None, column
    return set(re.findall(r"'([^']+)'", found.group(1)))


DEFINED: dict[StateKind, set[Any]] = {
    StateKind.STATUS: set(Status),
    StateKind.CONDITION: set(Condition),
    StateKind.GAP: set(GapReason),
    StateKind.POLICY: set(ErrorPolicy),
    StateKind.TERMINAL: set(TerminalReason),
    StateKind.PARKING: set(PARKING_SCOPES.values()) | values_of("scope"),
    StateKind.REQUEST: values_of("kind"),
    StateKind.REPORT: set(ReportState),
    StateKind.DISPLAY: set(DisplayStatus),
    StateKind.STALE: set(StaleReason),
    StateKind.ATTEMPT: set(AttemptOutcome),
    StateKind.POINTER: values_of("availability"),
    StateKind.RUN: set(RunStatus),
    StateKind.STEP: set(StepStatus),
    StateKind.TABLE: set(re.findall(r"CREATE TABLE (\w+)", TEXT)),
}


@pytest.mark.invariant("L2", "L6")
@pytest.mark.parametrize("kind", DEFINED)
def test_every_defined_state_is_listed_once(kind: StateKind) -> None:
    """Each value of an enum, of a checked column and each table is either in the table, once, or final."""
    assert Counter(names_of(kind)) == Counter(str(name) for name in DEFINED[kind])


def test_final_states_of_runs_are_those_of_the_snapshots() -> None:
    """A status of a run is final in the table exactly when its snapshot accepts no further event."""
    assert FINAL_STATES[StateKind.RUN] == TERMINAL_STATUSES


@pytest.mark.invariant("L2")
def test_only_what_needs_an_operator_has_no_limit() -> None:
    """A condition of a day without a limit needs an operator, and whoever acts on it is told of it."""
    unlimited = {name for state in OPEN_STATES if state.within == NO_LIMIT for name in state.names}
    conditions = {name for name in Condition if name in unlimited}
    assert Condition.MISSING in conditions
    assert [name for name in conditions if not CONDITIONS[name].needs_operator] == []


def test_only_what_an_operator_decided_is_quiet() -> None:
    """A condition that an operator decided has no limit either, and needs nobody."""
    decided = {name for state in OPEN_STATES if state.within == DECIDED for name in state.names}
    assert decided == set(QUIET_CONDITIONS)
    assert not decided.intersection(NEEDS_OPERATOR)


def test_every_cell_is_one_line_of_text() -> None:
    """No cell is empty, and none breaks the table in the documentation."""
    for state in OPEN_STATES:
        texts = (state.ended_by, state.within, state.otherwise, state.told)
        assert all(texts), state.names
        assert all("|" not in text and "\n" not in text for text in texts), state.names


def state_table() -> str:
    """The table as Markdown."""
    lines = ["| state | who ends it | within | otherwise | who is told |", "|---|---|---|---|---|"]
    for state in OPEN_STATES:
        name = f"{state.kind}: {', '.join(state.names)}"
        lines.append(f"| {name} | {state.ended_by} | {state.within} | {state.otherwise} | {state.told} |")
    return "\n".join(lines)


def test_table_in_the_documentation_matches_the_code() -> None:
    """The table in docs/concepts.md is OPEN_STATES."""
    assert marked_section("docs/concepts.md", "open states") == state_table()
