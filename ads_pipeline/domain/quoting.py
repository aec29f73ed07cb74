"""Text for messages: escaping, bounded quotes, counted nouns, suggested names, the root cause of an error."""

import difflib
import re
from collections.abc import Sequence
from typing import Final

SUGGESTIONS_SHOWN: Final = 5  # known names, listed when none is similar to the given one
# Stack frames, and what Spark appends to a worker's last line.
_FRAMES: Final = ("at ", "... ", "SQLSTATE: ", "Driver stacktrace:")
# gRPC's line for a lost server and Spark's line for a dead Python worker. Both stand in the middle of long messages.
_CAUSE: Final = re.compile(r'^details = "(.+)"$|(Python worker exited unexpectedly.*?)(?: Consider .*)?$')


def printable(text: str, *, limit: int = 2000) -> str:
    """The text on one line without control characters, safe for logs, terminals and both databases.

    Unprintable characters become backslash escapes. Text beyond the limit is cut and ends in an ellipsis.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def count_of(count: int, noun: str) -> str:
    """A number with its noun: '1 run', '2 runs'."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def quoted(value: object, *, limit: int = 80) -> str:
    """The printable `repr` of a value, which shows its type."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of more than 4300 digits
        text = f"a very long {type(value).__name__}"
    return printable(text, limit=limit)


def root_cause(error: BaseException, *, limit: int = 500) -> str:
    """The line of a Spark or gRPC error that names the cause: the innermost exception, or the last line."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_FRAMES)] or [type(error).__name__]
    known = [match[1] or match[2] for line in lines if (match := _CAUSE.search(line))]
    nested = [line for line in lines if line.startswith("Caused by: ") and "Exception: " in line]
    innermost = nested[-1].partition("Exception: ")[2] if nested else lines[-1]
    return printable(known[0] if known else innermost, limit=limit)


def suggest(word: str, known: Sequence[str]) -> str:
    """The most similar known name, or else the first few."""
    similar = difflib.get_close_matches(word, known, n=1)
    if similar:
        return f"did you mean {similar[0]}?"
    more = f" and {len(known) - SUGGESTIONS_SHOWN:,} more" if len(known) > SUGGESTIONS_SHOWN else ""
    return f"known are {', '.join(known[:SUGGESTIONS_SHOWN])}{more}" if known else "none is known"
