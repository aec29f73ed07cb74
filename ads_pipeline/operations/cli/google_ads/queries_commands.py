"""The `queries` commands: check the queries, and add one with a first contract."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from textwrap import indent
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.partition import validate_name
from ads_pipeline.domain.quoting import count_of, quoted
from ads_pipeline.domain.warehouse_names import find_view_problem
from ads_pipeline.google_ads.configuration import install_command
from ads_pipeline.lake.storage.durable_files import atomic_write, make_durable_directories
from ads_pipeline.operations.cli.command_line.options import AsJson
from ads_pipeline.operations.cli.command_line.output import Column, Fields, write_list
from ads_pipeline.settings.environment import Settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, Query, line_of

CONTRACTS_FILE: Final = "contracts.py"
COLUMNS: Final = (
    Column("query", "query_name", wrap=True),
    Column("version", "schema_version"),
    Column("columns", lambda row: len(row["columns"])),
    Column("from", "resource"),
    Column("line", "line"),
)
Directory = Annotated[
    Path | None,
    typer.Option(metavar="PATH", help="Where the first query file goes. It is created. Default: the home."),
]
Gaql = Annotated[str | None, typer.Option(metavar="TEXT", help="SELECT field, … FROM resource, without WHERE.")]
ApiVersion = Annotated[
    str | None, typer.Option(metavar="VERSION", help="Check this version of the API, in place of the configured one.")
]
Online = Annotated[
    str | None,
    typer.Option(metavar="CUSTOMER", help="Also ask Google whether it accepts the queries for this account."),
]
Version = Annotated[str, typer.Option(metavar="VERSION", help="The schema version of its rows.")]


def check_queries(
    settings: Settings, *, api_version: ApiVersion = None, online: Online = None, as_json: AsJson = False
) -> None:
    """List the queries, and check that each has a contract whose columns its GAQL selects, and that its fields exist.

    The fields are those of the installed client of Google Ads; nothing is called. Which fields may be selected
    together, only Google can tell: --online asks it, for one operation a query. Also lists what an upgrade to the
    next API version breaks. Exit code: 0 when all fit, 1 when a query does not, 78 with the line of each mistake in
    a contract.
    """
    write_list(list(_rows(settings)), COLUMNS, (), as_json=as_json)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # the results of the checks are notes then
        _check(settings, api_version, online)


def _rows(settings: Settings) -> Iterator[Fields]:
    for name, query in settings.google_apis.queries.items():
        yield {
            "query_name": name,
            "schema_version": query.schema_version,
            "columns": query.columns,
            "resource": query.gaql.rpartition(" ")[2],
            "line": line_of(settings.queries_file, "queries", name),
            "gaql": query.gaql,
        }


def _check(settings: Settings, api_version: str | None, online: str | None) -> None:
    from ads_pipeline.operations.cli.google_ads.query_fields import check_fields  # noqa: PLC0415 - they load pandera and Spark's client
    from ads_pipeline.validation.contract_registry import read_contracts  # noqa: PLC0415 - the same

    contracts = read_contracts(settings.queries_file, settings.google_apis)
    count = len(settings.google_apis.queries)
    typer.echo(f"{count_of(count, 'contract')} of {settings.queries_file} fit their queries")
    for name, query in settings.google_apis.queries.items():
        declared = {column.name for column in contracts.rules(name, query.schema_version).columns}
        if unused := ", ".join(column for column in query.columns if column not in declared):
            typer.echo(f"{name} selects {unused}, which its contract does not declare; it is not loaded", err=True)
    check_fields(settings, contracts, api_version)
    if online is not None:
        from ads_pipeline.operations.cli.google_ads.query_check import check_online  # noqa: PLC0415 - imports the client

        check_online(settings, online)


def add_query(
    settings: Settings,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Its name, which can never change. Default: only the query file is written."
        ),
    ] = None,
    *,
    gaql: Gaql = None,
    schema_version: Version = "1",
    directory: Directory = None,
) -> None:
    """Add a query to the query file, and write a first contract for its rows.

    The first query file of a deployment is a copy of the shipped one. It goes into the home, where the deployment
    uses it without further settings, or into --directory; then the command prints the setting. Without a name, the
    command writes only this file. It never replaces one.

    The contract goes to contracts.py beside the query file, which names it. Types come from the installed client of
    Google Ads, and without it from the names of the fields. Bounds, missing values and the natural key are guessed:
    read and correct them before the first day is judged.
    """
    new_file = (directory or settings.home).absolute() / DEFAULT_QUERIES_FILE.name
    if name is None:
        if gaql is not None:
            raise BadCommand("--gaql needs the name of the query")
        _create_query_file(settings, new_file)
        return
    is_first = settings.queries_file == DEFAULT_QUERIES_FILE
    if directory is not None and not is_first:
        raise BadCommand(f"the query file is {settings.queries_file}; leave out --directory")
    query, module = _check_new(settings, name, gaql, schema_version)
    from ads_pipeline.operations.cli.google_ads.query_fields import find_kinds  # noqa: PLC0415 - see _check

    kinds = find_kinds(settings.google_apis, name, query)
    if kinds is None:
        install = install_command()
        typer.echo(
            f"types are guessed from names: the client of Google Ads is not installed; run {install}", err=True
        )
    text = _insert(settings.queries_file, name, query, module)
    path = new_file if is_first else settings.queries_file
    contracts = path.parent / module
    if is_first:
        _create_query_file(settings, path)
    _append_contract(contracts, name, query, kinds)  # first: without its query, a contract changes nothing
    with atomic_write(path) as file:
        file.write(text.encode())
    typer.echo(
        f"added {name} to {path}\nwrote a first contract to {contracts}\n"
        "Correct its bounds, missing values and unique columns, then run:\n  ads-pipeline queries check"
    )


def _check_new(settings: Settings, name: str, gaql: str | None, schema_version: str) -> tuple[Query, str]:
    """The query, and the module of its contract. Raises BadCommand or BadName for one that cannot be added."""
    validate_name("query_name", name)
    if problem := find_view_problem(name):
        raise BadCommand(f"{problem}; choose another name")
    if gaql is None:
        raise BadCommand("--gaql is missing: give SELECT field, … FROM resource")
    query = _parse(gaql, schema_version)
    if name in settings.google_apis.queries:
        path = settings.queries_file
        line = line_of(path, "queries", name)
        raise BadCommand(f"{path}:{line} defines {name} already; to change its fields, raise its schema_version")
    module = settings.google_apis.contracts or CONTRACTS_FILE
    if not module.endswith(".py"):
        raise BadCommand(f"the contracts are in the module {module}; add the query and its contract there by hand")
    return query, module


def _create_query_file(settings: Settings, path: Path) -> None:
    """Copy the shipped query file, and print the setting that names the copy unless it is in the home."""
    make_durable_directories(path.parent)
    try:
        with atomic_write(path, replace=False) as file:
            file.write(DEFAULT_QUERIES_FILE.read_bytes())
    except FileExistsError:
        raise BadCommand(f"{path} exists already; nothing was changed") from None
    typer.echo(f"wrote {path}")
    if path.parent != settings.home.absolute():
        typer.echo(f"Set, for all processes of the deployment:\n  export ADS_PIPELINE_QUERIES={path}")


def _parse(gaql: str, schema_version: str) -> Query:
    try:
        return Query(schema_version=schema_version, gaql=gaql)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        option = str(first["loc"][0]).replace("_", "-")
        raise BadCommand(f"--{option} {first['msg'].removeprefix('Value error, ')}") from None


def _insert(path: Path, name: str, query: Query, module: str) -> str:
    """The text of the query file with the new query at its end. Raises BadCommand when `queries` is not last."""
    lines = path.read_text("utf-8").splitlines()
    start = line_of(path, "queries")
    block = "\n".join(
        [
            f"{name}:",
            f'  schema_version: "{query.schema_version}"',
            "  gaql: |",
            "    SELECT",
            *(f"      {field}," for field in query.fields[:-1]),
            f"      {query.fields[-1]}",
            f"    FROM {query.gaql.rpartition(' ')[2]}",
        ]
    )
    first = re.match(r"( +)[^ #]", next((line for line in lines[start:] if line.strip()), ""))
    if first is None or any(re.match(r"[^ #\t]", line) for line in lines[start:]):
        raise BadCommand(f"{quoted('queries')} is not the last block of {path}; add by hand:\n{indent(block, '  ')}")
    names_module = [] if any(re.match(r"contracts:", line) for line in lines) else [f"contracts: {module}", ""]
    return "\n".join([*lines[: start - 1], *names_module, *lines[start - 1 :], "", indent(block, first[1]), ""])


def _append_contract(path: Path, name: str, query: Query, kinds: Mapping[str, str] | None) -> None:
    from ads_pipeline.validation.first_contract import HEADER, write_contract  # noqa: PLC0415 - see _check

    before = path.read_text("utf-8") if path.exists() else HEADER
    with atomic_write(path) as file:
        text = write_contract(name, query.schema_version, query.fields, query.columns, kinds)
        file.write((before + text).encode())
