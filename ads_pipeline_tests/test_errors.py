"""The tree of failures as it is drawn and as it is, and what a failure may let through to a reader."""

import re
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline import errors
from ads_pipeline.errors import (
    ActionIdReused,
    AdsPipelineError,
    BadName,
    BadSettings,
    IllegalTransition,
    LedgerError,
    LedgerOutdated,
    Mistake,
    RawError,
    RunChanged,
    RunDamaged,
    UnknownRun,
    UnsoundAcceptance,
    VerdictConflict,
    VerdictsRefused,
    cause_of,
    printable,
    quoted,
)

KEY = "google_ads/1234567890/campaign_daily/2024-02-29"
RUN = f"{KEY}/20240301T020304567Z-0a1b2c3d"

HOSTILE = {
    "\x00": r"\x00",
    "\r": r"\r",
    "\n": r"\n",
    "\t": r"\t",
    "\x1b[31m": r"\x1b[31m",  # a terminal's colour
    "\x7f": r"\x7f",
    "\x85": r"\x85",  # a line break to some readers
    "\x9b2J": r"\x9b2J",  # the one-byte start of a terminal's command
    "\u2028": r"\u2028",
    "\u2029": r"\u2029",
    "\u202e": r"\u202e",  # turns the rest of the line round
    "\u2066": r"\u2066",
    "\u200b": r"\u200b",
    "\ufeff": r"\ufeff",
    "\ud800": r"\ud800",
    "\U000e0001": r"\U000e0001",
}
outside = st.lists(st.text(st.characters(exclude_categories=())) | st.sampled_from([*HOSTILE])).map("".join)


class Drawn(NamedTuple):
    parent: str
    is_transient: bool


def drawing() -> dict[str, Drawn]:
    """The tree in the module's docstring: each class, what it hangs from, and whether waiting is said to cure it."""
    drawn: dict[str, Drawn] = {}
    above: list[str] = []
    root = re.compile(r" {4}(?P<trunk>)(?P<name>\w+)$")
    branch = re.compile(r" {4}(?P<trunk>(?:│ {3}| {4})*)[├└]── (?P<name>\w+) +\S.*")
    for line in str(errors.__doc__).splitlines():
        found = branch.fullmatch(line) or root.fullmatch(line)
        if found is None:
            assert not re.search("[│├└─]", line), f"not understood: {line}"
            continue
        depth = len(found["trunk"]) // 4 + 1 if "── " in line else 0
        del above[depth:]
        assert found["name"] not in drawn
        drawn[found["name"]] = Drawn(above[-1] if above else "Exception", line.endswith("(waiting cures it)"))
        above.append(found["name"])
    return drawn


def defined() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }


def test_the_drawing_is_the_tree() -> None:
    """Every failure is drawn once, hanging from the class it derives from, and none is drawn that does not exist."""
    actual = {name: kind.__bases__[0].__name__ for name, kind in defined().items()}
    assert {name: drawn.parent for name, drawn in drawing().items()} == actual
    assert len(actual) > 20


def test_the_drawing_says_what_waiting_cures() -> None:
    """A caller may retry exactly the failures that the drawing marks."""
    marked = {name for name, drawn in drawing().items() if drawn.is_transient}
    assert marked == {name for name, kind in defined().items() if kind.is_transient}
    assert marked


def test_every_failure_says_what_it_means() -> None:
    """Each class carries a sentence of its own and is caught by the root."""
    for name, kind in defined().items():
        assert issubclass(kind, AdsPipelineError), name
        assert "__doc__" in vars(kind), name
        assert str(kind.__doc__).endswith("."), name


@pytest.mark.invariant("X2")
@given(text=outside, limit=st.integers(1, 60) | st.just(2000))
def test_printable_text_is_one_bounded_line(text: str, limit: int) -> None:
    """Whatever comes in, what goes out can be printed, stored and sent, on one line, no longer than its limit."""
    shown = printable(text, limit=limit)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= limit
    assert "\x00" not in shown
    assert shown.encode("utf-8").decode("utf-8") == shown


@pytest.mark.invariant("X2")
@given(text=outside, limit=st.integers(1, 60) | st.just(2000))
def test_printable_text_is_left_as_it_is(text: str, limit: int) -> None:
    """Text that needs nothing done to it is not touched, so doing it twice is doing it once."""
    once = printable(text, limit=limit)
    assert printable(once, limit=limit) == once
    if text.isprintable() and len(text) <= limit:
        assert once == text


@pytest.mark.invariant("X2")
@pytest.mark.parametrize(("text", "shown"), HOSTILE.items(), ids=ascii)
def test_what_cannot_be_printed_is_escaped_in_its_place(text: str, shown: str) -> None:
    """A reader sees which character stood there, and the text around it."""
    assert printable(f"ünï {text} 日本") == f"ünï {shown} 日本"


@pytest.mark.invariant("X2")
@pytest.mark.parametrize(("length", "cut"), [(1999, False), (2000, False), (2001, True), (10**6, True)])
def test_long_text_is_cut_where_it_shows(length: int, cut: bool) -> None:
    """Nothing over the limit is kept, and a cut is marked."""
    shown = printable("x" * length)
    assert shown == ("x" * 1999 + "…" if cut else "x" * length)


@pytest.mark.invariant("X2")
@given(
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | outside | st.lists(outside),
    limit=st.integers(1, 100),
)
def test_a_quoted_value_is_one_bounded_line(value: object, limit: int) -> None:
    """A value of any type may stand in a message, escaped and cut like text."""
    shown = quoted(value, limit=limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert len(quoted(value)) <= 80


def test_a_quoted_value_shows_its_type() -> None:
    """The text 1, the number 1 and the bytes 1 are told apart."""
    assert [quoted("1"), quoted(1), quoted(b"1"), quoted(None)] == ["'1'", "1", "b'1'", "None"]


@pytest.mark.invariant("X2")
def test_a_number_of_any_size_can_be_quoted() -> None:
    """A number too long for Python to write in full is still refused under its field's name."""
    assert len(quoted(10**5000)) <= 80
    assert str(BadName("customer_id", -(10**5000), "digits")).startswith("customer_id: ")


@pytest.mark.parametrize(
    ("error", "subject", "next_move"),
    [
        (BadName("customer_id", "1-2", "1 to 20 digits"), "customer_id: '1-2'", "1 to 20 digits"),
        (IllegalTransition(KEY, "pending", "withdraw", "only a success is served"), KEY, "only a success is served"),
        (VerdictConflict(RUN, "accepted", "rejected"), RUN, "judge it again under a validation_id of its own"),
        (RunChanged((RUN,)), RUN, "land a new run"),
        (ActionIdReused("act-7"), "act-7", "give each act an id of its own"),
        (UnknownRun(RUN), RUN, "register what was sealed before judging it"),
        (UnsoundAcceptance(RUN, "3 rows were read"), RUN, "reject it and land a new run"),
        (LedgerOutdated("r0001", "r0002"), "the ledger is at revision r0001", "migrate it"),
        (LedgerOutdated(None, "r0002"), "the ledger is at revision none", "migrate it"),
        (RunDamaged("google_ads/x", "the payload is short"), "google_ads/x", "the payload is short"),
        (BadSettings((Mistake(place="HOME", problem="relative"),)), "the settings hold 1 mistake", "start again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_message_begins_with_its_subject_and_names_the_next_move(
    error: AdsPipelineError, subject: str, next_move: str
) -> None:
    """Whoever reads one line at night learns what it is about and what to do."""
    assert str(error).startswith(subject)
    assert next_move in str(error)
    assert not str(error).endswith((" ", ":", ";"))


def test_a_failure_carries_its_parts() -> None:
    """What a message says in words, code can read as values."""
    name = BadName("source", "X", "a-z")
    assert (name.field, name.value, name.rule) == ("source", "X", "a-z")
    move = IllegalTransition(KEY, "pending", "withdraw", "wait")
    assert (move.partition, move.state, move.act) == (KEY, "pending", "withdraw")
    conflict = VerdictConflict(RUN, "accepted", "rejected")
    assert (conflict.run, conflict.recorded, conflict.offered) == (RUN, "accepted", "rejected")
    outdated = LedgerOutdated(None, "r0002")
    assert (outdated.found, outdated.wanted) == (None, "r0002")
    raw = RawError("google_ads/x", "gone")
    assert (raw.path, raw.problem) == ("google_ads/x", "gone")


@pytest.mark.invariant("X2")
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_a_hostile_value_stays_on_the_line_of_its_failure(text: str) -> None:
    """Neither a refused value nor a strange file name can forge a second line of a log."""
    assert str(BadName("source", text, "a-z")).isprintable()
    assert str(RawError(f"google_ads/{text}", "gone")).isprintable()


def test_all_mistakes_are_listed_each_on_its_line() -> None:
    """One start shows everything there is to mend."""
    mistakes = tuple(Mistake(place=f"file:{line}", problem="odd") for line in (3, 7))
    error = BadSettings(mistakes)
    assert error.mistakes == mistakes
    assert str(error).splitlines()[1:] == ["  file:3: odd", "  file:7: odd"]
    assert "2 mistakes" in str(error).splitlines()[0]


@pytest.mark.parametrize(("count", "more"), [(1, None), (10, None), (11, "  and 1 more"), (500, "  and 490 more")])
def test_many_refusals_are_counted_and_the_first_are_shown(count: int, more: str | None) -> None:
    """The message of a large batch stays readable, and every refusal is still at hand."""
    refusals = tuple[LedgerError, ...](UnknownRun(f"run {number}") for number in range(count))
    error = VerdictsRefused(("recorded", "recorded"), refusals)
    first, *listed = str(error).splitlines()
    assert first == f"2 verdicts are recorded, {count} were refused:"
    assert listed[:10] == [f"  {refusal}" for refusal in refusals[:10]]
    assert listed[10:] == ([more] if more else [])
    assert error.refusals == refusals


PYTHONS = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "judging.py", line 131, in _opinion
    rows = _read(ticket, rules)
           ^^^^^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file or directory: '/x'
 SQLSTATE: 38000
"""
DEAD = """Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, most recent failure: Lost task 0.0
in stage 5.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'x'.
\tat org.apache.spark.api.python.BasePythonRunner.applyOrElse(PythonRunner.scala:1136)
Caused by: java.net.SocketException: Connection reset
\tat java.base/sun.nio.ch.SocketChannelImpl.throwConnectionReset(SocketChannelImpl.java:394)
\t... 21 more

Driver stacktrace:"""
FULL = """Job aborted due to stage failure: Task 0 failed 1 times.
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x.
\tat org.apache.spark.Y.run(Y.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/X.write(X.java:1)"""
GONE = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
\tdebug_error_string = "UNAVAILABLE:failed to connect to all addresses"
>"""


@pytest.mark.parametrize(
    ("story", "line"),
    [
        (PYTHONS, "FileNotFoundError: [Errno 2] No such file or directory: '/x'"),
        (DEAD, "Python worker exited unexpectedly (crashed)."),
        (FULL, "No space left on device"),
        (GONE, "failed to connect to all addresses; last error: Connection refused"),
        ("one line", "one line"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_tells_is_found_in_a_clusters_story(story: str, line: str) -> None:
    """Of what Spark, its Python side and gRPC say of a failure, an operator is shown the line that names it."""
    assert cause_of(RuntimeError(story)) == line
