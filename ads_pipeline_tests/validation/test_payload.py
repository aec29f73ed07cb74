"""Reading payloads: invalid lines are reported with a reason, and both readers agree."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.payload_rows import (
    MAX_LINE_BYTES,
    PayloadReader,
    count_plain_lines,
    read_line_by_line,
    read_plain_lines,
    read_rows,
)
from ads_pipeline_tests.validation.builders import RULES, make_payload, row, row_without

GOOD = make_payload(row())

INVALID_LINES: dict[str, tuple[bytes, str]] = {
    "two objects on a line": (GOOD.strip() + GOOD, "extra text after"),
    "trailing characters": (GOOD.strip() + b" xyz\n", "extra text after"),
    "an array": (b"[" + GOOD.strip() + b"]\n", "not a JSON object"),
    "a bare null": (b"null\n", "not a JSON object"),
    "a blank line": (GOOD + b"\n" + GOOD, "not JSON"),
    "a key twice": (GOOD.replace(b'"clicks": 7', b'"clicks": 7, "clicks": 8'), "duplicate key"),
    "NaN": (GOOD.replace(b"1.5", b"NaN"), "NaN"),
    "Infinity": (GOOD.replace(b"1.5", b"-Infinity"), "Infinity"),
    "a float too large": (GOOD.replace(b"1.5", b"1e400"), "too large for a float"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
    "not UTF-8": (GOOD.replace(b"Spring", b"Spr\xff"), "not UTF-8"),
    "half a surrogate pair": (GOOD.replace(b"Spring", b"\\ud800"), "half a surrogate"),
    "a NUL": (GOOD.replace(b"Spring", b"a\x00b"), "not JSON"),
    "single quotes": (GOOD.replace(b'"', b"'"), "not JSON"),
    "a carriage return for a line feed": (GOOD.strip() + b"\r" + GOOD, "extra text after"),
    "an object over two lines": (GOOD.replace(b", ", b",\n", 1), "not JSON"),
    "a number beyond 64 bits": (make_payload(row(clicks=1 << 63)), "clicks exceeds 64 bits"),
    "a number of 5,000 digits": (GOOD.replace(b'"clicks": 7', b'"clicks": ' + b"9" * 5000), "too many digits"),
    "a fraction for a count": (make_payload(row(clicks=7.0)), "clicks must be an integer, but is a fraction"),
    "a boolean for a count": (make_payload(row(clicks=True)), "clicks must be an integer, but is a boolean"),
    "a string for a fraction": (
        make_payload(row(conversions="1.5")),
        "conversions must be a number, but is a string",
    ),
    "an integer for a string": (
        make_payload(row(campaign_name=5)),
        "campaign_name must be a string, but is an integer",
    ),
    "an array for a string": (
        make_payload(row(campaign_name=["x"])),
        "campaign_name must be a string, but is an array",
    ),
    "an object for a string": (
        make_payload(row(campaign_name={"x": 1})),
        "campaign_name must be a string, but is an object",
    ),
    "a string that is no number": (make_payload(row(clicks="seven")), "clicks must be an integer, but is a string"),
    "a date that does not exist": (make_payload(row(date="2026-02-30")), "date must be a date as YYYY-MM-DD"),
    "a date in another format": (make_payload(row(date="20260203")), "date must be a date as YYYY-MM-DD"),
    "nested too deep": (GOOD.replace(b'"Spring"', b"[" * 65 + b"]" * 65), "nested deeper"),
    "100,000 opening brackets": (GOOD.replace(b'"Spring"', b"[" * 100_000), "nested deeper"),
    "a line of 20 MB": (make_payload(row(campaign_name="x" * (20 << 20))), f"longer than {MAX_LINE_BYTES} bytes"),
}


@pytest.mark.invariant("V2")
@pytest.mark.parametrize("name", INVALID_LINES)
def test_invalid_line_is_reported_with_number_and_reason(name: str) -> None:
    """An invalid line, alone or among valid ones, is reported by number and reason, and no row is read."""
    invalid, reason = INVALID_LINES[name]
    for before in (b"", GOOD * 3):
        rows = read_rows(before + invalid + GOOD, RULES)
        assert rows.table is None
        assert any(reason in problem.text for problem in rows.problems)
        assert all(sample.line > 0 and not sample.values for problem in rows.problems for sample in problem.samples)
        assert "Spring" not in str(rows.problems)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_final_line_feed_is_optional(end: bytes) -> None:
    """A payload has the same rows with and without a final line feed."""
    rows = read_rows(make_payload(row(1), row(2)).strip() + end, RULES)
    assert rows.table is not None
    assert (rows.line_count, rows.table.num_rows) == (2, 2)


def test_coerced_columns_accept_integers_as_text() -> None:
    """Google's JSON writes 64-bit integers as text. Their values are read; any other text is a problem."""
    rows = read_rows(make_payload(row("9223372036854775807", clicks="-0"), row(2, clicks="12")), RULES)
    assert rows.table is not None
    assert rows.table["campaign_id"].to_pylist() == [9223372036854775807, 2]
    assert rows.table["clicks"].to_pylist() == [0, 12]
    for text in ("1_000", " 1", "1.0", "0x1", "+1", "01", "9223372036854775808", "\u0661"):
        assert read_rows(make_payload(row(clicks=text)), RULES).table is None


def test_unknown_columns_are_listed_and_not_read() -> None:
    """A column that the contract does not declare is listed, and the other columns are read as usual."""
    rows = read_rows(make_payload(row(), row(2, **{"new\ncolumn": {"deep": [1]}, "b": 1})), RULES)
    assert rows.unknown_columns == ("b", "new\\ncolumn")
    assert rows.table is not None
    assert rows.table.column_names == [column.name for column in RULES.columns]


@pytest.mark.invariant("V2")
def test_lone_surrogate_is_reported_with_line_and_field() -> None:
    """Half a surrogate pair in a column that the contract does not declare is reported by line and column."""
    rows = read_rows(GOOD + make_payload(row(2, note={"by": "\ud800"})), RULES)
    (problem,) = rows.problems
    assert (problem.error_class, problem.fields) == ("unreadable_line", ("note",))
    assert str(problem) == "note contains half a surrogate pair in 1 row (line 2)"


def test_equal_problems_are_counted_together() -> None:
    """A thousand lines with the same problem give one problem with a count and the first five line numbers."""
    (problem,) = read_rows(make_payload(*[row(n, clicks=0.5) for n in range(1000)]), RULES).problems
    assert (problem.error_class, problem.fields, problem.rows) == ("wrong_type", ("clicks",), 1000)
    assert [sample.line for sample in problem.samples] == [1, 2, 3, 4, 5]
    assert "in 1000 rows (line 1; line 2; line 3; line 4; line 5; …)" in str(problem)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.integers(-5, 5),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=6),
    st.sampled_from(["2026-02-03", "2026-02-30", "7", "ENABLED", "{", "}", "[x]", "\ud800", "\x00", "a:b"]),
)
changed_rows = st.one_of(
    st.builds(lambda changes: row(**changes), st.dictionaries(st.sampled_from(sorted(row())), scalars, max_size=3)),
    st.sampled_from([row(), row_without("clicks"), row_without("date"), row(extra=1)]),
)
noise = st.sampled_from(
    [b"", b" ", b"{}", b"null", b"}\n{", b"\n", b"\r\n", b'{"clicks":1,\n"clicks":2}', b"1e400", b"]", b"\xff"]
)


def _join_lines(rows: list[Any]) -> bytes:
    return b"\n".join(json.dumps(each).encode("utf-8", "surrogatepass") for each in rows)


@pytest.mark.invariant("V1", "V6")
@settings(max_examples=400)
@given(st.lists(changed_rows, min_size=1, max_size=4), noise, noise, st.booleans())
def test_arrow_reader_agrees_with_line_by_line_reader(
    rows: list[Any], before: bytes, after: bytes, final_line_feed: bool
) -> None:
    """When Arrow reads a payload, lines and rows equal those of the line-by-line reader."""
    data = before + _join_lines(rows) + after + (b"\n" if final_line_feed else b"")
    by_arrow = read_plain_lines(data, RULES, count_plain_lines(data))
    by_line = read_line_by_line(data, RULES)
    if by_arrow is not None:
        assert by_line.problems == ()
        assert by_arrow.equals(by_line.table)
        assert by_line.line_count == by_arrow.num_rows
    assert read_rows(data, RULES).problems == by_line.problems


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 20))
def test_any_bytes_are_read_or_reported(inserted: bytes, position: int, cut: int) -> None:
    """Any bytes inserted into a valid payload give rows or problems, and no exception."""
    whole = make_payload(row(1), row(2))
    data = whole[:position] + inserted + whole[position + cut :]
    rows = read_rows(data, RULES)
    assert (rows.table is None) == bool(rows.problems)


def test_arrow_reads_usual_payloads() -> None:
    """Arrow reads payloads as our own extractor writes them, of both versions of campaign_daily."""
    assert read_plain_lines(make_payload(*(row(n) for n in range(50))), RULES, 50) is not None
    share = row(all_conversions=1.0, search_impression_share=None)
    assert read_plain_lines(make_payload(share), SHIPPED.rules("campaign_daily", "2"), 1) is not None


@settings(max_examples=200)
@given(st.lists(changed_rows, min_size=1, max_size=4), st.lists(st.integers(0, 2000), max_size=4))
def test_blocks_give_the_same_as_the_whole(rows: list[Any], cuts: list[int]) -> None:
    """Wherever a payload is cut into blocks, rows, problems and line numbers are the same."""
    data = _join_lines(rows)
    ends = sorted({*(cut for cut in cuts if cut < len(data)), 0, len(data)})
    reader = PayloadReader(RULES)
    for start, end in pairwise(ends):
        reader.add(data[start:end])
    found, whole = reader.finish(), read_line_by_line(data, RULES)
    assert (found.line_count, found.problems, found.unknown_columns) == (
        whole.line_count,
        whole.problems,
        whole.unknown_columns,
    )
    assert (found.table is None) == (whole.table is None)
    assert found.table is None or found.table.equals(whole.table)
