"""Reading a payload: every hostile line is refused with a reason, and the quick reader is never more lenient."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ads_pipeline.contracts.catalogue import rules_for
from ads_pipeline.validator import payload as reading
from ads_pipeline.validator.payload import MAX_LINE_BYTES, check_seal, read_carefully, read_rows
from ads_pipeline_tests.validator.builders import RULES, payload_of, row, without

GOOD = payload_of(row())

HOSTILE: dict[str, tuple[bytes, str]] = {
    "two objects on a line": (GOOD.strip() + GOOD, "something follows"),
    "trailing junk": (GOOD.strip() + b" xyz\n", "something follows"),
    "an array": (b"[" + GOOD.strip() + b"]\n", "not a JSON object"),
    "a bare null": (b"null\n", "not a JSON object"),
    "a blank line": (GOOD + b"\n" + GOOD, "not JSON"),
    "a key twice": (GOOD.replace(b'"clicks": 7', b'"clicks": 7, "clicks": 8'), "a key stands twice"),
    "NaN": (GOOD.replace(b"1.5", b"NaN"), "NaN"),
    "Infinity": (GOOD.replace(b"1.5", b"-Infinity"), "Infinity"),
    "a float too large": (GOOD.replace(b"1.5", b"1e400"), "too large for a float"),
    "a byte order mark": (b"\xef\xbb\xbf" + GOOD, "byte order mark"),
    "not UTF-8": (GOOD.replace(b"Spring", b"Spr\xff"), "not UTF-8"),
    "half a surrogate pair": (GOOD.replace(b"Spring", b"\\ud800"), "half a surrogate"),
    "a NUL": (GOOD.replace(b"Spring", b"a\x00b"), "not JSON"),
    "single quotes": (GOOD.replace(b'"', b"'"), "not JSON"),
    "a carriage return for a line feed": (GOOD.strip() + b"\r" + GOOD, "something follows"),
    "an object over two lines": (GOOD.replace(b", ", b",\n", 1), "not JSON"),
    "a number beyond 64 bits": (payload_of(row(clicks=1 << 63)), "clicks is beyond 64 bits"),
    "a number of 5,000 digits": (GOOD.replace(b'"clicks": 7', b'"clicks": ' + b"9" * 5000), "more digits"),
    "a fraction for a count": (payload_of(row(clicks=7.0)), "clicks is a fraction where a whole number must be"),
    "true for a count": (payload_of(row(clicks=True)), "clicks is true or false"),
    "a text for a fraction": (payload_of(row(conversions="1.5")), "conversions is a text where a number must be"),
    "a number for a text": (payload_of(row(campaign_name=5)), "campaign_name is a whole number where a text must be"),
    "a list": (payload_of(row(campaign_name=["x"])), "campaign_name is a list"),
    "an object": (payload_of(row(campaign_name={"x": 1})), "campaign_name is an object"),
    "text that is no number": (payload_of(row(clicks="seven")), "clicks is a text"),
    "a day that is not one": (payload_of(row(date="2026-02-30")), "date is a text where a day"),
    "a day in other words": (payload_of(row(date="20260203")), "date is a text where a day"),
    "nested too deep": (GOOD.replace(b'"Spring"', b"[" * 65 + b"]" * 65), "nested deeper"),
    "a bomb of brackets": (GOOD.replace(b'"Spring"', b"[" * 100_000), "nested deeper"),
    "a line of 20 MB": (payload_of(row(campaign_name="x" * (20 << 20))), f"longer than {MAX_LINE_BYTES} bytes"),
}


@pytest.mark.invariant("V2")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_line_is_refused_with_its_place_and_reason(name: str) -> None:
    """Alone or between good lines, the line is refused by number and reason; no part of the payload becomes rows."""
    hostile, reason = HOSTILE[name]
    for before in (b"", GOOD * 3):
        rows = read_rows(before + hostile + GOOD, RULES)
        assert rows.table is None
        assert any(reason in finding.problem for finding in rows.findings)
        assert all(sample.startswith("line ") for finding in rows.findings for sample in finding.samples)
        assert "Spring" not in str(rows.findings)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_the_last_line_may_lack_its_end(end: bytes) -> None:
    """A payload with or without a final line feed has the same rows."""
    rows = read_rows(payload_of(row(1), row(2)).strip() + end, RULES)
    assert rows.table is not None
    assert (rows.lines, rows.table.num_rows) == (2, 2)


def test_whole_numbers_may_be_text_where_the_contract_says_so() -> None:
    """Google's JSON spells 64-bit integers as text; the values are the same, and other texts are refused."""
    rows = read_rows(payload_of(row("9223372036854775807", clicks="-0"), row(2, clicks="12")), RULES)
    assert rows.table is not None
    assert rows.table["campaign_id"].to_pylist() == [9223372036854775807, 2]
    assert rows.table["clicks"].to_pylist() == [0, 12]
    for text in ("1_000", " 1", "1.0", "0x1", "+1", "01", "9223372036854775808", "\u0661"):
        assert read_rows(payload_of(row(clicks=text)), RULES).table is None


def test_unknown_columns_are_noted_and_left_out() -> None:
    """A column nobody asked for is named, and changes nothing else."""
    rows = read_rows(payload_of(row(), row(2, **{"new\ncolumn": {"deep": [1]}, "b": 1})), RULES)
    assert rows.unknown_columns == ("b", "new\\ncolumn")
    assert rows.table is not None
    assert rows.table.column_names == [column.name for column in RULES.columns]


def test_like_faults_are_counted_together() -> None:
    """A thousand bad lines are one finding with a count and the first few places."""
    (finding,) = read_rows(payload_of(*[row(n, clicks=0.5) for n in range(1000)]), RULES).findings
    assert finding.rows == 1000
    assert finding.samples == ("line 1", "line 2", "line 3", "line 4", "line 5")
    assert "in 1000 rows (line 1; line 2; line 3; line 4; line 5; …)" in str(finding)


def test_a_seal_is_held_against_the_bytes() -> None:
    """Another size, or another digest, is damage; what an outside seal leaves out is not."""
    assert check_seal(GOOD, payload_bytes=None, payload_sha256=None) == ()
    for seal in ({"payload_bytes": 3, "payload_sha256": None}, {"payload_bytes": None, "payload_sha256": "0" * 64}):
        (finding,) = check_seal(GOOD, **seal)
        assert finding.error_class == "damaged"


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 64), 1 << 64),
    st.integers(-5, 5),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=6),
    st.sampled_from(["2026-02-03", "2026-02-30", "7", "ENABLED", "{", "}", "[x]", "\ud800", "\x00", "a:b"]),
)
odd_rows = st.one_of(
    st.builds(lambda changes: row(**changes), st.dictionaries(st.sampled_from(sorted(row())), scalars, max_size=3)),
    st.sampled_from([row(), without("clicks"), without("date"), row(extra=1)]),
)
noise = st.sampled_from(
    [b"", b" ", b"{}", b"null", b"}\n{", b"\n", b"\r\n", b'{"clicks":1,\n"clicks":2}', b"1e400", b"]", b"\xff"]
)


def _lines(rows: list[Any]) -> bytes:
    return b"\n".join(json.dumps(each).encode("utf-8", "surrogatepass") for each in rows)


@pytest.mark.invariant("V1", "V6")
@settings(max_examples=400)
@given(st.lists(odd_rows, min_size=1, max_size=4), noise, noise, st.booleans())
def test_the_quick_reader_never_believes_more_than_the_careful_one(
    rows: list[Any], before: bytes, after: bytes, ended: bool
) -> None:
    """Where the quick reader answers at all, its lines and rows are the careful reader's, to the bit."""
    data = before + _lines(rows) + after + (b"\n" if ended else b"")
    quick = reading._read_quickly(data, RULES)
    careful = read_carefully(data, RULES)
    if quick is not None:
        assert careful.findings == ()
        assert quick.table is not None
        assert quick.table.equals(careful.table)
        assert quick.lines == careful.lines == quick.table.num_rows
    assert read_rows(data, RULES).findings == careful.findings


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 20))
def test_no_bytes_are_beyond_reading(junk: bytes, place: int, cut: int) -> None:
    """Whatever bytes are put into a good payload, it is read or refused; nothing else is raised."""
    whole = payload_of(row(1), row(2))
    data = whole[:place] + junk + whole[place + cut :]
    rows = read_rows(data, RULES)
    assert (rows.table is None) == bool(rows.findings)


def test_good_payloads_are_read_quickly() -> None:
    """The quick reader is not a decoration: it reads what our own extractor writes, of every contract."""
    assert reading._read_quickly(payload_of(*(row(n) for n in range(50))), RULES) is not None
    share = row(all_conversions=1.0, search_impression_share=None)
    assert reading._read_quickly(payload_of(share), rules_for("campaign_daily", "2")) is not None
