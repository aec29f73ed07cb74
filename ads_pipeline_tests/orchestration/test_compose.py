"""The services of compose.yaml, run as processes on Postgres, beside the code location of another project."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ads_pipeline.ledger.sql.database import SCHEMA as LEDGER_SCHEMA
from ads_pipeline.orchestration.event_storage.instance_storage import SCHEMA as DAGSTER_SCHEMA
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, answers
from ads_pipeline_tests.orchestration.test_instance_storage import tables_of
from ads_pipeline_tests.ports import reserve_port
from ads_pipeline_tests.processes import PYTHON_PATH, ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: Mapping[str, Any] = COMPOSE["services"]
WORKSPACE = "/opt/dagster/workspace.yaml"
SECONDS_TO_START = 600
OTHER_PROJECT = """
import dagster as dg

@dg.asset
def orders() -> None: ...

defs = dg.Definitions(assets=[orders])
"""
LOCATIONS = """
query {
  workspaceOrError { ... on Workspace { locationEntries {
    name locationOrLoadError { __typename ... on RepositoryLocation { repositories { assetNodes { id } } } }
  } } }
}"""
DAEMONS = "query { instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }"


@pytest.fixture
def served(tmp_path: Path, unmigrated_postgres_url: str) -> Iterator[DagsterServer]:
    """All services of compose.yaml but Postgres, and a second project in the same workspace."""
    home, ports = tmp_path / "home", {"4000": str(reserve_port()), "3000": str(reserve_port())}
    home.mkdir()
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    (tmp_path / "other.py").write_text(OTHER_PROJECT)
    workspace = yaml.safe_load(COMPOSE["configs"]["workspace"]["content"])
    workspace["load_from"][0]["grpc_server"] |= {"host": "127.0.0.1", "port": int(ports["4000"])}
    workspace["load_from"].append({"python_file": {"relative_path": "other.py", "location_name": "other"}})
    (tmp_path / "workspace.yaml").write_text(yaml.safe_dump(workspace))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("ADS_PIPELINE_", "DAGSTER_"))},
        "ADS_PIPELINE_DATABASE_URL": unmigrated_postgres_url,
        "ADS_PIPELINE_HOME": str(home),
        "DAGSTER_HOME": str(tmp_path),
        "PYTHONPATH": PYTHON_PATH,
    }
    changes = {"0.0.0.0": "127.0.0.1", WORKSPACE: str(tmp_path / "workspace.yaml")} | ports
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(
                run_service([changes.get(word, word) for word in SERVICES[name]["command"]], environment, tmp_path)
            )
            for name in ("code-location", "webserver", "daemon")
        }
        url, process = f"http://127.0.0.1:{ports['3000']}", started["webserver"]
        server = DagsterServer(url=url, log=tmp_path / "dagster-webserver.log", process=process)
        server.wait_for(lambda: answers(server), SECONDS_TO_START)
        yield server


@contextmanager
def run_service(
    command: Sequence[str], environment: Mapping[str, str], directory: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    program = Path(sys.executable).parent / command[0]
    with (directory / f"{command[0]}.log").open("ab") as output:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(1000)
def test_services_run_beside_another_project(served: DagsterServer, unmigrated_postgres_url: str) -> None:
    """One webserver and one daemon serve both code locations. Ledger and Dagster each have their own schema."""
    locations = served.wait_for(lambda: find_loaded(served))
    assert locations == {"ads_pipeline": 11, "other": 1}
    daemons = served.wait_for(lambda: find_healthy_daemons(served))
    assert {"SENSOR", "SCHEDULER", "QUEUED_RUN_COORDINATOR", "MONITORING", "BACKFILL"} <= daemons
    schemas = {schema for schema, _table in served.wait_for(lambda: find_schemas(unmigrated_postgres_url))}
    assert schemas == {DAGSTER_SCHEMA, LEDGER_SCHEMA}


def find_schemas(url: str) -> set[tuple[str, str]] | None:
    """The tables, as soon as a sensor has created the ledger."""
    found = tables_of(url)
    return found if (LEDGER_SCHEMA, "partition_state") in found else None


def find_loaded(server: DagsterServer) -> dict[str, int] | None:
    """The number of assets of each code location, as soon as all have loaded."""
    entries = server.query(LOCATIONS)["workspaceOrError"]["locationEntries"]
    loaded = [entry["locationOrLoadError"] for entry in entries]
    if not all(each and each["__typename"] == "RepositoryLocation" for each in loaded):
        return None
    return {
        entry["name"]: sum(len(each["assetNodes"]) for each in entry["locationOrLoadError"]["repositories"])
        for entry in entries
    }


def find_healthy_daemons(server: DagsterServer) -> set[str] | None:
    statuses = server.query(DAEMONS)["instance"]["daemonHealth"]["allDaemonStatuses"]
    required = [each for each in statuses if each["required"]]
    return {each["daemonType"] for each in required} if all(each["healthy"] for each in required) else None


def test_image_and_services_name_what_exists() -> None:
    """The Dockerfile copies existing files, and every service of this project uses its image and workspace."""
    lines = [line.split() for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")]
    sources = [source for line in lines for source in line[1:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    own = [service for name, service in SERVICES.items() if name != "postgres"]
    assert all(service["build"] == "." for service in own)
    assert {config["target"] for service in own for config in service["configs"]} == {WORKSPACE}
    assert set(COMPOSE["volumes"]) == {"home", "postgres"}
