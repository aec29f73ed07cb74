"""Completes a query with its range of days, and checks queries against the fields of a version of the API.

The descriptors say that a field exists, that it is one value, and of which type. They do not say which fields may be
selected together: Google answers that, see `ads-pipeline queries check --online`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final

from ads_pipeline.google_ads.requests.descriptors import NOT_ONE_VALUE, Field, VersionFields
from ads_pipeline.settings.query_file import name_column

# kind of a contract's column -> kinds of fields whose values it takes. Dates and customers are text in the answer.
_FITTING: Final[Mapping[str, frozenset[str]]] = {
    "long": frozenset({"integer"}),
    "double": frozenset({"number"}),
    "string": frozenset({"text", "enum"}),
    "date": frozenset({"text"}),
}
BOOLEAN_PROBLEM: Final = "is a boolean, and the validator cannot judge booleans; remove it from the query"
_DATE: Final = re.compile(r"segments\.(week|month|quarter)|.*[._](date|day)", re.ASCII)
_CUSTOMER: Final = "customer.id"  # an integer that the extraction writes as text, because it names an account


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedColumn:
    """The type that a contract expects of one column: long, double, string or date, and whether nulls may occur."""

    kind: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryProblem:
    """The reason why a query would fail in a version of the API, or why its contract would refuse the rows."""

    query_name: str
    field: str
    problem: str


def complete_query(gaql: str, since: date, until: date) -> str:
    """The query for a range of days. No order is requested: sorting would cost Google resources and is not needed."""
    return f"{gaql} WHERE segments.date BETWEEN '{since.isoformat()}' AND '{until.isoformat()}'"


def selected_fields(gaql: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in gaql.removeprefix("SELECT ").partition(" FROM ")[0].split(","))


def selected_resource(gaql: str) -> str:
    return gaql.partition(" FROM ")[2].partition(" ")[0]


def check_query(
    name: str, gaql: str, fields: VersionFields, contract: Mapping[str, ExpectedColumn]
) -> Iterator[QueryProblem]:
    """Everything that is wrong with a query in this version. `contract` holds the expected columns by name."""
    resource = selected_resource(gaql)
    if not fields.has_resource(resource):
        hint = _suggest(resource, fields.resources)
        yield QueryProblem(query_name=name, field=resource, problem=f"no such resource in {fields.version}{hint}")
    for path in selected_fields(gaql):
        found = fields.find(path)
        if found is None:
            hint = _suggest(path, fields.names)
            yield QueryProblem(query_name=name, field=path, problem=f"no such field in {fields.version}{hint}")
        elif found.kind in NOT_ONE_VALUE:
            problem = f"is a {found.kind}, not one value; reports of such fields are not supported, so remove it"
            yield QueryProblem(query_name=name, field=path, problem=problem)
        else:
            yield from _check_column(name, found, contract.get(name_column(path)))


def is_date(field: Field) -> bool:
    """True if the field is null or YYYY-MM-DD: a text that is named as a date, and that is null when it is not set.

    A text without presence is empty when it is not set.
    """
    return field.kind == "text" and field.has_presence and _DATE.fullmatch(field.path) is not None


def _check_column(name: str, field: Field, expected: ExpectedColumn | None) -> Iterator[QueryProblem]:
    if expected is None:
        return
    kind = "text" if field.path == _CUSTOMER else field.kind
    if kind == "boolean":
        yield QueryProblem(query_name=name, field=field.path, problem=BOOLEAN_PROBLEM)
    elif expected.kind == "date" and not is_date(field):
        problem = f"is {field.kind} that need not be a date, the contract's column is date"
        yield QueryProblem(query_name=name, field=field.path, problem=problem)
    elif kind not in _FITTING[expected.kind]:
        problem = f"is {field.kind}, the contract's column is {expected.kind}"
        yield QueryProblem(query_name=name, field=field.path, problem=problem)


def _suggest(word: str, known: tuple[str, ...]) -> str:
    similar = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {similar[0]}?" if similar else ""
