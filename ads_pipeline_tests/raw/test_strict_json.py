"""Holds the strict reader to its two promises: it guesses nothing, and it fails only as BadJson without the text."""

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.errors import BadJson
from ads_pipeline.raw.strict_json import MAX_DEPTH, parse_object

SECRET = "s3cret"
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=6)


def refusal(line: bytes) -> str:
    with pytest.raises(BadJson) as refused:
        parse_object(line)
    reason = str(refused.value)
    assert reason.isprintable()
    assert SECRET not in reason
    assert len(reason) < 120
    return reason


def nested(depth: int, *, inside: bytes = b"") -> bytes:
    """An object of this depth, itself counted, whose value is lists."""
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
def test_what_is_not_one_object_is_refused(line: bytes) -> None:
    """A line that is no JSON, another value than an object, or more than one value is refused."""
    refusal(line)


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
def test_a_key_that_stands_twice_is_refused(line: bytes) -> None:
    """Two equal keys in one object, at any depth and however spelled, are refused: no last one wins."""
    assert "twice" in refusal(line)


def test_a_key_may_stand_in_several_objects() -> None:
    """Keys are compared within one object, byte for byte: neither depth, case nor composition makes two equal."""
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
def test_a_number_that_would_be_guessed_is_refused(number: bytes, depth: int) -> None:
    """Not-a-numbers, numbers that no float or parser can hold, and spellings that JSON lacks are refused."""
    refusal(b'{"s3cret":' + b"[" * depth + number + b"]" * depth + b"}")


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
def test_a_number_keeps_its_value(number: bytes, value: float) -> None:
    """A whole number is read to its last digit and stays whole, whatever a column may later say of it."""
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
def test_bytes_that_are_not_strict_text_are_refused(line: bytes) -> None:
    """Only UTF-8 without a byte order mark or raw control characters is text."""
    refusal(line)


def test_a_byte_order_mark_is_named() -> None:
    """The mark cannot be seen in an editor, so the reason says that it is there."""
    assert "byte order mark" in refusal(b'\xef\xbb\xbf{"s3cret":1}')


@pytest.mark.parametrize("escape", ["\\ud800", "\\udfff", "\\udc00\\ud800"])
def test_a_lone_surrogate_is_read_as_python_reads_it(escape: str) -> None:
    """An escape of half a character is grammatical JSON: it is handed on, and whoever encodes it must refuse it."""
    text = parse_object(f'{{"a":"{escape}"}}'.encode())["a"]
    assert text == escape.encode().decode("unicode_escape")
    with pytest.raises(UnicodeEncodeError):
        text.encode("utf-8")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 1000, 100_000])
@pytest.mark.parametrize("inside", [b"", b'"s3cret"', b'"]]]]"'])
def test_a_line_nested_too_deep_is_refused(depth: int, inside: bytes) -> None:
    """Depth is bounded before the parser could run out of stack, closed or not, by lists and by objects."""
    objects = b'{"s3cret":' * depth + b"1" + b"}" * depth
    for line in (nested(depth, inside=inside), b"[" * depth, b'{"s3cret":' * depth, objects, b'{"a":[' * depth):
        assert str(MAX_DEPTH) in refusal(line)


@pytest.mark.parametrize("inside", [b"", b'"[[[[{{{{"', b'"\\"[{\\\\"'])
def test_a_line_of_the_largest_depth_is_read(inside: bytes) -> None:
    """Nesting up to the bound is read, whatever its strings hold."""
    value = parse_object(nested(MAX_DEPTH, inside=inside))["s3cret"]
    for _ in range(MAX_DEPTH - 2):
        (value,) = value
    assert value == ([json.loads(inside)] if inside else [])


@pytest.mark.parametrize("text", ["[" * 1000, '"' + "{[" * 1000, "\\" + "[" * 100, "\n" + "[" * 100, "[]" * 1000])
def test_brackets_in_strings_do_not_count(text: str) -> None:
    """Depth is the depth of values: a text may hold any number of brackets, also between escaped quotes."""
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
def test_no_short_line_takes_long(hostile: bytes) -> None:
    """A refusal takes time in proportion to the line: kilobytes are no matter of seconds."""
    started = time.perf_counter()
    refusal(hostile)
    assert time.perf_counter() - started < 0.5


@given(OBJECTS, st.sampled_from([None, 1]), st.booleans())
@example({}, None, False)
@example({"": {"": [None, True, -0.0, 1e308, "\u2028\U0001f600\x7f"]}}, None, True)
def test_every_json_object_reads_back(document: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    """What a standard writer writes of any object, escaped or not, on one line or on many, reads back as it was."""
    assert parse_object(json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode()) == document


@given(OBJECTS, st.text(alphabet=" \t\r", max_size=5))
def test_white_space_around_the_object_is_fine(document: dict[str, Any], space: str) -> None:
    """White space before and after the object is part of JSON, such as the carriage return of a Windows line."""
    assert parse_object((space + json.dumps(document) + space).encode()) == document


@given(OBJECTS, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 9), st.binary(max_size=9)), min_size=1))
def test_no_damage_escapes_the_tree(document: dict[str, Any], edits: list[tuple[int, int, bytes]]) -> None:
    """Whatever bytes are cut out of a line and put into it, it is read as an object or refused as BadJson."""
    line = json.dumps(document, ensure_ascii=False).encode()
    for start, length, put in edits:
        line = line[:start] + put + line[start + length :]
    with suppress(BadJson):
        assert isinstance(parse_object(line), dict)


@given(st.binary() | st.text(alphabet='{}[]":,\\019eE+-.ntu Inf').map(str.encode))
def test_no_bytes_at_all_escape_the_tree(line: bytes) -> None:
    """Any bytes, also such as consist of JSON's own signs, are read as an object or refused as BadJson."""
    with suppress(BadJson):
        assert isinstance(parse_object(line), dict)
