"""The built wheel, installed into an environment of its own and used in an empty directory.

`make test-wheel` resolves and installs the wheel's requirements as a user's installation does. `make test` needs no
package index: its environment finds the libraries that the tests run with.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import ads_pipeline
from ads_pipeline.demo.made_up_reports import ACCOUNTS
from ads_pipeline.orchestration.event_storage.instance_storage import SCHEMA as DAGSTER_SCHEMA
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.example_counts import TIMES
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server
from ads_pipeline_tests.orchestration.test_instance_storage import tables_of
from ads_pipeline_tests.spark.engine.test_engine import descendants, wait_until_gone

ROOT = Path(ads_pipeline.__file__).parent.parent
LIBRARIES = Path(pytest.__file__).parents[1]
RESOLVED = os.environ.get("WHEEL_REQUIREMENTS") == "resolved"
CONFORM = """
import sys
from ads_pipeline.testing import memory_store, run_event_stores
assert memory_store.__file__.startswith(sys.argv[1]), memory_store.__file__
assert "pytest" not in sys.modules
run_event_stores.check_store(memory_store.MemoryEventStore)
print(len(run_event_stores.CHECKS), "checks")
"""
REPOSITORIES = """
query { repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"""
DAEMONS = "query { instance { daemonHealth { allDaemonStatuses { lastHeartbeatTime } } } }"
CONFIGURATION = "query { instance { runQueueConfig { maxConcurrentRuns } } }"


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*build, "--wheel-dir", str(directory), str(ROOT)], check=True, timeout=600)
    (built,) = directory.glob("ads_pipeline-*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `ads-pipeline` of a new environment, in which the checkout is not found."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    if RESOLVED:
        uv_pip("install", python, "--quiet", str(wheel))
    else:
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True, timeout=600)
        (packages,) = directory.glob("lib/python*/site-packages")
        (packages / "libraries.pth").write_text(f"{LIBRARIES}\n")
    return directory / "bin" / "ads-pipeline"


def uv_pip(command: str, python: Path, *arguments: str) -> str:
    program = [sys.executable, "-m", "uv", "pip", command, "--python", str(python), *arguments]
    process = subprocess.run(program, capture_output=True, text=True, check=False, timeout=900)
    assert process.returncode == 0, process.stderr
    return process.stdout + process.stderr


def clean_environment(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ADS_", "DAGSTER_", "PYTHON"))}
    return kept | {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "local[2]"} | more


def test_wheel_contains_the_conformance_suite(wheel: Path, tmp_path: Path) -> None:
    """A fresh interpreter imports the suite from the wheel and runs it without pytest."""
    output = subprocess.run(
        [sys.executable, "-c", CONFORM, str(wheel)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert output.returncode == 0, output.stderr
    assert output.stdout.endswith(" checks\n")


def test_wheel_contains_what_its_commands_need(wheel: Path) -> None:
    """Types, the shipped queries, Dagster's configuration and the report's page are in the wheel."""
    names = set(zipfile.ZipFile(wheel).namelist())
    needed = {
        "py.typed",
        "settings/config/google_apis.yaml",
        "settings/config/dagster.yaml",
        "operations/report/page.html",
    }
    assert {f"ads_pipeline/{name}" for name in needed} <= names
    assert not any(name.startswith("ads_pipeline_tests") for name in names)


def test_shipped_configuration_is_the_checkouts() -> None:
    """`dagster dev` in the checkout and `ads-pipeline dev` anywhere configure Dagster alike."""
    assert (ROOT / "dagster.yaml").read_text() == (ROOT / "ads_pipeline/settings/config/dagster.yaml").read_text()


def test_requirements_are_ranges(wheel: Path) -> None:
    """The wheel installs beside a newer patch release of each library, and below the next one with new names."""
    (directory,) = (each for each in zipfile.Path(wheel).iterdir() if each.name.endswith(".dist-info"))
    metadata = PathDistribution(directory)
    found = [Requirement(text) for text in metadata.requires or []]
    assert not [each.name for each in found if "==" in str(each.specifier)]
    (dagster,) = (each for each in found if each.name == "dagster")
    assert dagster.specifier.contains("1.13.99")
    assert not dagster.specifier.contains("1.14.0")


if RESOLVED:  # `make test` has no such environment, and therefore no such test

    def test_resolved_requirements_fit_each_other(installed: Path) -> None:
        """The environment has what the wheel asks for, without contradiction and without the optional client."""
        python = installed.parent / "python"
        assert "All installed packages are compatible" in uv_pip("check", python)
        listed = uv_pip("list", python)
        assert "dagster " in listed
        assert "google-ads" not in listed


@pytest.mark.timeout(1000)
def test_demo_runs_in_an_empty_directory(installed: Path, tmp_path: Path) -> None:
    """Two partitions are rejected with a reason, one is missing, and four customers are readable. A second run on the
    same day prints the same (with SOAK). The accounts have names. The partitions in Dagster begin at the week, and
    the report is written."""
    directory = tmp_path / "empty"
    directory.mkdir()
    environment = clean_environment(tmp_path / "home")
    first = run(installed, "demo", directory=directory, environment=environment)
    for text in (
        "1 of 28 expected days is not readable: 3391704826, ",
        "all 28 expected days are readable",
        "cost_micros must be at least 0 in 1 row",
        "the payload has 4 rows, the seal says 6",
        "2 partitions: 2 failed",
        "3 of 84 expected days are not readable",
        "4 rows",
    ):
        assert text in first
    assert re.search(r"campaign_daily, \d+ s: 2 of 28 expected days are not readable", first)
    accounts = run(installed, "accounts", "list", directory=directory, environment=environment)
    assert [account.name for account in ACCOUNTS if account.name not in accounts] == []
    if TIMES > 1:
        assert results_of(first) == results_of(run(installed, "demo", directory=directory, environment=environment))
    assert all(len(line) <= 80 for line in results_of(first))
    start_date = read_settings({"ADS_PIPELINE_HOME": str(tmp_path / "home")}).google_apis.start_date
    assert start_date in {datetime.now(UTC).date() - timedelta(days=days) for days in (7, 8)}  # midnight may pass
    assert all((tmp_path / "home" / name).is_file() for name in ("report.html", "partition_status.parquet"))
    follow_last_lines(first, directory)
    follow_readme(installed.parent, tmp_path / "home", directory)
    assert list(directory.iterdir()) == []


def follow_last_lines(output: str, directory: Path) -> None:
    """Paste the lines with which the demo ends into a plain shell, all but the server."""
    lines = output.partition("Go on with these lines:")[2].split("\n")
    assert (lines.pop(), lines.pop()) == ("", "ads-pipeline dev")
    assert len(lines) >= 8
    paste(lines, directory)


def follow_readme(programs: Path, home: Path, directory: Path) -> None:
    """Paste the commands of the README's section "Use it", with the home and the programs of this installation."""
    block = re.findall(r"## Use it.*?```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    export, *lines = block.splitlines()
    assert export == "export ADS_PIPELINE_HOME=$PWD/.demo PATH=$PWD/.venv/bin:$PATH"
    paste([f"export ADS_PIPELINE_HOME={home} PATH={programs}:$PATH", *lines], directory)


def paste(lines: list[str], directory: Path) -> None:
    """Execute the lines one by one in a shell without any settings. The demo has gaps, so a code of 1 is right."""
    script = "".join(f"{line}\n[ $? -le 1 ] || exit 9\n" for line in lines)
    plain = {name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        ["/bin/sh"],
        input=script,
        cwd=directory,
        env=plain | {"PATH": os.defpath.strip(":"), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert "not found" not in done.stderr


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("database", ["sqlite", *(["postgres"] if TIMES > 1 else [])])
def test_dev_serves_from_an_empty_directory(
    installed: Path, tmp_path: Path, database: str, request: pytest.FixtureRequest
) -> None:
    """The UI has the code location, and the limits of this product. Nothing is written to the current directory."""
    directory = tmp_path / "empty"
    directory.mkdir()
    more = {}
    if database == "postgres":
        more["ADS_PIPELINE_DATABASE_URL"] = request.getfixturevalue("unmigrated_postgres_url")
    with dagster_server(tmp_path / "home", more, program=installed, directory=directory) as server:
        locations = server.query(REPOSITORIES)["repositoriesOrError"]["nodes"]
        assert [each["location"]["name"] for each in locations] == ["ads_pipeline.definitions"]
        instance = server.query(CONFIGURATION)["instance"]
        assert instance["runQueueConfig"]["maxConcurrentRuns"] == 2
        check_output_of_dev(server, tmp_path / "home")
    assert list(directory.iterdir()) == []
    assert (tmp_path / "home" / "dagster" / "history").exists() == (database == "sqlite")
    if database == "postgres":
        schemas = {schema for schema, _table in tables_of(more["ADS_PIPELINE_DATABASE_URL"])}
        assert DAGSTER_SCHEMA in schemas
        assert "public" not in schemas


def check_output_of_dev(server: DagsterServer, home: Path) -> None:
    """When it prints its address, UI and daemon answer. Then it is quiet, and Ctrl-C ends it with one line.

    What Dagster prints is in a file that the first line names. There is no report yet, so none is named.
    """
    address = f"Dagster's UI: {server.url} (Ctrl-C stops it)"
    server.wait_for(lambda: server.log.read_text().endswith(f"{address}\n"))
    assert any(
        each["lastHeartbeatTime"] for each in server.query(DAEMONS)["instance"]["daemonHealth"]["allDaemonStatuses"]
    )
    first, *steps, _last = server.log.read_text().splitlines()
    assert first == f"Starting Dagster on {home}. Its log: {home / 'dev.log'}"
    assert re.fullmatch(r" +\d+ s  the daemon answers", steps[-1])
    assert all(re.fullmatch(r" +\d+ s  (waiting for )?the [\w ]+", line) for line in steps)
    below = descendants(server.process.pid)
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(300) == 0
    assert server.log.read_text().endswith(f"{address}\n\nStopping Dagster … stopped\n")
    wait_until_gone(list(below))
    assert (home / "dev.log").stat().st_mode & 0o077 == 0
    assert "Traceback" not in (home / "dev.log").read_text()


def run(program: Path, *arguments: str, directory: Path, environment: Mapping[str, str]) -> str:
    process = subprocess.run(
        [program, *arguments],
        cwd=directory,
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def results_of(output: str) -> list[str]:
    return output.partition("Rejected partitions")[2].partition("Go on with")[0].splitlines()[1:]


PROJECT = ROOT / "examples" / "dagster_project"
DAY = ("1180250317", "2026-03-01")
ADD_CUSTOMERS = """
import sys
import dagster as dg
with dg.DagsterInstance.get() as instance:
    for prefix in ("acme", "beta"):
        instance.add_dynamic_partitions(f"{prefix}__google_ads_customers", sys.argv[1:])
"""
COUNT_STEPS = """
import dagster as dg
with dg.DagsterInstance.get() as instance:
    for run in instance.get_runs():
        events = instance.all_logs(run.run_id)
        print(run.status.value, len({each.step_key for each in events if each.get_dagster_event().is_step_success}))
"""


@pytest.mark.timeout(900)
def test_project_runs_two_deployments_in_processes(installed: Path, tmp_path: Path) -> None:
    """A user's project, copied to an empty directory, runs raw, checks and warehouse of both of its deployments.

    It also runs an asset of its own downstream. Each step is a process of its own, and wrong variables in the
    environment do no harm.
    """
    project, python = tmp_path / "agency", installed.parent / "python"
    shutil.copytree(PROJECT, project)
    (records := tmp_path / "dagster").mkdir()
    (records / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    for name in ("acme", "beta"):
        extractor = str(ROOT / "examples" / "own_extractor.py")
        run(python, extractor, *DAY, directory=project, environment=clean_environment(project / f".{name}"))
    environment = clean_environment(tmp_path / "unused", ADS_PIPELINE_SPARK="nonsense", ADS_PIPELINE_HOMES="typo") | {
        "DAGSTER_HOME": str(records),
        "PYTHONPATH": str(project / "src"),
        "PYTHONWARNINGS": "ignore",
    }
    run(python, "-c", ADD_CUSTOMERS, DAY[0], directory=project, environment=environment)
    for name in ("acme", "beta"):
        selection = f"{name}/raw/campaign_daily,{name}/warehouse/campaign_daily"
        options = ["--select", selection, "--partition", "|".join(DAY), "-m", "agency.definitions"]
        run(python, "-m", "dagster", "asset", "materialize", *options, directory=project, environment=environment)
        query = "SELECT count(*) FROM campaign_daily"
        shown = clean_environment(project / f".{name}")
        assert " 1" in run(installed, "warehouse", "query", query, directory=project, environment=shown)
    options = ["--select", "spend_by_account", "--partition", DAY[1], "-m", "agency.definitions"]
    run(python, "-m", "dagster", "asset", "materialize", *options, directory=project, environment=environment)
    assert DAY[0] in (project / ".acme" / "spend" / f"{DAY[1]}.csv").read_text()
    steps = run(python, "-c", COUNT_STEPS, directory=project, environment=environment)
    assert steps.split() == ["SUCCESS", "1", *["SUCCESS", "5"] * 2]
    assert not (tmp_path / "unused").exists()
