"""Queries and contracts of the user's own files, added as docs/adding-a-query.md tells it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import BadSettings
from ads_pipeline.domain.partition import Run
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE
from ads_pipeline.validation.contract_registry import SHIPPED, read_contracts
from ads_pipeline_tests.operations.cli.running import CommandLine, CommandResult
from ads_pipeline_tests.orchestration.builders import open_location
from ads_pipeline_tests.pipeline.builders import FACTS, key

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-query.md"
NAME = "network_daily"
ROW = {
    "date": "2026-01-01", "customer_id": "1", "campaign_id": 7, "ad_network_type": "SEARCH", "clicks": 1,
    "cost_micros": 5,
}  # fmt: skip
MODEL = """
import pyspark.sql.types as st
from pandera.pyspark import Field
from ads_pipeline.api import Row
class Own(Row):
    clicks: st.LongType = Field(nullable=False)
"""
OWN_CONTRACT = f"{MODEL}CONTRACTS = {{('{NAME}', '1'): Own}}"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    path = tmp_path / "empty"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


def follow_page(directory: Path) -> Iterator[tuple[str, CommandResult]]:
    """Run the commands of the page in their order."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for line in (line.strip() for block in blocks for line in block.splitlines() if line.strip()):
        yield line, CommandLine(home=directory / "home").run(*shlex.split(line)[1:])


def settings_for(directory: Path, text: str, contracts: str | None = None) -> Settings:
    """The settings with a query file that holds one query."""
    path = directory / "queries.yaml"
    path.write_text(f"source: google_ads\napi_version: v26\nstart_date: 2026-01-01\n{text}")
    if contracts is not None:
        (directory / "own.py").write_text(contracts)
    return read_settings({"ADS_PIPELINE_HOME": str(directory / "home"), "ADS_PIPELINE_QUERIES": str(path)})


def query_text(gaql: str, version: str = "1") -> str:
    return f"queries:\n  {NAME}:\n    schema_version: '{version}'\n    gaql: {gaql}\n"


SELECT = "SELECT segments.date, customer.id"
GAQL = f"{SELECT}, metrics.clicks FROM customer"


def test_own_query_is_judged_and_loaded(directory: Path, spark: SparkSession) -> None:
    """From an empty directory, following the page: good rows are readable, and the contract rejects bad ones."""
    for line, result in follow_page(directory):
        assert result.code == 0, (line, result.err)
    with open_location(directory / "home", spark) as location:
        good, bad = key(1, query_name=NAME), key(2, query_name=NAME)
        location.add_customers(1, 2)
        raw = location.deployment.raw
        raw.land(Run(key=good, run_id="r1"), [ROW], FACTS)
        raw.land(Run(key=bad, run_id="r1"), [ROW | {"customer_id": "2", "cost_micros": -1}], FACTS)
        assert location.run([good, bad], Names().assets([NAME])).success
        shown = location.deployment.readers.read_rows(spark, NAME)
        assert shown is not None
        assert [(row.customer_id, row.campaign_id, row.ad_network_type) for row in shown.collect()] == [
            ("1", 7, "SEARCH")
        ]
        reason = location.deployment.ledger.states.get(bad).error_message
        assert reason is not None
        assert "cost_micros" in reason


@pytest.mark.parametrize(
    ("contracts", "mistake"),
    [
        ("CONTRACTS = {}", "no contract for schema_version '1'"),
        (None, "cannot be imported: FileNotFoundError"),
        ("x =", "own.py:1 cannot be imported: SyntaxError"),
        ("import json\nraise ValueError('no')", "own.py:2 cannot be imported: ValueError: no"),
        ("x = 1", "own.py declares no CONTRACTS"),
        ("CONTRACTS = 5", "must be a mapping"),
        ("CONTRACTS = {'a': 1}", "must be .query name, schema version., both as text"),
        ("CONTRACTS = {('a', '1'): int}", "must be a class derived from ads_pipeline.api.Row"),
        (f"{MODEL}CONTRACTS = {{('campaign_daily', '1'): Own}}", "has a shipped contract"),
        (
            f"{MODEL.replace('LongType', 'BinaryType')}CONTRACTS = {{('{NAME}', '1'): Own}}",
            "does not support",
        ),
        (
            f"{MODEL}    spend: st.LongType = Field()\nCONTRACTS = {{('{NAME}', '1'): Own}}",
            "needs spend, which the GAQL does not select",
        ),
        (
            f"{MODEL}    run_id: st.StringType = Field()\nCONTRACTS = {{('{NAME}', '1'): Own}}",
            "Own.run_id: the column name run_id is reserved",
        ),
    ],
)
def test_definitions_refuse_a_query_without_a_fitting_contract(
    directory: Path, contracts: str | None, mistake: str
) -> None:
    """The message names the line in the query file, and the mistake."""
    settings = settings_for(directory, f"contracts: own.py\n{query_text(GAQL)}", contracts)
    with pytest.raises(BadSettings, match=mistake) as error:
        build_location(settings)
    assert re.search(r"queries\.yaml:[46] (contracts|queries\.network_daily): ", str(error.value))


def test_installed_module_declares_contracts(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`contracts:` may name a module; the shipped contracts remain."""
    (directory / "agency_contracts.py").write_text(f"{MODEL}CONTRACTS = {{('{NAME}', '1'): Own}}")
    monkeypatch.syspath_prepend(directory)
    settings = settings_for(directory, f"contracts: agency_contracts\n{query_text(GAQL)}")
    contracts = read_contracts(settings.queries_file, settings.google_apis)
    assert contracts.declared.keys() == SHIPPED.declared.keys() | {(NAME, "1")}


@pytest.mark.parametrize("name", ["../own.py", "/etc/own.py", "own py", "a b", ""])
def test_contracts_stand_beside_the_query_file(directory: Path, name: str) -> None:
    """A path outside the directory of the query file is refused."""
    with pytest.raises(BadSettings, match=r"queries\.yaml:4 contracts: must be a Python file beside"):
        settings_for(directory, f"contracts: '{name}'\n{query_text(GAQL)}")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("new", "a", "--gaql", "SELECT x"), 64, "--gaql must read SELECT"),
        (("new", "Bad Name", "--gaql", GAQL), 64, "query_name"),
        (("new", "network_current", "--gaql", GAQL), 64, "end in _current are reserved for views"),
        (("new", NAME, "--gaql", GAQL), 64, "defines network_daily already"),
        (("new", "a", "--gaql", GAQL, "--schema-version", "no good"), 64, "--schema-version"),
        (
            ("new", "a", "--gaql", f"{SELECT}, customer.manager FROM customer"),
            64,
            "customer.manager: is a boolean, and",
        ),
        (
            ("new", "a", "--gaql", f"{SELECT}, campaign.labels FROM campaign"),
            64,
            "campaign.labels: is a list, not one",
        ),
        (("new", "a", "--gaql", f"{SELECT}, metrics.clickz FROM customer"), 64, "did you mean metrics.clicks?"),
        (("new", "a", "--gaql", f"{SELECT}, metrics.clicks FROM custom"), 64, "custom: no such resource in v26"),
        (
            (
                "new",
                "a",
                "--gaql",
                f"{SELECT}, recommendation.type, segments.recommendation_type FROM recommendation",
            ),
            64,
            "which both become the column recommendation_type; keep one",
        ),
        (("new",), 64, "exists already; nothing was changed"),
        (("new", "--gaql", GAQL), 64, "--gaql needs the name of the query"),
        (("new", "a"), 64, "--gaql is missing"),
    ],
)
def test_refused_query_changes_nothing(directory: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    """The files stay as they were."""
    for _ in follow_page(directory):
        pass
    home = directory / "home"
    before = {path.name: path.read_bytes() for path in home.glob("*.*")}
    result = CommandLine(home=home).run("queries", *arguments)
    assert result.code == code
    assert message in result.err
    assert {path.name: path.read_bytes() for path in home.glob("*.*")} == before


def test_first_contract_has_the_types_of_the_fields(directory: Path) -> None:
    """Types come from the client, where names mislead: a count, an id that is a text, a number, an attribute."""
    cli = CommandLine(home=directory / "home")
    assert cli.run("queries", "new").code == 0
    fields = "metrics.phone_calls, segments.product_item_id, campaign.optimization_score, campaign.status"
    added = cli.run("queries", "new", "calls", "--gaql", f"{SELECT}, {fields} FROM campaign")
    assert (added.code, added.err) == (0, "")
    text = (directory / "home" / "contracts.py").read_text()
    for column, kind in (
        ("phone_calls", "LongType"),
        ("product_item_id", "StringType"),
        ("campaign_optimization_score", "DoubleType"),
        ("campaign_status", "StringType = Field(nullable=True, str_matches=ENUM)"),
    ):
        assert f"    {column}: st.{kind}" in text
    assert cli.run("queries", "check").code == 0


def test_query_file_may_be_copied_elsewhere(directory: Path) -> None:
    """The command prints the setting that names the copy."""
    result = CommandLine(home=directory / "home").run("queries", "new", "--directory", "reports")
    copy = directory / "reports" / "google_apis.yaml"
    assert f"export ADS_PIPELINE_QUERIES={copy}" in result.out
    assert copy.is_file()


def test_first_query_is_added_to_a_copy_of_the_shipped_file(directory: Path) -> None:
    """The shipped file is not changed. A deployment that has a file of its own gets no second one."""
    cli, shipped = CommandLine(home=directory / "home"), DEFAULT_QUERIES_FILE.read_bytes()
    added = cli.run("queries", "new", "a", "--gaql", GAQL, "--directory", "reports")
    copy = directory / "reports" / "google_apis.yaml"
    assert added.code == 0
    assert f"export ADS_PIPELINE_QUERIES={copy}" in added.out
    own = CommandLine(home=cli.home, more={"ADS_PIPELINE_QUERIES": str(copy)})
    assert own.run("queries", "check", "--json").objects[-1]["query_name"] == "a"
    refused = own.run("queries", "new", "b", "--gaql", GAQL, "--directory", "others")
    assert (refused.code, (directory / "others").exists()) == (64, False)
    assert DEFAULT_QUERIES_FILE.read_bytes() == shipped


def test_query_is_not_inserted_where_queries_is_not_last(directory: Path) -> None:
    """The command prints the lines to add by hand."""
    settings = settings_for(directory, f"{query_text(GAQL).replace(NAME, 'campaign_daily')}retries: {{}}\n")
    own = {"ADS_PIPELINE_QUERIES": str(settings.queries_file)}
    result = CommandLine(home=directory / "home", more=own).run("queries", "new", "a", "--gaql", GAQL)
    assert result.code == 64
    assert "add by hand" in result.err


def test_listed_queries_have_their_lines(directory: Path) -> None:
    """`queries check --json` gives each query with its columns and its line in the file."""
    settings = settings_for(directory, f"contracts: own.py\n{query_text(GAQL)}", OWN_CONTRACT)
    own = {"ADS_PIPELINE_QUERIES": str(settings.queries_file)}
    (listed,) = CommandLine(home=directory / "home", more=own).run("queries", "check", "--json").objects
    assert listed == {
        "query_name": NAME, "schema_version": "1", "columns": ["date", "customer_id", "clicks"],
        "resource": "customer", "line": 6, "gaql": GAQL,
    }  # fmt: skip
