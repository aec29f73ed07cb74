"""The exceptions: which are transient, their messages, and the escaping of text from outside."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ads_pipeline.domain import errors
from ads_pipeline.domain.errors import (
    ActionIdReused,
    AdsPipelineError,
    BadName,
    BadSettings,
    IllegalTransition,
    JudgingFailed,
    LedgerOutdated,
    Mistake,
    RawError,
    RunChanged,
    RunDamaged,
    UnknownRun,
    UnsoundAcceptance,
    VerdictConflict,
    VerdictsRefused,
)
from ads_pipeline.domain.quoting import printable, quoted, root_cause

KEY = "google_ads/1234567890/campaign_daily/2024-02-29"
RUN = f"{KEY}/20240301T020304567Z-0a1b2c3d"

HOSTILE = {
    "\x00": r"\x00",
    "\r": r"\r",
    "\n": r"\n",
    "\t": r"\t",
    "\x1b[31m": r"\x1b[31m",  # a terminal colour
    "\x7f": r"\x7f",
    "\x85": r"\x85",  # a line break to some readers
    "\x9b2J": r"\x9b2J",  # the one-byte start of a terminal command
    "\u2028": r"\u2028",
    "\u2029": r"\u2029",
    "\u202e": r"\u202e",  # reverses the direction of the line
    "\u2066": r"\u2066",
    "\u200b": r"\u200b",
    "\ufeff": r"\ufeff",
    "\ud800": r"\ud800",
    "\U000e0001": r"\U000e0001",
}
outside_texts = st.lists(st.text(st.characters(exclude_categories=())) | st.sampled_from([*HOSTILE])).map("".join)


def defined_errors() -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception) and value.__module__ == errors.__name__
    }


def test_exactly_outages_and_races_are_transient() -> None:
    """Only failures of disk, cluster, run, table, report or database, and lost races, may be retried."""
    assert {name for name, kind in defined_errors().items() if kind.is_transient} == {
        *("RawUnavailable", "JudgingFailed", "TableContended", "WarehouseUnavailable"),
        *("StatusFileUnavailable", "ReportNotWritten", "LedgerUnavailable", "EngineRunFailed"),
    }


def test_every_error_has_docstring_and_root() -> None:
    """Each class has its own docstring and derives from AdsPipelineError."""
    for name, kind in defined_errors().items():
        assert issubclass(kind, AdsPipelineError), name
        assert "__doc__" in vars(kind), name
        assert str(kind.__doc__).rstrip().endswith("."), name


@pytest.mark.invariant("X2")
@given(text=outside_texts, limit=st.integers(1, 60) | st.just(2000))
def test_printable_text_is_one_bounded_line(text: str, limit: int) -> None:
    """`printable` returns one printable line, encodable as UTF-8 and no longer than the limit."""
    shown = printable(text, limit=limit)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert len(shown) <= limit
    assert "\x00" not in shown
    assert shown.encode("utf-8").decode("utf-8") == shown


@pytest.mark.invariant("X2")
@given(text=outside_texts, limit=st.integers(1, 60) | st.just(2000))
def test_printable_is_idempotent(text: str, limit: int) -> None:
    """`printable` does not change text that is printable and short enough."""
    once = printable(text, limit=limit)
    assert printable(once, limit=limit) == once
    if text.isprintable() and len(text) <= limit:
        assert once == text


@pytest.mark.invariant("X2")
@pytest.mark.parametrize(("text", "shown"), HOSTILE.items(), ids=ascii)
def test_unprintable_characters_are_escaped(text: str, shown: str) -> None:
    """An unprintable character becomes its escape; the text around it stays."""
    assert printable(f"ünï {text} 日本") == f"ünï {shown} 日本"


@pytest.mark.invariant("X2")
@pytest.mark.parametrize(("length", "cut"), [(1999, False), (2000, False), (2001, True), (10**6, True)])
def test_long_text_is_cut_and_marked(length: int, cut: bool) -> None:
    """Text over the limit is cut to the limit and ends in an ellipsis."""
    shown = printable("x" * length)
    assert shown == ("x" * 1999 + "…" if cut else "x" * length)


@pytest.mark.invariant("X2")
@given(
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary()
    | outside_texts
    | st.lists(outside_texts),
    limit=st.integers(1, 100),
)
def test_a_quoted_value_is_one_bounded_line(value: object, limit: int) -> None:
    """`quoted` escapes and cuts a value of any type."""
    shown = quoted(value, limit=limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert len(quoted(value)) <= 80


def test_quoted_value_shows_its_type() -> None:
    """The text 1, the number 1 and the bytes 1 look different."""
    assert [quoted("1"), quoted(1), quoted(b"1"), quoted(None)] == ["'1'", "1", "b'1'", "None"]


@pytest.mark.invariant("X2")
def test_huge_number_can_be_quoted() -> None:
    """A number with too many digits for `repr` gets a short quote."""
    assert len(quoted(10**5000)) <= 80
    assert str(BadName("customer_id", -(10**5000), "digits")).startswith("customer_id: ")


@pytest.mark.parametrize(
    ("error", "subject", "advice"),
    [
        (BadName("customer_id", "1-2", "1 to 20 digits"), "customer_id: '1-2'", "1 to 20 digits"),
        (IllegalTransition(KEY, "pending", "withdraw", "only a success can be withdrawn"), KEY, "only a success"),
        (VerdictConflict(RUN, "accepted", "rejected"), RUN, "judge the run again under a new validation_id"),
        (RunChanged((RUN,)), RUN, "land a new run"),
        (ActionIdReused("act-7"), "act-7", "give each action its own id"),
        (UnknownRun(RUN), RUN, "register sealed runs before judging them"),
        (UnsoundAcceptance(RUN, "3 rows were read"), RUN, "reject it and land a new run"),
        (LedgerOutdated("r0001", "r0002"), "the ledger is at revision r0001", "migrate it"),
        (LedgerOutdated(None, "r0002"), "There is no ledger in the database yet", "ads-pipeline dev"),
        (RunDamaged("google_ads/x", "the payload is short"), "google_ads/x", "the payload is short"),
        (BadSettings((Mistake(location="HOME", problem="relative"),)), "the settings have 1 mistake", "start again"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_message_names_subject_and_advice(error: AdsPipelineError, subject: str, advice: str) -> None:
    """A message starts with its subject and says what to do."""
    assert str(error).startswith(subject)
    assert advice in str(error)
    assert not str(error).endswith((" ", ":", ";"))


def test_error_carries_its_parts() -> None:
    """The parts of a message are attributes."""
    name = BadName("source", "X", "a-z")
    assert (name.field, name.value, name.rule) == ("source", "X", "a-z")
    transition = IllegalTransition(KEY, "pending", "withdraw", "wait")
    assert (transition.partition, transition.state, transition.action) == (KEY, "pending", "withdraw")
    conflict = VerdictConflict(RUN, "accepted", "rejected")
    assert (conflict.run, conflict.recorded, conflict.offered) == (RUN, "accepted", "rejected")
    outdated = LedgerOutdated(None, "r0002")
    assert (outdated.found, outdated.expected) == (None, "r0002")
    raw = RawError("google_ads/x", "gone")
    assert (raw.path, raw.problem) == ("google_ads/x", "gone")


@pytest.mark.invariant("X2")
@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_value_stays_on_one_line(text: str) -> None:
    """Neither a refused value nor a file name can add a line to a log."""
    assert str(BadName("source", text, "a-z")).isprintable()
    assert str(RawError(f"google_ads/{text}", "gone")).isprintable()


def test_all_mistakes_are_listed() -> None:
    """BadSettings lists every mistake on its own line."""
    mistakes = tuple(Mistake(location=f"file:{line}", problem="odd") for line in (3, 7))
    error = BadSettings(mistakes)
    assert error.mistakes == mistakes
    assert str(error).splitlines()[1:] == ["  file:3: odd", "  file:7: odd"]
    assert "2 mistakes" in str(error).splitlines()[0]


@pytest.mark.parametrize(("count", "more"), [(1, None), (10, None), (11, "  and 1 more"), (500, "  and 490 more")])
def test_message_lists_first_ten_refusals(count: int, more: str | None) -> None:
    """The message lists ten refusals and counts the others; `refusals` holds all."""
    refusals = {number: UnknownRun(f"run {number}") for number in range(count)}
    error = VerdictsRefused(("recorded", "recorded"), refusals)
    first, *listed = str(error).splitlines()
    assert first == f"2 verdicts are recorded, {count} were refused:"
    assert listed[:10] == [f"  {refusal}" for refusal in list(refusals.values())[:10]]
    assert listed[10:] == ([more] if more else [])
    assert error.refusals == refusals


def test_errors_can_be_pickled() -> None:
    """An unpickled error has the class, message and attributes of the original, though constructors differ."""
    for error in (
        BadName("source", "X", "a-z"),
        VerdictsRefused(("recorded",), {RUN: UnknownRun(RUN)}),
        JudgingFailed("x"),
    ):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(error, protocol))
            assert (type(copy), str(copy), repr(vars(copy))) == (type(error), str(error), repr(vars(error)))


PYTHON_ERROR = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "judging.py", line 131, in _opinion
    rows = _read(ticket, rules)
           ^^^^^^^^^^^^^^^^^^^^
FileNotFoundError: [Errno 2] No such file or directory: '/x'
 SQLSTATE: 38000
"""
WORKER_LOST = """
Job aborted due to stage failure: Task 0 in stage 5.0 failed 1 times, most recent failure: Lost task 0.0
in stage 5.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed). Consider setting 'x'.
\tat org.apache.spark.api.python.BasePythonRunner.applyOrElse(PythonRunner.scala:1136)
Caused by: java.net.SocketException: Connection reset
\tat java.base/sun.nio.ch.SocketChannelImpl.throwConnectionReset(SocketChannelImpl.java:394)
\t... 21 more

Driver stacktrace:"""
DISK_FULL = """Job aborted due to stage failure: Task 0 failed 1 times.
Caused by: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/x.
\tat org.apache.spark.Y.run(Y.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/X.write(X.java:1)"""
SERVER_LOST = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: Connection refused"
\tdebug_error_string = "UNAVAILABLE:failed to connect to all addresses"
>"""


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (PYTHON_ERROR, "FileNotFoundError: [Errno 2] No such file or directory: '/x'"),
        (WORKER_LOST, "Python worker exited unexpectedly (crashed)."),
        (DISK_FULL, "No space left on device"),
        (SERVER_LOST, "failed to connect to all addresses; last error: Connection refused"),
        ("one line", "one line"),
        ("", "RuntimeError"),
    ],
)
def test_root_cause_is_found_in_cluster_errors(message: str, line: str) -> None:
    """`root_cause` finds the line that names the cause in errors of Spark, its Python workers and gRPC."""
    assert root_cause(RuntimeError(message)) == line
