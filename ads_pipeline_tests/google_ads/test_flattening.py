"""Flattening: columns in the order of the query, exact numbers, names of enums, None for what is not set."""

from typing import Any

import pytest
from google.ads.googleads.v26.services.types.google_ads_service import GoogleAdsRow

from ads_pipeline.errors import FieldRefused
from ads_pipeline.google_ads.descriptors import VersionFields
from ads_pipeline.google_ads.flattening import Flattener

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


def test_row_becomes_flat_values_in_query_order() -> None:
    """Columns follow the query; integers stay exact, the customer is text, enums are names."""
    row = empty_row()
    row.segments.date, row.customer.id, row.campaign.id = "2026-10-01", 1234567890, 2**63 - 1
    row.campaign.status, row.ad_group.type_, row.campaign.name = 2, 2, "Été"
    row.metrics.clicks, row.metrics.conversions = 0, 1 / 3
    row.ad_group_criterion.keyword.text, row.customer.test_account = "shoes", False
    values = Flattener(SELECTED, FIELDS).flatten(row)
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
    assert set(Flattener(SELECTED, FIELDS).flatten(empty_row()).values()) == {None}


def test_new_value_of_an_enum_is_unknown_and_counted() -> None:
    """An enum number that the version does not name is UNKNOWN, as Google sends it, and is counted."""
    row = empty_row()
    row.campaign.status = 99
    flattener = Flattener(("campaign.status",), FIELDS)
    assert [flattener.flatten(row), flattener.flatten(row)] == [{"campaign_status": "UNKNOWN"}] * 2
    assert flattener.unknown_values == 2


@pytest.mark.parametrize("path", ["metrics.cost_microz", "campaign.labels", "campaign.network_settings"])
def test_field_that_is_not_one_value_is_refused(path: str) -> None:
    """An unknown field, a list and a message cannot be flattened."""
    with pytest.raises(FieldRefused, match=path):
        Flattener((path,), FIELDS)
