"""A deployment inside a user's own project: settings are arguments, and the rest of the process stays as it is."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.api import build_definitions
from ads_pipeline.domain.errors import BadName, BadSettings
from ads_pipeline.lake.storage.durable_files import access_mode
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.settings.arguments import read_arguments
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE

NONSENSE = {"ADS_PIPELINE_SPARK": "nonsense", "ADS_PIPELINE_HOMES": "/typo", "ADS_PIPELINE_LOG": "json"}
IMPORTS = """
import sys
import ads_pipeline.definitions
from ads_pipeline.api import build_definitions
print(sum(1 for _ in build_definitions(home=sys.argv[1]).resolve_asset_graph().get_all_asset_keys()))
"""


def test_wrong_variable_does_no_harm(tmp_path: Path) -> None:
    """Neither the import of the code location nor a deployment of arguments reads the settings of the environment."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTS, str(tmp_path)],
        env=os.environ | NONSENSE,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (0, "11\n"), done.stderr


def test_call_changes_nothing_else_in_the_process(tmp_path: Path) -> None:
    """Loggers, the modes of new files and the environment are as before."""

    def describe() -> tuple[Any, ...]:
        logger = logging.getLogger("ads_pipeline")
        return logger.level, list(logger.handlers), access_mode(0o666), dict(os.environ), list(tmp_path.iterdir())

    before = describe()
    build_definitions(home=tmp_path, key_prefix="acme")
    assert describe() == before


def build_own(name: str) -> dg.Definitions:
    """Definitions of a user with the names that a deployment without a prefix has."""

    @dg.asset(key=name)
    def own() -> None:
        """An asset of the user."""

    @dg.job(name="reconcile")
    def own_job() -> None:
        """A job of the user."""

    return dg.Definitions(
        assets=[own],
        jobs=[own_job],
        resources={"pyspark": "mine", "ledger_engine": "mine", "run_resources": "mine"},
        executor=dg.multiprocess_executor,
    )


def test_merges_with_definitions_of_the_same_names(tmp_path: Path) -> None:
    """A user's own `report`, `google_ads`, `reconcile`, `pyspark` and executor stand beside a deployment's."""
    for name in ("report", "google_ads", "partition_status"):
        merged = dg.Definitions.merge(
            build_definitions(home=tmp_path / "acme", key_prefix="acme"),
            build_definitions(home=tmp_path / "beta", key_prefix=["team", "beta"]),
            build_own(name),
        )
        dg.Definitions.validate_loadable(merged)
        assert merged.executor is dg.multiprocess_executor
        keys = {"/".join(key.path) for key in merged.resolve_asset_graph().get_all_asset_keys()}
        assert {name, f"acme/{name}", f"team/beta/{name}"} <= keys


@pytest.mark.parametrize("in_postgres", [False, True])
def test_two_deployments_on_one_ledger_are_refused(tmp_path: Path, *, in_postgres: bool) -> None:
    """Also with another home and other credentials. The error of Dagster names the settings and no password."""
    url = "postgresql+psycopg2://{}:never-shown@host/ads"
    arguments: list[dict[str, Any]] = [
        {"home": tmp_path / user, "database_url": url.format(user)} if in_postgres else {"home": tmp_path}
        for user in ("one", "two")
    ]
    one, two = (build_definitions(**each, key_prefix=f"d{n}") for n, each in enumerate(arguments))
    with pytest.raises(dg.DagsterInvariantViolationError, match="home_or_database_url_of_its_own") as caught:
        dg.Definitions.merge(one, two)
    assert "never-shown" not in str(caught.value)


def test_queries_owners_and_tags_are_chosen(tmp_path: Path) -> None:
    """Only the named queries have assets; all assets have the owners and the tags."""
    defs = build_definitions(
        home=tmp_path, query_names=["campaign_daily"], owners=["team:growth"], tags={"domain": "ads"}
    )
    graph = defs.resolve_asset_graph()
    paths = {"/".join(key.path) for key in graph.get_all_asset_keys()}
    assert paths == {"raw/campaign_daily", "warehouse/campaign_daily", "google_ads", "partition_status", "report"}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert list(node.owners) == ["team:growth"]
        assert node.tags["domain"] == "ads"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"home": "relative"}, "\n  home: must be an absolute path"),
        ({"lake": "s3://bucket/ads"}, "\n  database_url: a lake in a bucket needs a ledger in Postgres"),
        ({"queries": "/no/such/file.yaml"}, "\n  queries: cannot be read: No such file"),
        ({"google_ads": "/no/such/file.yaml"}, "\n  google_ads: the file cannot be read"),
        ({"lease_seconds": 1}, "\n  lease_seconds: must be whole seconds, from 5"),
        ({"database_url": "mysql://secret@host/db"}, "\n  database_url: must be postgresql+psycopg2://"),
    ],
)
def test_mistakes_name_the_argument(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    """An invalid setting is named as it was given, and its value is not shown."""
    with pytest.raises(BadSettings) as caught:
        build_definitions(**{"home": tmp_path} | arguments)
    assert text in str(caught.value)
    assert "ADS_PIPELINE_" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_unknown_query_names_the_close_one(tmp_path: Path) -> None:
    """A query that the file does not define is refused."""
    with pytest.raises(BadName, match="did you mean campaign_daily"):
        build_definitions(home=tmp_path, query_names=["campain_daily"])


def paste(command: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ADS_PIPELINE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{plain['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", command],
        env=plain | {"PATH": path} | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_printed_commands_work_in_any_shell(tmp_path: Path) -> None:
    """They name the home and the query file, also a home with a space, and none that holds a secret."""
    home, queries = tmp_path / "my home", tmp_path / "queries.yaml"
    home.mkdir()
    queries.write_text(DEFAULT_QUERIES_FILE.read_text())
    settings = read_arguments({"home": home, "queries": queries, "google_ads": "off"})
    with Ledger.opened(settings.database_url):
        pass
    command = settings.command("ads-pipeline state inspect --json")
    assert command.startswith("ADS_PIPELINE_HOME=")
    done = paste(command)
    assert done.returncode in {0, 1}, done.stderr
    assert "There is no data" not in done.stderr


def test_printed_commands_need_the_url_of_the_ledger(tmp_path: Path) -> None:
    """The URL is a secret. Where it is not set, the shell says so instead of opening another ledger."""
    url = "postgresql+psycopg2://user:never-shown@host/ads"
    command = read_arguments({"home": tmp_path, "database_url": url}).command("ads-pipeline state due")
    assert "never-shown" not in command
    done = paste(command)
    assert done.returncode != 0
    assert "set it to the ledger of this deployment" in done.stderr
    assert (
        paste(command.replace("ads-pipeline state due", "env"), ADS_PIPELINE_DATABASE_URL=url).stdout.count(url) == 1
    )
