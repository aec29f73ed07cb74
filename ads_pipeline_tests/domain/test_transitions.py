"""The transition table against a second table written by hand, and properties that follow from it."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadName, IllegalTransition
from ads_pipeline.domain.transitions import (
    TRANSITIONS,
    Action,
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Status,
    Verdict,
    action_for,
    apply_control_action,
    apply_verdict,
    transition_for,
)
from ads_pipeline_tests import builders

KEY = builders.key()
NOW = datetime(2026, 2, 4, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)
CURRENT = 5  # the ordinal of the run that has authority
MESSAGE_ORDINAL = 6  # the ordinal of the run that an old message is about

# The result of each action in each status; `-` is illegal.
GRID_TEXT = """
    action             absent   pending  failed   success
    ACCEPT_NEWER    promote  promote  promote  promote
    ACCEPT_CURRENT  -        promote  promote  confirm
    ACCEPT_OLDER    -        promote  promote  supersede
    REJECT_CURRENT  -        fail     fail     demote
    REJECT_OTHER    fail     fail     fail     set_aside
    REDELIVER       -        stay     stay     stay
    END_UNJUDGED    stay     stay     stay     stay
    ENQUEUE         pend     stay     stay     stay
    REQUEUE         stay     stay     pend     -
    REPROCESS       -        -        -        stay
    WITHDRAW        -        -        -        pend
    MARK_TERMINAL   -        -        stay     -
    CLEAR_TERMINAL  -        stay     stay     stay
    ACKNOWLEDGE     stay     stay     stay     stay
"""
# The meaning of the cells above. A success has no message, so `keep` leaves it without one.
MEANINGS_TEXT = """
    word       status   authority  attempts  message  effect
    promote    success  takes      +1        clear    promoted
    confirm    success  keeps      +1        keep     confirmed
    supersede  success  keeps      +1        keep     superseded
    set_aside  success  keeps      +1        keep     set_aside
    fail       failed   keeps      +1        newest   failed
    demote     failed   keeps      +1        set      demoted
    stay       same     keeps      +0        keep     -
    pend       pending  keeps      +0        keep     -
"""


Authority = tuple[str | None, str | None, int | None]


class Cell(NamedTuple):
    status_before: str
    action: str
    status: str = "refused"
    authority: str = ""
    attempts: str = ""
    message: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.status_before}-{self.action}"


def grid() -> Iterator[Cell]:
    (_, *states), *rows = (line.split() for line in GRID_TEXT.strip().splitlines())
    meanings = {word: rest for word, *rest in map(str.split, MEANINGS_TEXT.strip().splitlines())}
    for action, *cells in rows:
        for status_before, word in zip(states, cells, strict=True):
            status, *rest = meanings.get(word, ["refused"])
            yield Cell(status_before, action, status_before if status == "same" else status, *rest)


GRID = tuple(grid())
LEGAL = tuple(cell for cell in GRID if cell.status != "refused")
# The ordinals of the judged run for which a verdict is that action.
JUDGED_ORDINALS: dict[str, tuple[int, ...]] = {
    "ACCEPT_NEWER": (CURRENT + 1, CURRENT + 9),
    "ACCEPT_CURRENT": (CURRENT,),
    "ACCEPT_OLDER": (1, CURRENT - 1),
    "REJECT_CURRENT": (CURRENT,),
    "REJECT_OTHER": (1, CURRENT - 1, MESSAGE_ORDINAL, MESSAGE_ORDINAL + 1),
}


RECORDED = {"absent": None, "pending": Status.PENDING, "failed": Status.FAILED, "success": Status.SUCCESS}


def register(ordinal: int) -> RegisteredRun:
    run = builders.run(f"run-{ordinal}")
    return RegisteredRun(run=run, ordinal=ordinal, schema_version=f"v{ordinal}", record_count=ordinal * 100)


def make_verdict(ordinal: int, outcome: Outcome, message: str) -> Verdict:
    if outcome is Outcome.ACCEPTED:
        return builders.acceptance(register(ordinal).run, ordinal * 100)
    return builders.rejection(register(ordinal).run, message)


def authority_columns(state: PartitionState) -> Authority:
    return state.current_run_id, state.schema_version, state.record_count


def expected_authority(ordinal: int | None) -> Authority:
    return (None, None, None) if ordinal is None else (f"run-{ordinal}", f"v{ordinal}", ordinal * 100)


@dataclass(frozen=True, slots=True)
class LedgerView:
    """A partition's state between two verdicts, with the ordinals that the ledger stores."""

    state: PartitionState
    current_ordinal: int | None = None
    message_ordinal: int | None = None
    effect: Effect | None = None

    def record(
        self, ordinal: int, outcome: Outcome, message: str = "message", *, now: datetime = NOW
    ) -> "LedgerView":
        verdict, run = make_verdict(ordinal, outcome, message), register(ordinal)
        ordinals_stored = {"current_ordinal": self.current_ordinal, "message_ordinal": self.message_ordinal}
        effect = apply_verdict(self.state, verdict, registered=run, now=now, **ordinals_stored)
        current = ordinal if effect.effect is Effect.PROMOTED else self.current_ordinal
        return LedgerView(effect.state, current, effect.message_ordinal, effect.effect)


NEW = LedgerView(PartitionState.absent(KEY))


def view_with_status(name: str) -> LedgerView:
    """A partition with this status, a current run and, unless it is a success, an old message."""
    if name == "absent":
        return NEW
    message, message_ordinal = (None, None) if name == "success" else ("old message", MESSAGE_ORDINAL)
    run_id, version, rows = expected_authority(CURRENT)
    state = replace(NEW.state, current_run_id=run_id, schema_version=version, record_count=rows, attempt_count=3)
    return LedgerView(
        replace(state, status=Status(name), error_message=message, updated_at=EARLIER), CURRENT, message_ordinal
    )


def perform(before: LedgerView, action: str, ordinal: int = CURRENT) -> LedgerView:
    if action not in JUDGED_ORDINALS:
        return replace(before, state=apply_control_action(before.state, Action[action], now=NOW))
    outcome = Outcome.ACCEPTED if action.startswith("ACCEPT") else Outcome.REJECTED
    return before.record(ordinal, outcome, "new message")


@pytest.mark.invariant("S5")
def test_grid_has_every_pair_once() -> None:
    """The grid has every pair of status and action, and the product's table has exactly the legal pairs."""
    pairs = [(RECORDED[cell.status_before], Action[cell.action]) for cell in GRID]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set(product((None, *Status), Action))
    assert set(TRANSITIONS) == {(RECORDED[cell.status_before], Action[cell.action]) for cell in LEGAL}


@pytest.mark.invariant("S5")
@pytest.mark.parametrize("cell", LEGAL, ids=str)
def test_table_equals_grid(cell: Cell) -> None:
    """Each entry of the product's table equals the grid's."""
    transition = transition_for(RECORDED[cell.status_before], Action[cell.action], partition=KEY)
    assert transition.target is RECORDED[cell.status]
    assert transition.takes_authority is (cell.authority == "takes")
    assert transition.message == cell.message
    assert (transition.effect or "-") == cell.effect
    assert (transition.effect is not None) is (cell.attempts == "+1")


@pytest.mark.invariant("S5", "S6", "S8", "S9")
@pytest.mark.parametrize(
    ("cell", "ordinal"),
    [(cell, ordinal) for cell in LEGAL for ordinal in JUDGED_ORDINALS.get(cell.action, (0,))],
    ids=str,
)
def test_action_has_effect_of_grid(cell: Cell, ordinal: int) -> None:
    """An action changes status, authority, count and message as the grid says, or returns the same object."""
    before = view_with_status(cell.status_before)
    after = perform(before, cell.action, ordinal)
    old, new = (before.state.error_message, before.message_ordinal), (f"run-{ordinal}: new message", ordinal)
    newest = old if before.message_ordinal is not None and before.message_ordinal > ordinal else new
    message = {"clear": (None, None), "keep": old, "set": new, "newest": newest}[cell.message]
    assert after.state.recorded_status is RECORDED[cell.status]
    assert authority_columns(after.state) == (
        expected_authority(ordinal) if cell.authority == "takes" else authority_columns(before.state)
    )
    assert f"{after.state.attempt_count - before.state.attempt_count:+}" == cell.attempts
    assert (after.state.error_message, after.message_ordinal) == message
    assert (after.effect or "-") == cell.effect
    unchanged = (cell.status, cell.attempts) == (cell.status_before, "+0")
    assert (after.state is before.state) is unchanged
    assert unchanged or (after.state.key, after.state.updated_at) == (KEY, NOW)


@pytest.mark.invariant("S5")
@pytest.mark.parametrize("cell", [cell for cell in GRID if cell not in LEGAL], ids=str)
def test_illegal_action_is_refused(cell: Cell) -> None:
    """An action that the grid does not allow raises an error with the partition, the action and the status."""
    action, ordinal = Action[cell.action], JUDGED_ORDINALS.get(cell.action, (0,))[0]
    expected = f"^{KEY}: cannot {action.value} while the partition is {cell.status_before}: ."
    with pytest.raises(IllegalTransition, match=expected):
        transition_for(RECORDED[cell.status_before], action, partition=KEY)
    with pytest.raises(IllegalTransition, match=expected):  # an absent partition has no current run
        perform(replace(view_with_status(cell.status_before), current_ordinal=CURRENT), cell.action, ordinal)


@pytest.mark.invariant("S5")
def test_verdict_is_not_a_control_action() -> None:
    """The transitions of verdicts cannot be made by a control action."""
    for cell in GRID:
        if cell.action in JUDGED_ORDINALS:
            with pytest.raises(IllegalTransition):
                apply_control_action(view_with_status(cell.status_before).state, Action[cell.action], now=NOW)


def test_verdict_action_follows_from_ordinals() -> None:
    """The action of a verdict depends only on the two ordinals; without a current run every run is newer."""

    def actions(outcome: Outcome, *, current: int | None) -> list[Action]:
        return [action_for(outcome, ordinal=ordinal, current_ordinal=current) for ordinal in (1, 2, 3)]

    assert actions(Outcome.ACCEPTED, current=2) == [Action.ACCEPT_OLDER, Action.ACCEPT_CURRENT, Action.ACCEPT_NEWER]
    assert actions(Outcome.REJECTED, current=2) == [Action.REJECT_OTHER, Action.REJECT_CURRENT, Action.REJECT_OTHER]
    assert actions(Outcome.ACCEPTED, current=None) == [Action.ACCEPT_NEWER] * 3
    assert actions(Outcome.REJECTED, current=None) == [Action.REJECT_OTHER] * 3


Step = tuple[LedgerView, int, Outcome, LedgerView]  # before, verdict, after


def record_all(*verdicts: tuple[int, Outcome]) -> Iterator[Step]:
    view = NEW
    for ordinal, outcome in verdicts:
        after = view.record(ordinal, outcome, "bad")
        yield view, ordinal, outcome, after
        view = after


ordinals = st.integers(1, 6)
verdict_inputs = st.tuples(ordinals, st.sampled_from(Outcome))
histories = st.lists(verdict_inputs, max_size=25).map(lambda verdicts: tuple(record_all(*verdicts)))


@given(rejected=st.lists(ordinals, min_size=1, unique=True).flatmap(st.permutations))
def test_message_is_of_newest_rejected_run(rejected: list[int]) -> None:
    """In whatever order rejections arrive, the message is the newest run's, and no run is current."""
    *_, (_, _, _, last) = record_all(*((ordinal, Outcome.REJECTED) for ordinal in rejected))
    assert (last.state.error_message, last.message_ordinal) == (f"run-{max(rejected)}: bad", max(rejected))
    assert (authority_columns(last.state), last.current_ordinal) == (expected_authority(None), None)


@pytest.mark.invariant("S10")
@given(steps=histories)
def test_acceptance_never_moves_authority_to_older_run(steps: tuple[Step, ...]) -> None:
    """The current run of a success is only replaced by a newer one."""
    for before, ordinal, outcome, after in steps:
        if before.state.recorded_status is Status.SUCCESS and outcome is Outcome.ACCEPTED:
            assert after.current_ordinal == max(before.current_ordinal or 0, ordinal)
            assert after.state.status is Status.SUCCESS


@pytest.mark.invariant("S9")
@given(steps=histories)
def test_rejecting_another_run_keeps_success(steps: tuple[Step, ...]) -> None:
    """Rejecting a run that is not current changes only the attempt count and the time of a success."""
    for before, ordinal, outcome, after in steps:
        if (
            before.state.status is Status.SUCCESS
            and outcome is Outcome.REJECTED
            and ordinal != before.current_ordinal
        ):
            same = replace(before.state, attempt_count=after.state.attempt_count, updated_at=after.state.updated_at)
            assert after.state == same


@pytest.mark.invariant("S3", "S6")
@given(steps=histories)
def test_every_state_is_consistent(steps: tuple[Step, ...]) -> None:
    """Each verdict counts once; a success has authority and no message, a failure has a message."""
    for number, (_, _, _, after) in enumerate(steps, start=1):
        assert after.state.attempt_count == number
        assert after.state.status is Status.FAILED or None not in authority_columns(after.state)
        assert bool(after.state.error_message) is (after.state.status is Status.FAILED)


@given(steps=histories)
def test_version_and_count_are_of_current_run(steps: tuple[Step, ...]) -> None:
    """Schema version and record count are those registered for the current run, whichever runs were judged since."""
    for _, _, _, after in steps:
        assert authority_columns(after.state) == expected_authority(after.current_ordinal)


times = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - zone added
control_actions = st.sampled_from([action for action in Action if action.name not in JUDGED_ORDINALS])


@pytest.mark.invariant("S19")
@given(events=st.lists(st.tuples(control_actions | verdict_inputs, times), max_size=25))
def test_updated_at_only_grows(events: list[tuple[Action | tuple[int, Outcome], datetime]]) -> None:
    """A change has the clock's time, or a microsecond more than the last change when the clock is not later."""
    view = NEW
    for action, now in events:
        before = view.state
        if isinstance(action, tuple):
            view = view.record(*action, now=now)
        elif (before.recorded_status, action) in TRANSITIONS:
            view = replace(view, state=apply_control_action(before, action, now=now))
        if view.state is not before:
            last = before.updated_at
            assert view.state.updated_at == (now if last is None or last < now else last + timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("outcome", "reason_of", "rows", "size", "digest"),
    list(product(Outcome, (None, "run-1", "run-2"), (None, 0), (None, 0), (None, "0" * 64))),
)
def test_verdict_needs_matching_fields(
    outcome: Outcome, reason_of: str | None, rows: int | None, size: int | None, digest: str | None
) -> None:
    """A rejection needs a reason about its run. An acceptance needs what was read, and has no reason."""
    rejection = outcome is Outcome.REJECTED and reason_of == "run-1"
    acceptance = outcome is Outcome.ACCEPTED and reason_of is None and None not in (rows, size, digest)
    reason = builders.rejection(builders.run(reason_of)).reason if reason_of else None
    read: dict[str, Any] = {"rows_read": rows, "payload_bytes": size, "payload_sha256": digest}
    with nullcontext() if rejection or acceptance else pytest.raises(ValueError, match=f"^{KEY}/run-1: "):
        Verdict(run=builders.run("run-1"), outcome=outcome, reason=reason, **read)


@pytest.mark.parametrize("names", [{"validation_id": "../x"}, {"validation_id": "_"}, {"error_class": "B"}], ids=str)
def test_names_in_verdict_are_validated(names: dict[str, Any]) -> None:
    """The validation_id and error class of a verdict are validated on construction."""
    with pytest.raises(BadName, match=f"^{next(iter(names))}: "):
        builders.rejection(register(1).run, **names)


@pytest.mark.invariant("X2")
def test_rejection_message_is_one_line() -> None:
    """The message of a rejection comes from outside, so it is escaped and cut on construction."""
    message = str(make_verdict(1, Outcome.REJECTED, "\x1b[31mred\r\n\x00" + "x" * 3000).error_message)
    assert message.startswith(r"run-1: \x1b[31mred\r\n\x00xxx")
    assert len(message) == 2000
