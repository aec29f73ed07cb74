"""The transition table, held against a second table written by hand, and what must follow from it."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain.transitions import (
    TRANSITIONS,
    Action,
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Status,
    Verdict,
    act_of,
    carry_out,
    move_for,
    rule_on,
)
from ads_pipeline.errors import BadName, IllegalTransition
from ads_pipeline_tests import builders

KEY = builders.key()
NOW = datetime(2026, 2, 4, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(hours=1)
CURRENT = 5  # the ordinal of the run that holds the authority
TOLD_BY = 6  # the ordinal of the run whose rejection an old message tells

# What each act makes of a partition in each recorded state; `-` is refused.
GRID_TEXT = """
    act             absent   pending  failed   success
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
"""
# What those words mean. A success has no message, so to keep it is to have none.
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
    recorded: str
    act: str
    status: str = "refused"
    authority: str = ""
    attempts: str = ""
    message: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.recorded}-{self.act}"


def grid() -> Iterator[Cell]:
    (_, *states), *rows = (line.split() for line in GRID_TEXT.strip().splitlines())
    meanings = {word: rest for word, *rest in map(str.split, MEANINGS_TEXT.strip().splitlines())}
    for act, *words in rows:
        for recorded, word in zip(states, words, strict=True):
            status, *rest = meanings.get(word, ["refused"])
            yield Cell(recorded, act, recorded if status == "same" else status, *rest)


GRID = tuple(grid())
LEGAL = tuple(cell for cell in GRID if cell.status != "refused")
JUDGED: dict[str, tuple[int, ...]] = {  # the ordinals of the runs a verdict may be about, for it to be that act
    "ACCEPT_NEWER": (CURRENT + 1, CURRENT + 9),
    "ACCEPT_CURRENT": (CURRENT,),
    "ACCEPT_OLDER": (1, CURRENT - 1),
    "REJECT_CURRENT": (CURRENT,),
    "REJECT_OTHER": (1, CURRENT - 1, TOLD_BY, TOLD_BY + 1),
}


RECORDED = {"absent": None, "pending": Status.PENDING, "failed": Status.FAILED, "success": Status.SUCCESS}


def registered(ordinal: int) -> RegisteredRun:
    run = builders.run(f"run-{ordinal}")
    return RegisteredRun(run=run, ordinal=ordinal, schema_version=f"v{ordinal}", record_count=ordinal * 100)


def verdict_on(ordinal: int, outcome: Outcome, words: str) -> Verdict:
    if outcome is Outcome.ACCEPTED:
        return Verdict(run=registered(ordinal).run, outcome=outcome, rows_read=ordinal * 100)
    return Verdict(run=registered(ordinal).run, outcome=outcome, error_class="bad_rows", error_message=words)


def authority(state: PartitionState) -> Authority:
    return state.current_run_id, state.schema_version, state.record_count


def authority_of(ordinal: int | None) -> Authority:
    return (None, None, None) if ordinal is None else (f"run-{ordinal}", f"v{ordinal}", ordinal * 100)


@dataclass(frozen=True, slots=True)
class Standing:
    """A partition between two verdicts, with the ordinals that the ledger keeps beside it."""

    state: PartitionState
    current_ordinal: int | None = None
    message_ordinal: int | None = None
    effect: Effect | None = None

    def hear(self, ordinal: int, outcome: Outcome, words: str = "words", *, now: datetime = NOW) -> "Standing":
        verdict, run = verdict_on(ordinal, outcome, words), registered(ordinal)
        beside = {"current_ordinal": self.current_ordinal, "message_ordinal": self.message_ordinal}
        ruling = rule_on(self.state, verdict, registered=run, now=now, **beside)
        current = ordinal if ruling.effect is Effect.PROMOTED else self.current_ordinal
        return Standing(ruling.state, current, ruling.message_ordinal, ruling.effect)


NEW = Standing(PartitionState.absent(KEY))


def standing_as(name: str) -> Standing:
    """A partition recorded so, with a current run and, unless it succeeded, an old message."""
    if name == "absent":
        return NEW
    words, told_by = (None, None) if name == "success" else ("old words", TOLD_BY)
    run_id, version, rows = authority_of(CURRENT)
    state = replace(NEW.state, current_run_id=run_id, schema_version=version, record_count=rows, attempt_count=3)
    return Standing(replace(state, status=Status(name), error_message=words, updated_at=EARLIER), CURRENT, told_by)


def happen(before: Standing, act: str, ordinal: int = CURRENT) -> Standing:
    if act not in JUDGED:
        return replace(before, state=carry_out(before.state, Action[act], now=NOW))
    outcome = Outcome.ACCEPTED if act.startswith("ACCEPT") else Outcome.REJECTED
    return before.hear(ordinal, outcome, "new words")


@pytest.mark.invariant("S5")
def test_the_grid_has_every_cell_once() -> None:
    """No pair of a recorded state and an act goes unexamined, and the product lists the legal ones only."""
    pairs = [(RECORDED[cell.recorded], Action[cell.act]) for cell in GRID]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == set(product((None, *Status), Action))
    assert set(TRANSITIONS) == {(RECORDED[cell.recorded], Action[cell.act]) for cell in LEGAL}


@pytest.mark.invariant("S5")
@pytest.mark.parametrize("cell", LEGAL, ids=str)
def test_the_table_agrees_with_the_grid(cell: Cell) -> None:
    """Each cell of the product's table says what the grid says."""
    move = move_for(RECORDED[cell.recorded], Action[cell.act], partition=KEY)
    assert move.to is RECORDED[cell.status]
    assert move.takes_authority is (cell.authority == "takes")
    assert move.message == cell.message
    assert (move.effect or "-") == cell.effect
    assert (move.effect is not None) is (cell.attempts == "+1")


@pytest.mark.invariant("S5", "S6", "S8", "S9")
@pytest.mark.parametrize(
    ("cell", "ordinal"), [(cell, ordinal) for cell in LEGAL for ordinal in JUDGED.get(cell.act, (0,))], ids=str
)
def test_each_act_does_what_the_grid_says(cell: Cell, ordinal: int) -> None:
    """An act moves status, authority, count and message as its cell says, or hands back the very same value."""
    before = standing_as(cell.recorded)
    after = happen(before, cell.act, ordinal)
    old, new = (before.state.error_message, before.message_ordinal), ("new words", ordinal)
    newest = old if before.message_ordinal is not None and before.message_ordinal > ordinal else new
    message = {"clear": (None, None), "keep": old, "set": new, "newest": newest}[cell.message]
    assert after.state.recorded is RECORDED[cell.status]
    assert authority(after.state) == (authority_of(ordinal) if cell.authority == "takes" else authority(before.state))
    assert f"{after.state.attempt_count - before.state.attempt_count:+}" == cell.attempts
    assert (after.state.error_message, after.message_ordinal) == message
    assert (after.effect or "-") == cell.effect
    unchanged = (cell.status, cell.attempts) == (cell.recorded, "+0")
    assert (after.state is before.state) is unchanged
    assert unchanged or (after.state.key, after.state.updated_at) == (KEY, NOW)


@pytest.mark.invariant("S5")
@pytest.mark.parametrize("cell", [cell for cell in GRID if cell not in LEGAL], ids=str)
def test_every_other_act_is_refused_in_a_sentence(cell: Cell) -> None:
    """What the grid does not allow is refused, with the partition, the act and the state it is in."""
    act, ordinal = Action[cell.act], JUDGED.get(cell.act, (0,))[0]
    said = f"^{KEY}: cannot {act.value} while the partition is {cell.recorded}: ."
    with pytest.raises(IllegalTransition, match=said):
        move_for(RECORDED[cell.recorded], act, partition=KEY)
    with pytest.raises(IllegalTransition, match=said):  # of an absent one, a current run is a contradiction
        happen(replace(standing_as(cell.recorded), current_ordinal=CURRENT), cell.act, ordinal)


@pytest.mark.invariant("S5")
def test_a_verdict_is_no_control_act() -> None:
    """Only a verdict, with its run and its count, makes the moves of a verdict."""
    for cell in GRID:
        if cell.act in JUDGED:
            with pytest.raises(IllegalTransition):
                carry_out(standing_as(cell.recorded).state, Action[cell.act], now=NOW)


def test_a_verdict_is_classed_by_ordinals() -> None:
    """Which act a verdict is depends on the two ordinals alone; without a current run every run is newer."""

    def acts(outcome: Outcome, *, current: int | None) -> list[Action]:
        return [act_of(outcome, ordinal=ordinal, current_ordinal=current) for ordinal in (1, 2, 3)]

    assert acts(Outcome.ACCEPTED, current=2) == [Action.ACCEPT_OLDER, Action.ACCEPT_CURRENT, Action.ACCEPT_NEWER]
    assert acts(Outcome.REJECTED, current=2) == [Action.REJECT_OTHER, Action.REJECT_CURRENT, Action.REJECT_OTHER]
    assert acts(Outcome.ACCEPTED, current=None) == [Action.ACCEPT_NEWER] * 3
    assert acts(Outcome.REJECTED, current=None) == [Action.REJECT_OTHER] * 3


Step = tuple[Standing, int, Outcome, Standing]  # before, what was heard, after


def walk(*heard: tuple[int, Outcome]) -> Iterator[Step]:
    standing = NEW
    for ordinal, outcome in heard:
        after = standing.hear(ordinal, outcome, f"run {ordinal} is bad")
        yield standing, ordinal, outcome, after
        standing = after


ordinals = st.integers(1, 6)
heard_before = st.tuples(ordinals, st.sampled_from(Outcome))
walks = st.lists(heard_before, max_size=25).map(lambda heard: tuple(walk(*heard)))


@given(rejected=st.lists(ordinals, min_size=1, unique=True).flatmap(st.permutations))
def test_the_newest_rejected_run_speaks(rejected: list[int]) -> None:
    """Whichever rejection arrives last, the message is that of the newest run and nothing is current."""
    *_, (_, _, _, last) = walk(*((ordinal, Outcome.REJECTED) for ordinal in rejected))
    assert (last.state.error_message, last.message_ordinal) == (f"run {max(rejected)} is bad", max(rejected))
    assert (authority(last.state), last.current_ordinal) == (authority_of(None), None)


@pytest.mark.invariant("S10")
@given(steps=walks)
def test_an_acceptance_never_takes_a_success_back_to_an_older_run(steps: tuple[Step, ...]) -> None:
    """The current run of a success only ever gives way to a newer one."""
    for before, ordinal, outcome, after in steps:
        if before.state.recorded is Status.SUCCESS and outcome is Outcome.ACCEPTED:
            assert after.current_ordinal == max(before.current_ordinal or 0, ordinal)
            assert after.state.status is Status.SUCCESS


@pytest.mark.invariant("S9")
@given(steps=walks)
def test_rejecting_another_run_leaves_a_success_alone(steps: tuple[Step, ...]) -> None:
    """A rejection of a run that is not current changes nothing of a success but its count and its time."""
    for before, ordinal, outcome, after in steps:
        if (
            before.state.status is Status.SUCCESS
            and outcome is Outcome.REJECTED
            and ordinal != before.current_ordinal
        ):
            same = replace(before.state, attempt_count=after.state.attempt_count, updated_at=after.state.updated_at)
            assert after.state == same


@pytest.mark.invariant("S3", "S6")
@given(steps=walks)
def test_every_state_on_the_way_is_whole(steps: tuple[Step, ...]) -> None:
    """Each verdict counts once; a success has authority and no message, a failure a message."""
    for number, (_, _, _, after) in enumerate(steps, start=1):
        assert after.state.attempt_count == number
        assert after.state.status is Status.FAILED or None not in authority(after.state)
        assert bool(after.state.error_message) is (after.state.status is Status.FAILED)


@given(steps=walks)
def test_version_and_count_are_those_of_the_current_run(steps: tuple[Step, ...]) -> None:
    """What a state says of its rows is what was registered for the run it names, whoever was judged since."""
    for _, _, _, after in steps:
        assert authority(after.state) == authority_of(after.current_ordinal)


moments = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - zone added
control_acts = st.sampled_from([act for act in Action if act.name not in JUDGED])


@pytest.mark.invariant("S19")
@given(happened=st.lists(st.tuples(control_acts | heard_before, moments), max_size=25))
def test_time_moves_forward_with_every_write(happened: list[tuple[Action | tuple[int, Outcome], datetime]]) -> None:
    """A change is dated by the clock, or a microsecond after the last one when the clock is not past that."""
    standing = NEW
    for act, now in happened:
        before = standing.state
        if isinstance(act, tuple):
            standing = standing.hear(*act, now=now)
        elif (before.recorded, act) in TRANSITIONS:
            standing = replace(standing, state=carry_out(before, act, now=now))
        if standing.state is not before:
            last = before.updated_at
            assert standing.state.updated_at == (
                now if last is None or last < now else last + timedelta(microseconds=1)
            )


@pytest.mark.parametrize(
    ("outcome", "kind", "words", "rows"), list(product(Outcome, (None, "bad_rows"), (None, "", "words"), (None, 0)))
)
def test_a_verdict_gives_its_reasons(outcome: Outcome, kind: str | None, words: str | None, rows: int | None) -> None:
    """A rejection has its class and its words, an acceptance its count and neither of these, and else it is none."""
    rejection = outcome is Outcome.REJECTED and kind is not None and bool(words)
    acceptance = outcome is Outcome.ACCEPTED and kind is words is None and rows is not None
    parts: dict[str, Any] = {"error_class": kind, "error_message": words, "rows_read": rows}
    with nullcontext() if rejection or acceptance else pytest.raises(ValueError, match=f"^{KEY}/run-1: "):
        Verdict(run=builders.run("run-1"), outcome=outcome, **parts)


@pytest.mark.parametrize("names", [{"validation_id": "../x"}, {"validation_id": "_"}, {"error_class": "B"}], ids=str)
def test_the_names_in_a_verdict_keep_their_rules(names: dict[str, str]) -> None:
    """A verdict's own names are held to the whitelist when it is made."""
    parts: dict[str, Any] = {"error_class": "bad_rows", "error_message": "words"} | names
    with pytest.raises(BadName, match=f"^{next(iter(names))}: "):
        Verdict(run=registered(1).run, outcome=Outcome.REJECTED, **parts)


@pytest.mark.invariant("X2")
def test_a_rejection_is_told_on_one_line() -> None:
    """The words of a rejection come from outside, so they are escaped and cut before anyone keeps them."""
    message = str(verdict_on(1, Outcome.REJECTED, "\x1b[31mred\r\n\x00" + "x" * 3000).error_message)
    assert message.startswith(r"\x1b[31mred\r\n\x00xxx")
    assert len(message) == 2000
