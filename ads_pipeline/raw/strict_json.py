"""Reads one JSON object and refuses what a lenient parser would guess at.

Python's own parser, like Spark's, accepts NaN, takes the last of two equal keys and reads 1e400 as infinity. A
number that was guessed is a wrong number nobody notices, so here each of these is an error with a reason.
"""

import json
import math
import re
from typing import Any, Final, NoReturn

from ads_pipeline.errors import BadJson

MAX_DEPTH: Final = 64
# Possessive, so that a string of any length is passed in one go and never tried again from its middle.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BLANK = " \t\r\n"
_BRACKETS = re.compile(r"[\[\]{}]")


def parse_object(line: bytes) -> dict[str, Any]:
    """The one object that these bytes spell, or BadJson with the reason."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJson(f"not UTF-8 at byte {error.start + 1}") from None
    if text.startswith("\ufeff"):
        raise BadJson("starts with a byte order mark")
    _check_depth(text)
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(_BLANK)))
    except json.JSONDecodeError as error:
        raise BadJson(f"not JSON at character {error.pos + 1}: {error.msg}") from None
    except BadJson:
        raise
    except (ValueError, RecursionError):
        raise BadJson("holds a number of more digits than can be read") from None
    if text[end:].strip(_BLANK):
        raise BadJson(f"something follows the JSON value at character {end + 1}")
    if not isinstance(value, dict):
        raise BadJson("not a JSON object")
    return value


def _check_depth(text: str) -> None:
    if text.count("{") + text.count("[") <= MAX_DEPTH:  # cannot be deeper than it has openings
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise BadJson(f"nested deeper than {MAX_DEPTH}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise BadJson("a key stands twice in one object")
    return values


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise BadJson("holds a number too large for a float")
    return number


def _no_constant(name: str) -> NoReturn:
    raise BadJson(f"holds {name}, which is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant)
