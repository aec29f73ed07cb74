"""The dbt project, the notebook and the code of docs/reading.md, on the data of the demo."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from ads_pipeline.demo.made_up_reports import ACCOUNTS, DAYS, Demo, describe_accounts, land_demo
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.environments import make_environment
from ads_pipeline_tests.lake.warehouse.builders import connect_with_delta
from ads_pipeline_tests.pipeline.builders import QUERY, SOURCE, open_deployment
from ads_pipeline_tests.processes import ROOT

EXAMPLES = ROOT / "examples"
LOCK = EXAMPLES / "requirements.lock"
PAGE = (ROOT / "docs" / "reading.md").read_text()
SECTIONS = {
    text.partition("\n")[0]: text for text in re.split(r"^## ", PAGE, flags=re.MULTILINE)[2:]
}  # without the first, which belongs to no tool
RUN, NOT_RUN = "Run by the tests", "Not run here"
PATH_IN_PAGE = "/var/lib/ads_pipeline"
NAMES = {account.customer_id: account.name for account in ACCOUNTS}
CURRENCIES = {account.customer_id: account.currency_code for account in ACCOUNTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHome:
    """A home with the demo's data of the week before today."""

    path: Path
    demo: Demo
    spend: dict[tuple[str, date], Decimal]  # by customer and day, of the rows that are safe to read

    @property
    def missing(self) -> list[PartitionKey]:
        """The days of the query that no reader sees."""
        return [self.demo.negative_cost.key, self.demo.late]

    def spend_of(self, customer: str, *, only_complete_days: bool = False) -> Decimal:
        incomplete = {key.logical_date for key in self.missing} if only_complete_days else set()
        return sum(
            (spend for (each, day), spend in self.spend.items() if each == customer and day not in incomplete),
            Decimal(),
        )


@pytest.fixture(scope="module")
def home(spark: SparkSession, sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> DemoHome:
    path = tmp_path_factory.mktemp("demo") / "home"
    path.mkdir()
    shutil.copy(sqlite_template, path / "ledger.db")
    settings = read_settings({"ADS_PIPELINE_HOME": str(path)})
    with open_deployment(path, spark, settings.database_url) as deployment:
        demo = land_demo(deployment.raw, settings.google_apis, until=datetime.now(UTC).date())
        deployment.ledger.accounts.record(SOURCE, describe_accounts(SOURCE))
        deployment.pipeline.judge_and_load(demo.landed)
    table = f"{path}/warehouse/{SOURCE}/{QUERY}"
    with connect_with_delta(str(path)) as connection:
        rows = connection.execute(
            "SELECT customer_id, logical_date, sum(cost_micros) FROM delta_scan(?) GROUP BY ALL", [table]
        ).fetchall()
    spend = {(customer, day): Decimal(int(micros)) / 1_000_000 for customer, day, micros in rows}
    return DemoHome(path=path, demo=demo, spend=spend)


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Runs programs of an environment that has the packages which the examples name."""

    python: Path
    environment: dict[str, str]

    def run(self, *command: str | Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [self.python, *command],
            env=self.environment | variables,
            cwd=EXAMPLES / "dbt",
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    def dbt(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run(self.python.with_name("dbt"), "--no-use-colors", *arguments)


@pytest.fixture(scope="module")
def programs(home: DemoHome, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    requirements = ("--no-deps", "--require-hashes", "-r", LOCK)
    python = make_environment("examples", requirements, identity=LOCK.read_text())
    (extension,) = python.parents[1].rglob("delta.duckdb_extension")
    written = tmp_path_factory.mktemp("dbt")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # modules of the tests
    environment |= {
        "ADS_PIPELINE_HOME": str(home.path),
        "DELTA_EXTENSION": str(extension),
        "DBT_DATABASE": str(written / "ads.duckdb"),
        "DBT_LOG_PATH": str(written / "logs"),
        "DBT_TARGET_PATH": str(written / "target"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "DBT_PROFILES_DIR": str(EXAMPLES / "dbt"),
    }
    return Programs(python=python, environment=environment)


def test_dbt_sums_complete_days_by_client_and_currency(home: DemoHome, programs: Programs) -> None:
    """The build passes, `days` is fresh, and the mart has one row a client, with the missing days beside the sum."""
    built = programs.dbt("build")
    assert built.returncode == 0, built.stdout
    with duckdb.connect(programs.environment["DBT_DATABASE"], read_only=True) as connection:
        rows = connection.execute(
            """
            SELECT customer_id, any_value(customer_name), list(DISTINCT currency_code),
                   count(DISTINCT month) = count(*), sum(spend), sum(days_summed)::INTEGER, sum(days_missing)::INTEGER
            FROM spend_by_client_and_month GROUP BY customer_id
            """
        ).fetchall()
    missing = [key.customer_id for key in home.missing]
    assert {row[0]: row[1:] for row in rows} == {
        customer: (
            *(NAMES[customer], [CURRENCIES[customer]], True),
            home.spend_of(customer, only_complete_days=True),
            *(5, missing.count(customer)),
        )
        for customer in NAMES
    }
    fresh = programs.dbt("source", "freshness")
    assert fresh.returncode == 0, fresh.stdout


def test_dbt_names_the_missing_days(home: DemoHome, programs: Programs) -> None:
    """A model that sums every readable day fails its test, and the output names each customer and day."""
    built = programs.dbt("build", "--vars", "{only_complete_days: false}")
    assert built.returncode == 1, built.stdout
    named = re.findall(r"^\d+ \| (.+?) \| ([0-9-]+) \| .+ \| .+$", built.stdout, re.MULTILINE)
    assert set(named) == {(NAMES[key.customer_id], str(key.logical_date)) for key in home.missing}


def test_dbt_passes_without_customers_that_may_be_missing(home: DemoHome, programs: Programs) -> None:
    """With the tolerance list, the days of all other customers are complete."""
    customers = [key.customer_id for key in home.missing]
    built = programs.dbt("build", "--vars", f"{{may_miss: {customers}}}")
    assert built.returncode == 0, built.stdout
    with duckdb.connect(programs.environment["DBT_DATABASE"], read_only=True) as connection:
        sums = connection.execute("SELECT customer_id, sum(spend) FROM spend_by_day GROUP BY ALL").fetchall()
    assert dict(sums) == {customer: home.spend_of(customer) for customer in NAMES}


def test_notebook_shows_missing_days_and_spend(home: DemoHome, programs: Programs) -> None:
    """polars and DuckDB print the same sums, and the missing days with their customers."""
    shown = programs.run(EXAMPLES / "notebook" / "spend.py", POLARS_FMT_MAX_COLS="20", COLUMNS="200")
    assert shown.returncode == 0, shown.stderr
    for customer, name in NAMES.items():
        line = rf"{name} .*{CURRENCIES[customer]} .* {home.spend_of(customer).normalize():f} "
        assert len(re.findall(line, shown.stdout)) == 2, shown.stdout
    for key in home.missing:
        assert re.search(rf"{NAMES[key.customer_id]} .*{key.logical_date}", shown.stdout)


def test_every_tool_says_whether_its_code_is_tested() -> None:
    """Each section of docs/reading.md has one of two sentences.

    The tests below run the code; `test_documented_command_runs` runs the commands.
    """
    assert [tool for tool, text in SECTIONS.items() if (RUN in text) == (NOT_RUN in text)] == []
    tested = ["The command line", "DuckDB", "polars", "pandas and delta-rs", "Spark", "dbt"]
    assert [tool for tool, text in SECTIONS.items() if RUN in text] == tested


def code_of(tool: str) -> str:
    """The code in a section of the page."""
    (code,) = re.findall(r"```(?:python|sql)\n(.*?)```", SECTIONS[tool], re.DOTALL)
    return str(code)


def test_duckdb_code_of_the_page(home: DemoHome) -> None:
    """The statement gives the spend of each client, how many days it has, and whether it may change."""
    with connect_with_delta(str(home.path)) as connection:
        rows = connection.execute(code_of("DuckDB").replace(PATH_IN_PAGE, str(home.path))).fetchall()
    missing = [key.customer_id for key in home.missing]
    assert {row[0]: row[1:] for row in rows} == {
        name: (CURRENCIES[customer], float(home.spend_of(customer)), DAYS - missing.count(customer), True)
        for customer, name in NAMES.items()
    }


def test_statement_for_complete_days(home: DemoHome) -> None:
    """The statement of docs/completeness-tables.md gives the days on which every customer is readable."""
    (statement,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "completeness-tables.md").read_text(), re.DOTALL)
    with connect_with_delta(str(home.path)) as connection:
        connection.execute(f"CREATE VIEW days AS FROM delta_scan('{home.path}/warehouse/{SOURCE}/days')")
        days = {day for (day,) in connection.execute(statement).fetchall()}
    assert days == {day for _customer, day in home.spend} - {key.logical_date for key in home.missing}


def assert_all_sums(home: DemoHome, shown: "subprocess.CompletedProcess[str]") -> None:
    assert shown.returncode == 0, shown.stderr
    for customer, name in NAMES.items():
        assert re.search(rf"{name} .* {home.spend_of(customer).normalize():f}0*\s", shown.stdout), shown.stdout


def test_polars_code_of_the_page(home: DemoHome, programs: Programs) -> None:
    """The code prints the spend of each client."""
    assert_all_sums(home, programs.run("-c", code_of("polars")))


def test_pandas_code_of_the_page(home: DemoHome, programs: Programs) -> None:
    """The code prints the spend of each client, with the packages of the product."""
    own = replace(programs, python=Path(sys.executable))
    assert_all_sums(home, own.run("-c", code_of("pandas and delta-rs")))


def test_spark_code_of_the_page(
    home: DemoHome, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The code prints a row of each customer."""
    monkeypatch.setenv("ADS_PIPELINE_HOME", str(home.path))
    exec(code_of("Spark"), {"spark": spark})
    assert sorted(re.findall(r"customer_id='(\d+)'", capsys.readouterr().out)) == sorted(NAMES)
