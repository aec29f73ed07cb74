"""Writes the Python text of a first contract for a query.

The types are those of the fields. Without the client of Google Ads they are guessed from the names, which are regular
enough for the common fields. Bounds, missing values and the natural key are always guessed. A person checks the
result before days are judged by it.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

HEADER: Final = '''"""The contracts of this deployment's own queries.

Never edit one that has judged runs: declare another schema version beside it.
"""

import pyspark.sql.types as st
from pandera.pyspark import Field

from ads_pipeline.api import ENUM, Row

CONTRACTS = {}
'''
_LONG = "st.LongType = Field(nullable=False, ge=0, coerce=True)"
_ID = "st.LongType = Field(nullable=False, ge=1, coerce=True)"
_ENUM = "st.StringType = Field(nullable=False, str_matches=ENUM)"
_TEXT = "st.StringType = Field(nullable=False)"
# Kind of the field's values, pattern of its name, declaration. The first that matches counts. What is neither an id,
# a segment nor a common count may be missing: Google leaves out what is not set.
TYPED_DECLARATIONS: Final[Sequence[tuple[str, str, str]]] = (
    ("integer", r".*[._]id", _ID),
    (
        "integer",
        r"metrics\.(impressions|clicks|cost_micros|interactions|engagements|video_views|invalid_clicks)",
        _LONG,
    ),
    ("integer", r"segments\.(hour|year)", _LONG),
    ("integer", r".*", "st.LongType = Field(nullable=True, coerce=True)"),
    ("number", r"metrics\.\w*(share|rate|ctr)", "st.DoubleType = Field(nullable=True, ge=0)"),
    ("number", r"metrics\.\w*value\w*", "st.DoubleType = Field(nullable=False)"),
    ("number", r".*", "st.DoubleType = Field(nullable=True)"),
    ("date", r"segments\..*", "st.DateType = Field(nullable=False)"),
    ("date", r".*", "st.DateType = Field(nullable=True)"),
    ("enum", r"segments\..*", _ENUM),
    ("enum", r".*", "st.StringType = Field(nullable=True, str_matches=ENUM)"),
    ("text", r".*", "st.StringType = Field(nullable=True)"),
)
# The same by the name alone.
DECLARATIONS: Final[Sequence[tuple[str, str]]] = (
    (r".*\.id|.*_id", _ID),
    (r"metrics\.(impressions|clicks|cost_micros|interactions|engagements|video_views|invalid_clicks)", _LONG),
    (r"metrics\.\w*(share|rate|ctr)", "st.DoubleType = Field(nullable=True, ge=0)"),
    (r"metrics\.\w*value\w*", "st.DoubleType = Field(nullable=False)"),
    (r"metrics\.\w*", "st.DoubleType = Field(nullable=True)"),
    (r"segments\.(week|month|quarter|\w*date)", "st.DateType = Field(nullable=False)"),
    (r"segments\.(hour|year)", _LONG),
    (r".*(status|type|device|day_of_week|reason|category|channel_sub_type)", _ENUM),
    (r".*", _TEXT),
)
_FROM_ROW = ("segments.date", "customer.id")


def write_contract(
    query_name: str,
    schema_version: str,
    fields: Sequence[str],
    columns: Sequence[str],
    kinds: Mapping[str, str] | None = None,
) -> str:
    """A class with one column per field, and its entry in CONTRACTS.

    `kinds` has the kind of each field: integer, number, date, enum or text.
    """
    name = "".join(part.capitalize() for part in re.split(r"[^0-9A-Za-z]+", f"{query_name}_v{schema_version}"))
    own = [(field, column) for field, column in zip(fields, columns, strict=True) if field not in _FROM_ROW]
    key = [column for field, column in own if _identifies_row(field)] or ["customer_id"]
    lines = [f"    {column}: {_declare(field, kinds)}" for field, column in own]
    unique = ", ".join(f'"{column}"' for column in key)
    return "\n".join(
        [
            "",
            "",
            f"class {name}(Row):",
            *lines,
            "",
            "    class Config:",
            f"        unique = [{unique}]  # no two rows of a day may agree in all of these",
            "",
            "",
            f'CONTRACTS["{query_name}", "{schema_version}"] = {name}',
            "",
        ]
    )


def _declare(field: str, kinds: Mapping[str, str] | None) -> str:
    if kinds is not None:
        given = kinds[field]
        return next(text for kind, name, text in TYPED_DECLARATIONS if kind == given and re.fullmatch(name, field))
    return next(declaration for pattern, declaration in DECLARATIONS if re.fullmatch(pattern, field))


def _identifies_row(field: str) -> bool:
    """True if rows of one day may differ in this field alone: ids, and every segment."""
    return field.startswith("segments.") or re.fullmatch(r".*\.id|.*\.criterion_id", field) is not None
