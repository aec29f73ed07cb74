"""A strict parser for one JSON object.

Python's parser, like Spark's, accepts NaN, keeps the last of two equal keys and reads 1e400 as infinity. Here each of
these is an error, because a wrong number would go unnoticed.
"""

import json
import math
import re
from typing import Any, Final, NoReturn

from ads_pipeline.domain.errors import BadJson

MAX_DEPTH: Final = 64
# Possessive quantifiers prevent backtracking, so a string of any length takes linear time.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_WHITESPACE = " \t\r\n"
_BRACKETS = re.compile(r"[\[\]{}]")


def parse_object(line: bytes) -> dict[str, Any]:
    """The object that these bytes encode, or BadJson with the reason."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadJson("not UTF-8", position=f"byte {error.start + 1}") from None
    if text.startswith("\ufeff"):
        raise BadJson("starts with a byte order mark")
    _check_depth(text)
    try:
        value, end = _DECODER.raw_decode(text, len(text) - len(text.lstrip(_WHITESPACE)))
    except json.JSONDecodeError as error:
        raise BadJson(f"not JSON: {error.msg}", position=f"character {error.pos + 1}") from None
    except BadJson:
        raise
    except (ValueError, RecursionError):
        raise BadJson("contains a number with too many digits") from None
    if text[end:].strip(_WHITESPACE):
        raise BadJson("extra text after the JSON value", position=f"character {end + 1}")
    if not isinstance(value, dict):
        raise BadJson("not a JSON object")
    if _SURROGATE.search(text):  # only an escape can hold half a pair, because the bytes are UTF-8
        _refuse_half_pairs(value)
    return value


def _check_depth(text: str) -> None:
    if text.count("{") + text.count("[") <= MAX_DEPTH:  # no deeper than its number of opening brackets
        return
    depth = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            raise BadJson(f"nested deeper than {MAX_DEPTH}")


def _refuse_half_pairs(document: dict[str, Any]) -> None:
    for name, value in document.items():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise BadJson("contains half a surrogate pair", field=name) from None


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise BadJson("duplicate key in an object")
    return values


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise BadJson("contains a number too large for a float")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise BadJson(f"contains {name}, which is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_refuse_duplicates, parse_float=_parse_finite, parse_constant=_refuse_constant
)
