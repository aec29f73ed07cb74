"""Flattening: columns in the order of the query, exact numbers, names of enums, None for what is not set."""

import json
from typing import Any

import pytest
from google.ads.googleads.v26.services.types.google_ads_service import GoogleAdsRow
from hypothesis import example, given
from hypothesis import strategies as st

from ads_pipeline.domain.errors import FieldRefused
from ads_pipeline.google_ads.requests.descriptors import VersionFields
from ads_pipeline.google_ads.requests.flattening import Flattener
from ads_pipeline.lake.raw.row_encoding import encode_columns
from ads_pipeline.lake.raw.strict_json import parse_object
from ads_pipeline.settings.query_file import name_column

FIELDS = VersionFields("v26")
SELECTED = (
    "segments.date",
    "customer.id",
    "campaign.id",
    "campaign.status",
    "ad_group.type",
    "campaign.name",
    "metrics.clicks",
    "metrics.conversions",
    "metrics.search_impression_share",
    "ad_group_criterion.keyword.text",
    "customer.test_account",
)


def empty_row() -> Any:
    return GoogleAdsRow.pb(GoogleAdsRow())


def flatten_row(flattener: Flattener, row: Any) -> dict[str, Any]:
    return {name: value for name, (value,) in flattener.flatten([row]).items()}


def test_row_becomes_flat_values_in_query_order() -> None:
    """Columns follow the query; integers stay exact, the customer is text, enums are names."""
    row = empty_row()
    row.segments.date, row.customer.id, row.campaign.id = "2026-10-01", 1234567890, 2**63 - 1
    row.campaign.status, row.ad_group.type_, row.campaign.name = 2, 2, "Été"
    row.metrics.clicks, row.metrics.conversions = 0, 1 / 3
    row.ad_group_criterion.keyword.text, row.customer.test_account = "shoes", False
    values = flatten_row(Flattener(SELECTED, FIELDS), row)
    assert list(values.items()) == [
        ("date", "2026-10-01"),
        ("customer_id", "1234567890"),
        ("campaign_id", 2**63 - 1),
        ("campaign_status", "ENABLED"),
        ("ad_group_type", "SEARCH_STANDARD"),
        ("campaign_name", "Été"),
        ("clicks", 0),
        ("conversions", 1 / 3),
        ("search_impression_share", None),
        ("ad_group_criterion_keyword_text", "shoes"),
        ("customer_test_account", False),
    ]


def test_unset_values_are_none() -> None:
    """A row without values has None in each column, also for enums."""
    assert set(flatten_row(Flattener(SELECTED, FIELDS), empty_row()).values()) == {None}


def test_new_value_of_an_enum_is_unknown_and_counted() -> None:
    """An enum number that the version does not name is UNKNOWN, as Google sends it, and is counted."""
    rows = [empty_row() for _ in range(5)]
    for row, number in zip(rows, (99, 2, 98, 99, 1), strict=True):
        row.campaign.status = number
    flattener = Flattener(("campaign.status",), FIELDS)
    assert flattener.flatten(rows) == {"campaign_status": ["UNKNOWN", "ENABLED", "UNKNOWN", "UNKNOWN", "UNKNOWN"]}
    assert flattener.unknown_values == 3
    assert flattener.flatten(rows[:1]) == {"campaign_status": ["UNKNOWN"]}
    assert flattener.unknown_values == 4


def read_row(row: Any) -> dict[str, Any]:
    """The values of one row, read field by field."""
    values: dict[str, Any] = {}
    for path in SELECTED:
        field = FIELDS.find(path)
        assert field is not None
        message = row
        for name in field.parents:
            message = getattr(message, name)
        value = getattr(message, field.name)
        if field.enum_names is not None:
            value = field.enum_names.get(value, "UNKNOWN") if value else None
        elif field.has_presence and not message.HasField(field.name):
            value = None
        values[name_column(path)] = str(value) if path == "customer.id" and value is not None else value
    return values


INT64 = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
FILLED_ROWS = st.fixed_dictionaries(
    {},
    optional={
        "segments.date": st.text(),
        "customer.id": INT64,
        "campaign.id": INT64,
        "campaign.status": st.integers(-(2**31), 2**31 - 1) | st.integers(0, 5),
        "ad_group.type_": st.integers(0, 40),
        "campaign.name": st.text(),
        "metrics.clicks": INT64 | st.just(0),
        "metrics.conversions": DOUBLES | st.sampled_from([0.0, -0.0]),
        "metrics.search_impression_share": DOUBLES,
        "ad_group_criterion.keyword.text": st.text(alphabet='"\\{}[]%:,\n\u2028\x00\x7f\ufeff№\U0001f600'),
        "customer.test_account": st.booleans(),
    },
)


def fill_row(values: dict[str, Any]) -> Any:
    row = empty_row()
    for path, value in values.items():
        *parents, name = path.split(".")
        message = row
        for parent in parents:
            message = getattr(message, parent)
        setattr(message, name, value)
    return row


@given(st.lists(FILLED_ROWS, max_size=4))
@example([])
@example([{"metrics.clicks": 0, "metrics.conversions": -0.0, "campaign.name": ""}, {}, {"metrics.clicks": 1}])
def test_written_lines_pass_the_strict_parser(filled: list[dict[str, Any]]) -> None:
    """Each line of flattened rows is parsed strictly to the values of its row, as read field by field."""
    rows = [fill_row(values) for values in filled]
    expected = [read_row(row) for row in rows]
    lines = encode_columns(Flattener(SELECTED, FIELDS).flatten(rows))
    assert [parse_object(line) for line in lines] == expected
    assert [line.decode() for line in lines] == [
        json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in expected
    ]


@pytest.mark.parametrize("path", ["metrics.cost_microz", "campaign.labels", "campaign.network_settings"])
def test_field_that_is_not_one_value_is_refused(path: str) -> None:
    """An unknown field, a list and a message cannot be flattened."""
    with pytest.raises(FieldRefused, match=path):
        Flattener((path,), FIELDS)
