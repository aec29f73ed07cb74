"""Progress: a bar on a terminal, lines on other streams."""

import io
import re
import time

import pytest

from ads_pipeline.pipeline.progress import lines_while_waiting, no_progress, progress_on
from ads_pipeline_tests.polling import wait_for


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_terminal_shows_bar() -> None:
    """A terminal shows the step and the count on a bar that is redrawn in place."""
    terminal = Terminal()
    with progress_on(terminal)("loading", 30) as advance:
        advance(10)
        advance(20)
    shown = terminal.getvalue()
    assert "loading" in shown
    assert "30/30" in shown
    assert "\x1b[" in shown


def test_other_stream_gets_lines() -> None:
    """Another stream gets one line at the start and one for each advance, without control characters."""
    stream = io.StringIO()
    with progress_on(stream)("loading", 1500) as advance:
        advance(1000)
        advance(500)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "loading: 1,500 partitions"
    assert [line.rpartition(", ")[0] for line in lines[1:]] == [
        "loading: 1,000 of 1,500 partitions",
        "loading: 1,500 of 1,500 partitions",
    ]
    assert all(line.isprintable() for line in lines)


def test_line_is_written_when_nothing_else_was_for_some_seconds() -> None:
    """News are written as they are. Nothing follows the end of the work."""
    stream = io.StringIO()
    with lines_while_waiting(stream, "Spark works", seconds=0.2) as write:
        write("first: done")
        wait_for(lambda: stream.getvalue().count("Spark works") >= 2, 60)
        write("second: done")
    written = stream.getvalue()
    lines = written.splitlines()
    assert (lines[0], lines[-1]) == ("first: done", "second: done")
    assert all(re.fullmatch(r"  \d+ s: Spark works", line) for line in lines[1:-1])
    time.sleep(0.3)
    assert stream.getvalue() == written


def test_no_progress_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """`no_progress` takes the calls of a reporter, and writes to neither standard output nor standard error."""
    steps = 0
    with no_progress("loading", 3) as advance:
        for steps in (1, 2, 3):
            advance(steps)
    assert steps == 3
    assert capfd.readouterr() == ("", "")
