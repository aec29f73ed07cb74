"""Queries: completed with days, and checked against the fields of each installed version, without a network."""

from datetime import date

import pytest

from ads_pipeline.google_ads.configuration import installed_versions
from ads_pipeline.google_ads.requests.descriptors import VersionFields
from ads_pipeline.google_ads.requests.gaql import ExpectedColumn, check_query, complete_query
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, read_query_file

FIELDS = VersionFields("v26")
QUERY = "SELECT segments.date, customer.id, metrics.clicks FROM campaign"


def problems(gaql: str, **contract: str) -> list[str]:
    expected = {name: ExpectedColumn(kind=kind, nullable=False) for name, kind in contract.items()}
    return [f"{each.field}: {each.problem}" for each in check_query("q", gaql, FIELDS, expected)]


def test_query_is_completed_with_its_days() -> None:
    """The days are added as a range, and no order is requested."""
    assert complete_query(QUERY, date(2026, 10, 1), date(2026, 10, 31)) == (
        f"{QUERY} WHERE segments.date BETWEEN '2026-10-01' AND '2026-10-31'"
    )


@pytest.mark.parametrize("version", installed_versions())
def test_shipped_queries_fit_each_installed_version(version: str) -> None:
    """The queries of the package have no problem in any version that the client has."""
    apis = read_query_file(DEFAULT_QUERIES_FILE, [])
    assert apis is not None
    for name, query in apis.queries.items():
        assert list(check_query(name, query.gaql, VersionFields(version), {})) == []


@pytest.mark.parametrize(
    ("gaql", "problem"),
    [
        (
            "SELECT metrics.cost_microz FROM campaign",
            "metrics.cost_microz: no such field in v26; did you mean metrics.cost_micros?",
        ),
        ("SELECT metrics.clicks FROM campain", "campain: no such resource in v26; did you mean campaign?"),
        ("SELECT metrics.clicks FROM metrics", "metrics: no such resource in v26"),
        ("SELECT campaign.labels FROM campaign", "campaign.labels: is a list, not one value; reports"),
        ("SELECT asset.image_asset.data FROM asset", "asset.image_asset.data: is a bytes, not one value"),
        ("SELECT campaign.network_settings FROM campaign", "campaign.network_settings: is a message, not one value"),
        ("SELECT segments.date.day FROM campaign", "segments.date.day: no such field in v26"),
    ],
)
def test_mistake_in_a_query_is_named(gaql: str, problem: str) -> None:
    """An unknown field or resource, a list and a message are named, with the nearest name."""
    assert [each for each in problems(gaql) if each.startswith(problem)] != []


def test_type_that_contradicts_the_contract_is_named() -> None:
    """A column whose contract expects another type than the field has is named."""
    gaql = "SELECT segments.date, customer.id, campaign.status, metrics.clicks, metrics.conversions FROM campaign"
    fitting = {
        "date": "date",
        "customer_id": "string",
        "campaign_status": "string",
        "clicks": "long",
        "conversions": "double",
    }
    assert problems(gaql, **fitting) == []
    assert problems(gaql, **fitting | {"clicks": "double", "campaign_status": "long"}) == [
        "campaign.status: is enum, the contract's column is long",
        "metrics.clicks: is integer, the contract's column is double",
    ]


def test_boolean_is_refused_with_the_reason() -> None:
    """A boolean that the contract declares is refused, because the validator would reject each of its days."""
    gaql = (
        "SELECT segments.date, customer.id, segments.new_versus_returning_customers, customer.manager FROM customer"
    )
    assert problems(gaql, customer_manager="string") == [
        "customer.manager: is a boolean, and the validator cannot judge booleans; remove it from the query"
    ]


@pytest.mark.parametrize(
    ("field", "column", "fits"),
    [
        ("segments.week", "week", True),
        ("asset.sitelink_asset.start_date", "asset_sitelink_asset_start_date", False),
        ("experiment.start_date", "experiment_start_date", True),
        ("campaign.start_date_time", "campaign_start_date_time", False),
        ("campaign.name", "campaign_name", False),
    ],
)
def test_text_is_no_date_unless_it_is_named_as_one(field: str, column: str, fits: bool) -> None:
    """A text that is not named as a date, or that is empty when it is not set, does not fit a column of dates."""
    found = problems(f"SELECT {field} FROM campaign", **{column: "date"})
    assert found == ([] if fits else [f"{field}: is text that need not be a date, the contract's column is date"])


def test_reserved_names_are_written_as_in_gaql() -> None:
    """GAQL's ad_group.type is found, though the client calls the attribute type_; the suggestion is GAQL's name."""
    assert problems("SELECT ad_group.type FROM ad_group") == []
    assert problems("SELECT ad_group.typ FROM ad_group") == [
        "ad_group.typ: no such field in v26; did you mean ad_group.type?"
    ]


def test_no_version_but_the_installed_ones() -> None:
    """The installed versions are listed newest first, and contain the one that the package's query file names."""
    versions = installed_versions()
    assert list(versions) == sorted(versions, key=lambda name: -int(name[1:]))
    apis = read_query_file(DEFAULT_QUERIES_FILE, [])
    assert apis is not None
    assert apis.api_version in versions
