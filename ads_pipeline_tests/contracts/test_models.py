"""Contracts: one for each query that is asked, complete, and nothing in them that is not evaluated."""

import pyspark.sql.types as spark_types
import pytest
from pandera.pyspark import Field

from ads_pipeline.contracts.catalogue import CONTRACTS, contract_for, rules_for, versions_of
from ads_pipeline.contracts.models import Row
from ads_pipeline.contracts.rules import read_rules
from ads_pipeline.errors import ContractMissing
from ads_pipeline.settings import read_settings

SHIPPED = read_settings({}).google_apis.queries


def column_of(field: str) -> str:
    """The column in which a GAQL field arrives."""
    return field.removeprefix("segments.").removeprefix("metrics.").replace(".", "_")


@pytest.mark.parametrize("query_name", SHIPPED)
def test_a_shipped_query_selects_what_its_contract_demands(query_name: str) -> None:
    """The fields of the query are the columns of the contract, no more and no fewer."""
    query = SHIPPED[query_name]
    fields = query.gaql.removeprefix("SELECT ").partition(" FROM ")[0].split(", ")
    columns = {column.name for column in rules_for(query_name, query.schema_version).columns}
    assert {column_of(field) for field in fields} == columns


@pytest.mark.parametrize(("query_name", "version"), CONTRACTS)
def test_every_contract_can_be_evaluated(query_name: str, version: str) -> None:
    """Each contract holds its rows to their partition and has a natural key among its columns."""
    rules = rules_for(query_name, version)
    names = {column.name for column in rules.columns}
    assert {column for column, _own in rules.of_partition} == {"date", "customer_id"}
    assert rules.natural_key
    assert set(rules.natural_key) <= names
    assert not any(column.nullable for column in rules.columns if column.name in rules.natural_key)


def test_a_new_version_adds_columns() -> None:
    """The second version of campaign_daily has every column of the first, of the same type, and more."""
    first, second = (
        {column.name: column.kind for column in rules_for("campaign_daily", version).columns} for version in "12"
    )
    assert first.items() < second.items()


def test_an_undeclared_version_is_refused_with_those_that_are() -> None:
    """The error names the query, the version asked for and the declared ones."""
    assert versions_of("campaign_daily") == ("1", "2")
    with pytest.raises(
        ContractMissing, match="campaign_daily: no contract for schema_version '3'; declared are 1, 2"
    ):
        contract_for("campaign_daily", "3")
    with pytest.raises(ContractMissing, match="declared are none"):
        contract_for("made_up", "1")


def test_a_check_the_validator_cannot_evaluate_is_refused() -> None:
    """A contract with an unknown check, or a column of an unknown kind, is an error when read, not a silent pass."""

    class Unknown(Row):
        clicks: spark_types.LongType = Field(nullable=False, ne=7)

    with pytest.raises(TypeError, match="no check 'not_equal_to'"):
        read_rules(Unknown, schema_version="1")

    class Odd(Row):
        clicks: spark_types.BinaryType = Field(nullable=False)

    with pytest.raises(TypeError, match="cannot evaluate this kind of column"):
        read_rules(Odd, schema_version="1")
