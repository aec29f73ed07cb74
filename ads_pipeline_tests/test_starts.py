"""What a start may load: the help of the command line, a list of states, and Dagster's definitions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from ads_pipeline.ledger import migrations
from ads_pipeline.ledger.sql import database
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE

LOAD = "from ads_pipeline.definitions import defs; defs()"
CLI = "from ads_pipeline.operations.cli.main import main; main()"
REPORT = """
import atexit, sys
atexit.register(lambda: print("loaded", *sys.modules, file=sys.stderr))
"""
# Libraries of the product that take long to load.
ENGINES = frozenset(
    {"dagster", "deltalake", "duckdb", "grpc", "numpy", "obstore", "pandas", "pandera", "pyarrow", "pyspark"}
)
CLIENTS = frozenset({"google.ads", "requests", "prometheus_client"})
DATABASE = frozenset({"sqlalchemy", "tenacity", "alembic", "psycopg2"})


def find_loaded(home: Path, code: str, *arguments: str) -> set[str]:
    """The modules and packages that a process has loaded at its end."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ADS_PIPELINE_")}
    command = [sys.executable, "-W", "ignore", "-c", REPORT + code, *arguments]
    environment = variables | {"ADS_PIPELINE_HOME": str(home)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return set(done.stderr.splitlines()[-1].split()[1:])


def test_help_loads_no_library_of_the_work(tmp_path: Path) -> None:
    """The help of the program needs only the libraries of the command line and of the query file."""
    loaded = find_loaded(tmp_path, CLI, "--help")
    assert loaded & (ENGINES | CLIENTS | DATABASE) == set()


@pytest.mark.parametrize("group", ["state", "raw", "warehouse", "events", "ledger", "audit", "accounts", "queries"])
def test_help_of_a_group_loads_no_engine(tmp_path: Path, group: str) -> None:
    """The help of a group loads neither Dagster, Spark nor a reader of tables."""
    loaded = find_loaded(tmp_path, CLI, group, "--help")
    assert loaded & (ENGINES | CLIENTS) == set()


def test_list_of_states_loads_only_the_database(tmp_path: Path) -> None:
    """A list of states reads the ledger: no engine, no migration."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with database.open_checked_engine(url):
        pass
    loaded = find_loaded(tmp_path, CLI, "state", "inspect")
    assert "sqlalchemy" in loaded
    assert loaded & (ENGINES | CLIENTS | {"alembic"}) == set()


def test_definitions_load_no_engine(tmp_path: Path) -> None:
    """Dagster's definitions load no engine, no client and no command line; steps load what they use."""
    loaded = find_loaded(tmp_path, LOAD)
    assert "dagster" in loaded
    others = {
        "alembic",
        "dagster_pyspark",
        "hypothesis",
        "psycopg2",
        "py4j",
        "rich",
        "typer",
        "ads_pipeline.operations.cli",
    }
    assert loaded & (ENGINES - {"dagster"} | CLIENTS | others) == set()


def test_own_contracts_load_pandera(tmp_path: Path) -> None:
    """Only a deployment with contracts of its own pays for pandera, because its models are checked at the start."""
    text = DEFAULT_QUERIES_FILE.read_text(encoding="utf-8")
    (tmp_path / "google_apis.yaml").write_text(f"contracts: own.py\n{text}")
    (tmp_path / "own.py").write_text("from ads_pipeline.validation.contract_models import Row\nCONTRACTS = {}\n")
    assert "pandera" in find_loaded(tmp_path, LOAD)


def test_stated_revision_is_the_newest_script() -> None:
    """A process that only opens the ledger does not ask Alembic for the newest revision."""
    assert ScriptDirectory(str(Path(migrations.__file__).parent)).get_current_head() == database.REVISION
