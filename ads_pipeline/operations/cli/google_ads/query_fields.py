"""The part of `queries check` and `queries new` that reads the fields of a version of the Google Ads API.

The fields come from the installed client. Nothing is called.
"""

from collections.abc import Iterator
from typing import Final

import typer

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.quoting import printable
from ads_pipeline.google_ads.configuration import install_command, installed_versions
from ads_pipeline.google_ads.requests.descriptors import VersionFields
from ads_pipeline.google_ads.requests.gaql import BOOLEAN_PROBLEM, ExpectedColumn, QueryProblem, check_query, is_date
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import GoogleApis, Query, line_of
from ads_pipeline.validation.contract_registry import Contracts

FOUND: Final = 1


def check_fields(settings: Settings, contracts: Contracts, api_version: str | None) -> None:
    """Print what is wrong with the queries in this version, by default that of the query file, and in the next one.

    Exits with 1 when a query has a problem in the checked version. The next version is only a notice.
    """
    versions = installed_versions()
    if not versions:
        install = install_command()
        typer.echo(f"fields were not checked: the client of Google Ads is not installed; run {install}", err=True)
        return
    version = api_version or settings.google_apis.api_version
    if version not in versions:
        where = "--api-version" if api_version else f"{settings.queries_file}: api_version"
        raise BadCommand(
            f"{where} {printable(version)}: the client has no such version; it has {', '.join(versions)}"
        )
    problems = list(_check(settings, contracts, version))
    for problem in problems:
        typer.echo(_describe(settings, problem))
    if api_version is None:
        _show_next_version(settings, contracts, version, versions)
    if problems:
        raise typer.Exit(FOUND)
    typer.echo(f"the fields of all queries exist in {version} and fit their contracts")


def find_kinds(apis: GoogleApis, name: str, query: Query) -> dict[str, str] | None:
    """The kind of each selected field: integer, number, date, enum or text; None without the client.

    Raises BadCommand with every field that cannot be selected, and for one whose values no contract can judge.
    """
    versions = installed_versions()
    if not versions:
        return None
    if apis.api_version not in versions:
        raise BadCommand(f"the client has no {printable(apis.api_version)}; it has {', '.join(versions)}")
    fields = VersionFields(apis.api_version)
    problems = [f"{each.field}: {each.problem}" for each in check_query(name, query.gaql, fields, {})]
    found = {path: field for path in query.fields if (field := fields.find(path)) is not None}
    problems += [f"{path}: {BOOLEAN_PROBLEM}" for path, field in found.items() if field.kind == "boolean"]
    if problems:
        raise BadCommand(printable(f"--gaql {'; '.join(problems)}"))
    return {path: "date" if is_date(field) else field.kind for path, field in found.items()}


def _show_next_version(settings: Settings, contracts: Contracts, version: str, versions: tuple[str, ...]) -> None:
    newer = [each for each in versions if int(each[1:]) > int(version[1:])]
    if not newer:
        return
    breaking = list(_check(settings, contracts, newer[-1]))
    if not breaking:
        typer.echo(f"an upgrade to {newer[-1]} breaks nothing that can be checked here")
    for problem in breaking:
        typer.echo(f"an upgrade to {newer[-1]} would break: {_describe(settings, problem)}")


def _check(settings: Settings, contracts: Contracts, version: str) -> Iterator[QueryProblem]:
    fields = VersionFields(version)
    for name, query in settings.google_apis.queries.items():
        columns = contracts.rules(name, query.schema_version).columns
        expected = {each.name: ExpectedColumn(kind=each.kind, nullable=each.nullable) for each in columns}
        yield from check_query(name, query.gaql, fields, expected)


def _describe(settings: Settings, problem: QueryProblem) -> str:
    line = line_of(settings.queries_file, "queries", problem.query_name, "gaql")
    return printable(f"{settings.queries_file}:{line} {problem.query_name}: {problem.field}: {problem.problem}")
