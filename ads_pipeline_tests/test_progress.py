"""Progress: a bar where there is a terminal, lines where there is none, and nothing where nobody looks."""

import io

from ads_pipeline.progress import silence, telling


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar() -> None:
    """The words, how many of how many, and the time; drawn over, not line after line."""
    terminal = Terminal()
    with telling(terminal)("loading", 30) as done:
        done(10)
        done(20)
    shown = terminal.getvalue()
    assert "loading" in shown
    assert "30/30" in shown
    assert "\x1b[" in shown


def test_anything_else_gets_lines() -> None:
    """One line at the start and one for each advance, without control characters."""
    stream = io.StringIO()
    with telling(stream)("loading", 1500) as done:
        done(1000)
        done(500)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "loading: 1,500 partitions"
    assert [line.rpartition(", ")[0] for line in lines[1:]] == [
        "loading: 1,000 of 1,500 partitions",
        "loading: 1,500 of 1,500 partitions",
    ]
    assert all(line.isprintable() for line in lines)


def test_nobody_needs_to_be_told() -> None:
    """The silent way takes the same words."""
    with silence("loading", 3) as done:
        done(3)
