"""The encoding of rows: columns become the lines that rows would, and the strict parser accepts each of them."""

from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import BadJson
from ads_pipeline.lake.raw.row_encoding import StrictLine, encode_columns, encode_row
from ads_pipeline.lake.raw.strict_json import parse_object


class Level(IntEnum):
    HIGH = 1


# Also what strict JSON cannot express: NaN, infinities and, among the texts, halves of surrogate pairs.
ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(alphabet='"\\{}[]%s:,\n\r\u2028\x00\ufeff')
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT
COLUMNS = st.integers(0, 4).flatmap(
    lambda rows: st.dictionaries(
        ANY_TEXT,
        st.lists(VALUES, min_size=rows, max_size=rows)
        | st.lists(st.floats(allow_nan=False), min_size=rows, max_size=rows),
        min_size=1,
        max_size=5,
    )
)


def try_rows(rows: list[dict[str, Any]]) -> list[StrictLine] | None:
    try:
        return [encode_row(row) for row in rows]
    except BadJson:
        return None


@given(COLUMNS)
@example({"%s": ["%s"], "%": [1], '"': [None]})
@example({"a": [], "b": []})
@example({"a": [1.0, None, 2, True, "x"], "b": [0.1, -0.0, 1e300, 5e-324, 1e22]})
def test_columns_become_the_lines_of_their_rows(columns: dict[str, list[Any]]) -> None:
    """Columns give the same lines as rows that are parsed again, and are refused if a row is."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    expected = try_rows(rows)
    if expected is None:
        with pytest.raises(BadJson):
            encode_columns(columns)
    else:
        lines = encode_columns(columns)
        assert lines == expected
        assert [parse_object(line) for line in lines] == rows
        assert all(line.endswith(b"}\n") and line.count(b"\n") == 1 for line in lines)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="NaN"),
        pytest.param(float("-inf"), id="infinity"),
        pytest.param("\ud800", id="lone surrogate"),
        pytest.param(10**5000, id="5001 digits"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param(Decimal(1), id="decimal"),
        pytest.param(Level.HIGH, id="subclass of int"),
        pytest.param([1], id="list"),
        pytest.param({"a": 1}, id="object"),
    ],
)
@pytest.mark.parametrize("others", [[], [None], [1.5, "text"]])
def test_value_that_columns_cannot_express_is_refused(value: Any, others: list[Any]) -> None:
    """A value that strict JSON cannot express, or that is not a text, number, boolean or None, refuses all rows."""
    with pytest.raises(BadJson):
        encode_columns({"n": range(len(others) + 1), "x": [*others, value]})


def test_refusal_names_the_column() -> None:
    """The error names the column and not the value."""
    with pytest.raises(BadJson, match=r"^conversions contains NaN or infinity, which is not JSON$"):
        encode_columns({"clicks": [1], "conversions": [float("inf")]})
    with pytest.raises(BadJson, match=r"^clicks contains a value of type Decimal$"):
        encode_columns({"clicks": [Decimal(1)], "conversions": [0.5]})
