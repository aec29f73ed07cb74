"""Contracts: each shipped query has one, with the same columns, and the validator supports every check in it."""

import pyspark.sql.types as spark_types
import pytest
from pandera.pyspark import Field

from ads_pipeline.domain.errors import ContractMissing
from ads_pipeline.domain.measures import MEASURED_COLUMNS
from ads_pipeline.settings.environment import read_settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline.validation.contract_models import Row
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.contract_rules import CheckRule, ColumnRule, Rules, decode_rules, encode_rules
from ads_pipeline.validation.rule_reading import read_rules, read_shipped

QUERIES = read_settings({"ADS_PIPELINE_QUERIES": str(DEFAULT_QUERIES_FILE)}).google_apis.queries


@pytest.mark.parametrize("query_name", QUERIES)
def test_shipped_query_selects_the_columns_of_its_contract(query_name: str) -> None:
    """The fields of the query are exactly the columns of the contract."""
    query = QUERIES[query_name]
    columns = {column.name for column in SHIPPED.rules(query_name, query.schema_version).columns}
    assert set(query.columns) == columns


def test_stored_rules_are_those_of_the_models() -> None:
    """`shipped_rules.json` is what the models declare. Else run `python -m ads_pipeline.validation.rule_reading`."""
    assert SHIPPED.declared == read_shipped()


def test_rules_survive_their_json() -> None:
    """Every kind of bound is read back as it was written."""
    bounds = {"ge": -1, "le": 0.5, "isin": ["A", "B"], "matches": r"^[A-Z]\d\Z"}
    rules = Rules(
        schema_version="7",
        columns=(ColumnRule(name="a", kind="long", nullable=True, coerce=False),),
        checks=tuple(
            CheckRule(column="a", comparison=comparison, bound=bound, description=f"must be {bound}")
            for comparison, bound in bounds.items()
        ),
        partition_columns=(("date", "partition_logical_date"),),
        natural_key=("a", "b"),
    )
    assert decode_rules(encode_rules({("made_up", "7"): rules})) == {("made_up", "7"): rules}


@pytest.mark.parametrize(("query_name", "version"), SHIPPED.declared)
def test_every_contract_has_a_natural_key_and_checks_the_partition(query_name: str, version: str) -> None:
    """Each contract checks date and customer against the partition, and its natural key has no nullable column."""
    rules = SHIPPED.rules(query_name, version)
    names = {column.name for column in rules.columns}
    assert {column for column, _value in rules.partition_columns} == {"date", "customer_id"}
    assert rules.natural_key
    assert set(rules.natural_key) <= names
    assert not any(column.nullable for column in rules.columns if column.name in rules.natural_key)


def test_new_schema_version_adds_columns() -> None:
    """The second version of campaign_daily has every column of the first, of the same type, and more."""
    first, second = (
        {column.name: column.kind for column in SHIPPED.rules("campaign_daily", version).columns} for version in "12"
    )
    assert first.items() < second.items()


def test_undeclared_schema_version_is_refused() -> None:
    """The error names the query, the requested version and the declared versions."""
    with pytest.raises(
        ContractMissing, match="campaign_daily: no contract for schema_version '3'; declared are 1, 2"
    ):
        SHIPPED.rules("campaign_daily", "3")
    with pytest.raises(ContractMissing, match="declared are none"):
        SHIPPED.rules("made_up", "1")


def test_unsupported_check_or_column_type_is_refused() -> None:
    """Reading a contract raises TypeError for an unsupported check or column type."""

    class UnsupportedCheck(Row):
        clicks: spark_types.LongType = Field(nullable=False, ne=7)

    with pytest.raises(TypeError, match="does not support check 'not_equal_to'"):
        read_rules(UnsupportedCheck, schema_version="1")

    class UnsupportedType(Row):
        clicks: spark_types.BinaryType = Field(nullable=False)

    with pytest.raises(TypeError, match="does not support this kind of column"):
        read_rules(UnsupportedType, schema_version="1")


@pytest.mark.parametrize("column", [column for column in MEASURED_COLUMNS if "value" not in column])
def test_summed_columns_are_bounded(column: str) -> None:
    """Every shipped contract bounds each column of which the pipeline keeps sums, from below and from above."""
    for (name, version), rules in SHIPPED.declared.items():
        bounds = {check.comparison for check in rules.checks if check.column == column}
        assert bounds == {"ge", "le"}, (name, version)


RESERVED = (
    *("is_current", "run_id", "schema_version", "logical_date", "currency_code", "extracted_at", "Run_ID"),
    *("Customer_Id", "ads_pipeline_run", "partition_logical_date", "partition_customer_id"),
)


@pytest.mark.parametrize("column", RESERVED)
def test_column_of_the_warehouse_is_refused(column: str) -> None:
    """A contract cannot declare a column that every table has or may get, in any case of its letters."""
    model = type("Own", (Row,), {"__annotations__": {column: spark_types.StringType}, column: Field(nullable=True)})
    with pytest.raises(TypeError, match=f"^Own.{column}: the column name {column} is reserved"):
        read_rules(model, schema_version="1")


@pytest.mark.parametrize("column", ["date", "customer_id"])
def test_identity_of_a_row_keeps_its_type(column: str) -> None:
    """A contract cannot declare the date or the customer with another type than `Row`."""
    model = type("Own", (Row,), {"__annotations__": {column: spark_types.LongType}, column: Field(nullable=False)})
    with pytest.raises(TypeError, match=f"^Own.{column}: keep its type as Row declares it"):
        read_rules(model, schema_version="1")
