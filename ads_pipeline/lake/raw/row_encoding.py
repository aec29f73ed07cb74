"""Encodes rows as the lines of a payload. `strict_json` accepts every line that is made here."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from json.encoder import encode_basestring
from math import isfinite
from typing import Any, Final, NewType, cast

from ads_pipeline.domain.errors import BadJson
from ads_pipeline.lake.raw.strict_json import parse_object

StrictLine = NewType("StrictLine", bytes)  # one JSON object and a line break, made by a function of this module

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # json.dumps makes one for each row

# A value of another type is refused, also one of a subclass.
_ENCODERS: Final[Mapping[type, Callable[[Any], str]]] = {
    str: encode_basestring,
    int: int.__repr__,
    float: float.__repr__,
    bool: lambda value: "true" if value else "false",
    type(None): lambda _value: "null",
}


def encode_row(row: Mapping[str, Any]) -> StrictLine:
    """The line of a row of any values. BadJson when strict JSON cannot express it."""
    try:
        line = _encode(row if type(row) is dict else dict(row)).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadJson(type(error).__name__) from error
    parse_object(line)  # refuse what the strict parser would refuse later
    return StrictLine(line + b"\n")


def encode_columns(columns: Mapping[str, Sequence[Any]]) -> list[StrictLine]:
    """The lines of rows whose values are texts, numbers, booleans and None, without parsing them again.

    The columns have one value for each row. BadJson when strict JSON cannot express a value.
    """
    names = (encode_basestring(name).replace("%", "%%") for name in columns)
    template = "{" + ",".join(f"{name}:%s" for name in names) + "}\n"
    rows = zip(*(_encode_column(name, values) for name, values in columns.items()), strict=True)
    try:
        return cast("list[StrictLine]", list(map(str.encode, map(template.__mod__, rows))))
    except ValueError as error:  # half a surrogate pair, or an integer with too many digits
        raise BadJson(type(error).__name__) from error


def _encode_column(name: str, values: Sequence[Any]) -> Iterable[str]:
    types = set(map(type, values))
    if unknown := types - _ENCODERS.keys():
        raise BadJson(f"contains a value of type {unknown.pop().__name__}", field=name)
    if float in types and not all(map(isfinite, [value for value in values if type(value) is float])):
        raise BadJson("contains NaN or infinity, which is not JSON", field=name)
    if len(types) == 1:
        return map(_ENCODERS[types.pop()], values)
    return (_ENCODERS[type(value)](value) for value in values)
