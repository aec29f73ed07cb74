"""The strict parser: it accepts only unambiguous JSON objects, and raises only BadJson without the text."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadJson
from ads_pipeline.lake.raw.strict_json import MAX_DEPTH, parse_object

SECRET = "s3cret"
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=6)


def parse_error(line: bytes) -> str:
    with pytest.raises(BadJson) as refused:
        parse_object(line)
    reason = str(refused.value)
    assert reason.isprintable()
    assert SECRET not in reason
    assert len(reason) < 120
    return reason


def nested_object(depth: int, *, inside: bytes = b"") -> bytes:
    """An object with lists nested to this depth, itself counted."""
    return b'{"s3cret":' + b"[" * (depth - 1) + inside + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"   ", id="blank"),
        pytest.param(b"\n", id="line break"),
        pytest.param(b'["s3cret"]', id="array"),
        pytest.param(b'"s3cret"', id="string"),
        pytest.param(b"17", id="number"),
        pytest.param(b"null", id="null"),
        pytest.param(b"s3cret", id="bare word"),
        pytest.param(b'{"s3cret":1}{"s3cret":2}', id="two objects"),
        pytest.param(b'{"s3cret":1} {"s3cret":2}', id="two objects apart"),
        pytest.param(b'{"s3cret":1}\n{"s3cret":2}', id="two lines"),
        pytest.param(b'{"s3cret":1},', id="trailing comma"),
        pytest.param(b'{"s3cret":1} s3cret', id="trailing junk"),
        pytest.param(b'{"s3cret":1} // s3cret', id="trailing comment"),
        pytest.param(b'{"s3cret":1}\x00', id="trailing NUL"),
        pytest.param(b'{"s3cret":1}\xc2\xa0', id="trailing no-break space"),
        pytest.param(b'{"s3cret":1}\x0b', id="trailing vertical tab"),
        pytest.param(b'{"s3cret":1', id="cut off"),
        pytest.param(b'{"s3cret', id="cut off in a string"),
        pytest.param(b'{"s3cret":1,}', id="comma before the end"),
        pytest.param(b'{"a":/* s3cret */1}', id="comment"),
        pytest.param(b"{'s3cret':1}", id="single quotes"),
        pytest.param(b"{s3cret:1}", id="key without quotes"),
        pytest.param(b'{1:"s3cret"}', id="number for a key"),
        pytest.param(b'{"s3cret":True}', id="Python's True"),
        pytest.param(b'{"s3cret":undefined}', id="undefined"),
        pytest.param('{"s3cret":“x”}'.encode(), id="curly quotes"),
    ],
)
def test_only_one_object_is_accepted(line: bytes) -> None:
    """Text that is not JSON, another value than an object, and more than one value are refused."""
    parse_error(line)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"s3cret":1,"s3cret":2}', id="at the top"),
        pytest.param(b'{"s3cret":1,"s3cret":1}', id="of equal values"),
        pytest.param(b'{"s3cret":1,"\\u0073\\u0033cret":2}', id="one escaped"),
        pytest.param(b'{"":1,"":2}', id="empty"),
        pytest.param(b'{"a":{"s3cret":1,"s3cret":2}}', id="in an object"),
        pytest.param(b'{"a":[[{"b":0},{"s3cret":1,"b":0,"s3cret":2}]]}', id="deep in lists"),
    ],
)
def test_duplicate_key_is_refused(line: bytes) -> None:
    """Two equal keys in one object are refused at any depth and in any escaping."""
    assert "duplicate key" in parse_error(line)


def test_same_key_in_several_objects_is_accepted() -> None:
    """Keys are compared within one object, code point by code point."""
    line = '{"a":{"a":[{"a":1},{"a":2}]},"A":3,"é":4,"e\u0301":5}'
    assert parse_object(line.encode()) == {"a": {"a": [{"a": 1}, {"a": 2}]}, "A": 3, "é": 4, "e\u0301": 5}


@pytest.mark.parametrize("depth", [0, 1, 5])
@pytest.mark.parametrize(
    "number",
    [
        *(b"NaN", b"Infinity", b"-Infinity", b"nan", b"inf", b"+1", b".5", b"1.", b"01", b"-", b"1e", b"0x1F"),
        *(b"1_000", b"1e400", b"-1e400", b"1" + b"0" * 400 + b".0", b"9" * 5000, b"-" + b"9" * 5000),
        *(number.encode() for number in ("٣", "１", "1٣", "∞")),  # noqa: RUF001 - digits of other scripts
    ],
    ids=lambda number: str(number[:10], "utf-8", "replace"),
)
def test_ambiguous_number_is_refused(number: bytes, depth: int) -> None:
    """NaN, infinities, numbers beyond float or parser limits, and non-JSON notations are refused."""
    parse_error(b'{"s3cret":' + b"[" * depth + number + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("number", "value"),
    [
        (b"9223372036854775808", 2**63),
        (b"-0", 0),
        (b"1.7976931348623157e308", 1.7976931348623157e308),
        (b"1e-400", 0.0),
        (b"12345678901234567890123456789", 12345678901234567890123456789),
    ],
)
def test_number_keeps_value_and_type(number: bytes, value: float) -> None:
    """A number keeps every digit, and an integer stays an integer."""
    read = parse_object(b'{"n":' + number + b"}")["n"]
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b'{"s3cret":"\xff"}', id="stray byte"),
        pytest.param(b'{"s3cret":"\xc3"}', id="half a character"),
        pytest.param(b'{"s3cret":"\xc0\xaf"}', id="overlong"),
        pytest.param(b'{"s3cret":"\xed\xa0\x80"}', id="surrogate bytes"),
        pytest.param(b'{"s3cret":"\xf4\x90\x80\x80"}', id="beyond Unicode"),
        pytest.param('{"s3cret":1}'.encode("utf-16"), id="UTF-16"),
        pytest.param('{"s3cret":1}'.encode("utf-16-le"), id="UTF-16 without mark"),
        pytest.param('{"s3cret":"é"}'.encode("latin-1"), id="Latin-1"),
        pytest.param(b'\xef\xbb\xbf{"s3cret":1}', id="byte order mark"),
        pytest.param(b'{"s3cret":"\x00"}', id="NUL"),
        pytest.param(b'{"s3cret":"a\tb"}', id="tab in a string"),
        pytest.param(b'{"s3cret":"a\nb"}', id="line break in a string"),
        pytest.param(b'{"s3cret":"\\x41"}', id="escape that JSON lacks"),
        pytest.param(b'{"s3cret":"\\u12"}', id="short escape"),
        pytest.param(b'\x00{"s3cret":1}', id="leading NUL"),
    ],
)
def test_invalid_text_is_refused(line: bytes) -> None:
    """Only UTF-8 without a byte order mark and raw control characters is accepted."""
    parse_error(line)


def test_byte_order_mark_is_named() -> None:
    """The reason names the byte order mark, because editors do not show it."""
    assert "byte order mark" in parse_error(b'\xef\xbb\xbf{"s3cret":1}')


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDFFF", "\\udc00\\ud800", "x\\ud83d"])
@pytest.mark.parametrize("value", ['"{}"', '[1, ["{}"]]', '{{"b": {{"{}": 1}}}}'])
def test_lone_surrogate_is_refused(escape: str, value: str) -> None:
    """No encoder can write half a surrogate pair, so it is refused at any depth. The reason names the field."""
    assert parse_error(f'{{"z": 1, "a": {value.format(escape)}}}'.encode()).startswith("a contains half a surrogate")
    assert parse_error(f'{{"{escape}": 1}}'.encode()).endswith("contains half a surrogate pair")


def test_surrogate_pairs_and_escaped_backslashes_are_accepted() -> None:
    """Two halves in the right order are one character. A backslash that is escaped itself starts no escape."""
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    assert parse_object(rb'{"a": "\\ud800"}') == {"a": r"\ud800"}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
@pytest.mark.parametrize("inside", [b"", b'"s3cret"', b'"]]]]"'])
def test_deep_nesting_is_refused(depth: int, inside: bytes) -> None:
    """Lists and objects nested too deep are refused before the parser runs out of stack, also unclosed ones."""
    objects = b'{"s3cret":' * depth + b"1" + b"}" * depth
    for line in (
        nested_object(depth, inside=inside),
        b"[" * depth,
        b'{"s3cret":' * depth,
        objects,
        b'{"a":[' * depth,
    ):
        assert str(MAX_DEPTH) in parse_error(line)


@pytest.mark.parametrize("inside", [b"", b'"[[[[{{{{"', b'"\\"[{\\\\"'])
def test_maximum_depth_is_accepted(inside: bytes) -> None:
    """Nesting up to the limit is accepted, whatever the strings contain."""
    value = parse_object(nested_object(MAX_DEPTH, inside=inside))["s3cret"]
    for _ in range(MAX_DEPTH - 2):
        (value,) = value
    assert value == ([json.loads(inside)] if inside else [])


@pytest.mark.parametrize("text", ["[" * 1000, '"' + "{[" * 1000, "\\" + "[" * 100, "\n" + "[" * 100, "[]" * 1000])
def test_brackets_in_strings_do_not_count(text: str) -> None:
    """Brackets in strings do not count as depth, also between escaped quotes."""
    assert parse_object(json.dumps({text: text}).encode()) == {text: text}
    flat: list[Any] = [[], {}] * 500
    assert parse_object(json.dumps({"a": flat}).encode()) == {"a": flat}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b'{"a":"' + b'\\"' * 16_000 + b"[" * 65, id="escaped quotes in a string without end"),
        pytest.param(b"[" * 65 + b'"' + b'\\"' * 16_000 + b"\\", id="and a backslash at the end"),
        pytest.param(b"[" * 65 + b'"' + b'\\"' * 16_000 + b"\\\n", id="and a line break in an escape"),
        pytest.param(b'{"a":"' + b"\\" * 16_000 + b"[" * 65, id="backslashes in a string without end"),
        pytest.param(b'{"a":' + b'"' * 16_000 + b"[" * 65, id="quotes"),
        pytest.param(b'{"a":' + b"[]," * 16_000, id="brackets"),
        pytest.param(b'{"a":' + b"9" * 4000 + b"9" * 16_000, id="digits"),
        pytest.param(b"{" + b",".join(b'"%d":1' % n for n in range(2000)) + b',"0":1}', id="keys"),
    ],
)
def test_refusal_takes_linear_time(hostile: bytes) -> None:
    """A refusal takes time in proportion to the line's length."""
    started = time.thread_time()  # unlike wall time, other processes do not lengthen it
    parse_error(hostile)
    assert time.thread_time() - started < 0.5


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
@example({}, None, False)
@example({"": {"": [None, True, -0.0, 1e308, "\u2028\U0001f600\x7f"]}}, None, True)
def test_every_json_object_is_parsed_back(document: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    """Every object that `json.dumps` writes, in any layout, is parsed to an equal object."""
    assert parse_object(json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()) == document


@given(OBJECTS, st.text(alphabet=" \t\r", max_size=5))
def test_surrounding_whitespace_is_accepted(document: dict[str, Any], whitespace: str) -> None:
    """Whitespace around the object is accepted, for example a carriage return."""
    assert parse_object((whitespace + json.dumps(document) + whitespace).encode()) == document


@given(OBJECTS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.binary(max_size=9)), min_size=1))
def test_damaged_line_raises_only_bad_json(document: dict[str, Any], edits: list[tuple[int, int, bytes]]) -> None:
    """A line with bytes removed and inserted is parsed or refused as BadJson."""
    line = json.dumps(document, ensure_ascii=False).encode()
    for start, length, put in edits:
        line = line[:start] + put + line[start + length :]
    with suppress(BadJson):
        assert isinstance(parse_object(line), dict)


@given(st.binary() | st.text(alphabet='{}[]":,\\019eE+-.ntu Inf').map(str.encode))
def test_any_bytes_raise_only_bad_json(line: bytes) -> None:
    """Any bytes, also made of JSON's own characters, are parsed or refused as BadJson."""
    with suppress(BadJson):
        assert isinstance(parse_object(line), dict)
