"""`queries new`, `queries check` and the validator agree on every field of the API."""

from datetime import date
from importlib import import_module
from typing import Any, Final

import pytest

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.warehouse_names import find_column_problem
from ads_pipeline.google_ads.configuration import installed_versions
from ads_pipeline.google_ads.requests.descriptors import NOT_ONE_VALUE, Field, VersionFields
from ads_pipeline.google_ads.requests.flattening import Flattener
from ads_pipeline.google_ads.requests.gaql import ExpectedColumn, check_query, is_date
from ads_pipeline.lake.raw.row_encoding import encode_columns
from ads_pipeline.settings.query_file import name_column
from ads_pipeline.validation.contract_rules import Rules
from ads_pipeline.validation.first_contract import HEADER, write_contract
from ads_pipeline.validation.payload_rows import read_rows
from ads_pipeline.validation.rule_reading import read_rules

NEWEST: Final = VersionFields(installed_versions()[0])
IDENTITY: Final = ("segments.date", "customer.id")
DAY: Final = date(2026, 1, 5).isoformat()
FIELDS_IN_A_QUERY: Final = 250
SET: Final[dict[str, Any]] = {"integer": 2**53 + 1, "number": 0.5, "enum": 2, "date": DAY, "text": 'a "text" № {1}'}


def kind_of(field: Field) -> str:
    return "date" if is_date(field) else field.kind


def fields_of_contracts() -> list[str]:
    """One field for each column that a contract can declare."""
    by_column = {
        name_column(name): name
        for name in NEWEST.names
        if name not in IDENTITY
        and (found := NEWEST.find(name)) is not None
        and found.kind not in {"boolean", *NOT_ONE_VALUE}
    }
    return sorted(name for column, name in by_column.items() if find_column_problem(column) is None)


def read_first_contract(fields: list[str]) -> Rules:
    """The rules of the contract that `queries new` writes for these fields."""
    kinds = {name: kind_of(found) for name in fields if (found := NEWEST.find(name)) is not None}
    text = HEADER + write_contract("q", "1", fields, [name_column(each) for each in fields], kinds)
    module: dict[str, Any] = {}
    exec(text, module)
    return read_rules(module["CONTRACTS"]["q", "1"], schema_version="1")


def make_payload(fields: list[str]) -> bytes:
    """A row in which every field is set, and one in which none is, as the extraction writes them."""
    types = import_module(f"google.ads.googleads.{NEWEST.version}.services.types.google_ads_service")
    rows = [types.GoogleAdsRow.pb(types.GoogleAdsRow()) for _ in range(2)]
    for row in rows:
        row.segments.date, row.customer.id = DAY, 7
    for name in fields:
        found = NEWEST.find(name)
        assert found is not None
        message = rows[0]
        for parent in found.parents:
            message = getattr(message, parent)
        is_small = found.kind == "integer" and not _takes(message, found.name, SET["integer"])
        setattr(message, found.name, 5 if is_small else SET[kind_of(found)])
    columns = Flattener([*IDENTITY, *fields], NEWEST).flatten(rows)
    return b"".join(encode_columns(columns))


def _takes(message: Any, name: str, value: int) -> bool:
    try:
        setattr(message, name, value)
    except ValueError:  # a field of 32 bits
        return False
    return True


@pytest.mark.invariant("L4")
def test_every_field_of_a_first_contract_passes_check_and_validator() -> None:
    """For every field of the newest version, the written types pass `queries check`, and the validator reads them."""
    fields = fields_of_contracts()
    assert len(fields) > 5_000
    for batch in split_batches(fields, FIELDS_IN_A_QUERY):
        rules = read_first_contract([*IDENTITY, *batch])
        expected = {each.name: ExpectedColumn(kind=each.kind, nullable=each.nullable) for each in rules.columns}
        gaql = f"SELECT {', '.join([*IDENTITY, *batch])} FROM campaign"
        assert list(check_query("q", gaql, NEWEST, expected)) == []
        rows = read_rows(make_payload(batch), rules)
        assert [str(each) for each in rows.problems] == []
        assert (rows.line_count, rows.unknown_columns) == (2, ())


def test_what_the_validator_refuses_the_check_refuses() -> None:
    """A field whose values the validator cannot read as the contract's kind is a problem of `queries check`."""
    examples = {"integer": "metrics.clicks", "number": "metrics.ctr", "enum": "campaign.status"}
    examples |= {"text": "campaign.name", "date": "segments.week", "boolean": "customer.manager"}
    for field in examples.values():
        for kind in ("long", "double", "string", "date"):
            contract = {name_column(field): ExpectedColumn(kind=kind, nullable=True)}
            problems = list(check_query("q", f"SELECT {field} FROM customer", NEWEST, contract))
            if not problems:
                assert _is_read(field, kind), (field, kind)


def _is_read(field: str, kind: str) -> bool:
    types = {"long": "LongType", "double": "DoubleType", "string": "StringType", "date": "DateType"}
    text = f"{HEADER}class Q(Row):\n    {name_column(field)}: st.{types[kind]} = Field(nullable=True)\n"
    module: dict[str, Any] = {}
    exec(text, module)
    return read_rows(make_payload([field]), read_rules(module["Q"], schema_version="1")).table is not None
