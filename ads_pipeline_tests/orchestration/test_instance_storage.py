"""Dagster's storage with the `dagster.yaml` of this checkout, on SQLite and on Postgres."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import psycopg2
import pytest
import sqlalchemy as sa

import ads_pipeline
from ads_pipeline.domain.errors import BadSettings
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import ledger_tables
from ads_pipeline.ledger.sql.database import REVISION_TABLE
from ads_pipeline.ledger.sql.database import SCHEMA as LEDGER_SCHEMA
from ads_pipeline.operations.doctor import dagster_records
from ads_pipeline.operations.doctor.deployment_checks import CHECKS
from ads_pipeline.operations.doctor.examination import Finding, run_checks
from ads_pipeline.orchestration.event_storage.instance_storage import SCHEMA
from ads_pipeline.orchestration.partitions import CUSTOMERS, DELETE_CUSTOMER
from ads_pipeline.settings.environment import POSTGRES_FORM, VARIABLES, read_settings
from ads_pipeline_tests.builders import key
from ads_pipeline_tests.processes import PYTHON_PATH, ROOT

SECRET = "hunter2-correct-horse"
READ = """
import ads_pipeline, dagster as dg
with dg.DagsterInstance.get() as instance:
    (run,) = instance.get_runs()
    event = instance.get_latest_materialization_event(dg.AssetKey("rows"))
    print(run.run_id, run.status.value, event.run_id, ads_pipeline.__file__)
"""


@dg.asset
def rows() -> int:
    print("output of a step")
    return 7


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with Dagster's two configuration files, in which no other file may appear."""
    path = tmp_path / "checkout"
    path.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(ROOT / name, path)
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def variables(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of a process with Dagster storage in SQLite or in Postgres."""
    if request.param == "sqlite":
        return clean(tmp_path)
    return clean(tmp_path, ADS_PIPELINE_DATABASE_URL=request.getfixturevalue("unmigrated_postgres_url"))


def clean(tmp_path: Path, **variables: str) -> dict[str, str]:
    """An environment with only these variables and what a process needs to find its code."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": PYTHON_PATH, **variables}


@contextmanager
def instance_in(checkout: Path, variables: dict[str, str]) -> Iterator[dg.DagsterInstance]:
    """The Dagster instance that a process with this environment opens."""
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        with dg.DagsterInstance.from_config(str(checkout)) as instance:
            yield instance


def python(*arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600
    )


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def tables_of(url: str) -> set[tuple[str, str]]:
    """Every table of a Postgres database with its schema."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).all()
    engine.dispose()
    return {(schema, table) for schema, table in found}


def test_records_are_shared_between_processes(checkout: Path, variables: dict[str, str]) -> None:
    """Another process reads the run and its events; no file is added to the checkout."""
    with instance_in(checkout, variables) as instance:
        run = dg.materialize([rows], instance=instance)
    read = python("-c", READ, cwd=checkout, env=variables | {"DAGSTER_HOME": str(checkout)})
    assert read.stdout.split() == [run.run_id, "SUCCESS", run.run_id, ads_pipeline.__file__], read.stderr
    assert files(checkout) == {"dagster.yaml", "workspace.yaml"}


@pytest.mark.parametrize("home", [None, "elsewhere"])
def test_all_records_are_below_the_home(checkout: Path, tmp_path: Path, home: str | None) -> None:
    """Records, values and the output of steps are in the Dagster directory of the home."""
    variables = clean(tmp_path) | ({"ADS_PIPELINE_HOME": str(tmp_path / home)} if home else {})
    with instance_in(checkout, variables) as instance:
        run = dg.materialize([rows], instance=instance)
    folder = tmp_path / (home or ".ads_pipeline") / "dagster"
    kept = files(folder)
    assert {"history/runs.db", f"history/runs/{run.run_id}.db", "schedules/schedules.db", "storage/rows"} <= kept
    (printed,) = [name for name in kept if name.startswith("storage/") and name.endswith(".out")]
    assert (folder / printed).read_text() == "output of a step\n"
    assert files(tmp_path) == {"checkout/dagster.yaml", "checkout/workspace.yaml"} | {
        str((folder / name).relative_to(tmp_path)) for name in kept
    }


def test_no_setting_is_required(checkout: Path, tmp_path: Path) -> None:
    """Without DAGSTER_HOME, a Dagster command keeps its records and adds no file to the checkout."""
    code = tmp_path / "code.py"
    code.write_text("import dagster as dg\n\n@dg.asset\ndef rows():\n    return 7\n")
    command = ("-m", "dagster", "asset", "materialize", "-f", str(code), "--select", "rows")
    process = python(*command, cwd=checkout, env=clean(tmp_path))
    assert process.returncode == 0, process.stderr
    assert {path.name for path in checkout.iterdir()} == {"dagster.yaml", "workspace.yaml"}
    with instance_in(checkout, clean(tmp_path)) as instance:
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS]


@pytest.mark.parametrize("first", ["ledger", "dagster"])
def test_ledger_and_dagster_share_a_database(
    checkout: Path, tmp_path: Path, unmigrated_postgres_url: str, first: str
) -> None:
    """Both have a table named runs, in either order of creation, and both open again."""
    variables = clean(tmp_path, ADS_PIPELINE_DATABASE_URL=unmigrated_postgres_url)

    def open_ledger() -> None:
        with Ledger.opened(unmigrated_postgres_url) as ledger:
            assert ledger.runs.registered(key()) == []

    def open_dagster() -> None:
        with instance_in(checkout, variables) as instance:
            assert instance.get_runs_count() == 0

    order = [open_ledger, open_dagster] if first == "ledger" else [open_dagster, open_ledger]
    for each in order * 2:
        each()
    found = tables_of(unmigrated_postgres_url)
    assert {table for schema, table in found if schema == LEDGER_SCHEMA} == {
        *ledger_tables.metadata.tables,
        REVISION_TABLE,
    }
    assert {(SCHEMA, "runs"), (SCHEMA, "event_logs"), (SCHEMA, "alembic_version")} <= found
    assert {schema for schema, _ in found} == {LEDGER_SCHEMA, SCHEMA}


def test_concurrent_processes_can_open_an_empty_database(
    checkout: Path, tmp_path: Path, unmigrated_postgres_url: str
) -> None:
    """Each of the processes finds the tables."""
    variables = clean(tmp_path, ADS_PIPELINE_DATABASE_URL=unmigrated_postgres_url, DAGSTER_HOME=str(checkout))
    script = "import dagster as dg\nwith dg.DagsterInstance.get() as instance: print(instance.get_runs_count())"
    with ThreadPoolExecutor(3) as pool:
        opened = [pool.submit(python, "-c", script, cwd=checkout, env=variables) for _ in range(3)]
    assert [each.result().stdout for each in opened] == ["0\n"] * 3


def test_existing_schema_needs_no_create_privilege(
    checkout: Path, tmp_path: Path, unmigrated_postgres_url: str
) -> None:
    """A role without the privilege can use the schema that was created for it."""
    engine = sa.create_engine(unmigrated_postgres_url, isolation_level="AUTOCOMMIT")
    role = f"role_{sa.make_url(unmigrated_postgres_url).database}"
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
        connection.exec_driver_sql(f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {role}")
    url = sa.make_url(unmigrated_postgres_url).set(username=role).render_as_string(hide_password=False)
    try:
        with instance_in(checkout, clean(tmp_path, ADS_PIPELINE_DATABASE_URL=url)) as instance:
            assert dg.materialize([rows], instance=instance).success
    finally:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {role} CASCADE")
            connection.exec_driver_sql(f"DROP ROLE {role}")
        engine.dispose()


def test_events_are_notified_through_psycopg2(checkout: Path, tmp_path: Path, unmigrated_postgres_url: str) -> None:
    """NOTIFY works only with this driver. The URL's own options are kept."""
    address = sa.make_url(unmigrated_postgres_url)
    url = address.update_query_dict({"options": "-c application_name=mine"}).render_as_string(hide_password=False)
    with instance_in(checkout, clean(tmp_path, ADS_PIPELINE_DATABASE_URL=url)) as instance:
        listener = psycopg2.connect(address.set(drivername="postgresql").render_as_string(hide_password=False))
        listener.autocommit = True
        with listener.cursor() as cursor:
            cursor.execute("LISTEN run_events")
            instance.report_runless_asset_event(dg.AssetMaterialization("rows"))
            cursor.execute("SELECT 1")
        listener.close()
        assert len(listener.notifies) == 1
        with instance.run_storage.connect() as connection:  # type: ignore[attr-defined] # the SQL storages' own
            assert connection.dialect.driver == "psycopg2"
            query = "SELECT current_setting('application_name'), current_setting('search_path')"
            assert connection.exec_driver_sql(query).one() == ("mine", SCHEMA)


def test_webserver_reads_the_same_records(checkout: Path, variables: dict[str, str]) -> None:
    """The additional engines of the webserver use the same schema."""
    with instance_in(checkout, variables) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("rows"))
        instance.optimize_for_webserver(statement_timeout=5000, pool_recycle=60, max_overflow=2)
        assert instance.get_runs_count() == 0
        assert instance.get_latest_materialization_event(dg.AssetKey("rows")) is not None


@pytest.mark.invariant("C3")
def test_doctor_names_invalid_customers(checkout: Path, variables: dict[str, str]) -> None:
    """It reads the customers from Dagster's records, and says which click deletes an invalid one."""
    names = ["1", "204-661-9385", "5abc"]
    with instance_in(checkout, variables) as instance:
        settings = read_settings(variables)
        with Ledger.opened(settings.database_url):
            assert find_customers(variables) == []
            instance.add_dynamic_partitions(CUSTOMERS, names)
        assert dagster_records.read_customers(settings.home, settings.postgres_url) == names
        assert dagster_records.CUSTOMERS == CUSTOMERS
        hyphens, letters = find_customers(variables)
        assert (hyphens.location, letters.location) == ("customer '204-661-9385'", "customer '5abc'")
        assert hyphens.problem.endswith("1 to 20 digits 0-9, without hyphens; this account is 2046619385")
        assert letters.problem.endswith("1 to 20 digits 0-9, without hyphens")
        assert {hyphens.next_step, letters.next_step} == {DELETE_CUSTOMER}


def find_customers(variables: dict[str, str]) -> list[Finding]:
    """The findings of doctor's check of the customers."""
    (report,) = (each for each in run_checks(variables, CHECKS, quick=True) if each.name == "customers")
    assert report.reason is None
    return list(report.findings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ADS_PIPELINE_DATABASE_URL", f"postgresql://me:{SECRET}@127.0.0.1/db"),
        ("ADS_PIPELINE_HOME", "relative"),
        ("ADS_PIPELINE_DATABSE_URL", "sqlite://"),
    ],
)
def test_invalid_setting_is_refused(checkout: Path, tmp_path: Path, name: str, value: str) -> None:
    """The message names the variable without secrets, and no record is written."""
    with pytest.raises(BadSettings) as caught, instance_in(checkout, clean(tmp_path, **{name: value})):
        pass
    assert [mistake.location for mistake in caught.value.mistakes] == [name]
    assert SECRET not in str(caught.value)
    assert files(tmp_path) == {"checkout/dagster.yaml", "checkout/workspace.yaml"}


def test_command_prints_the_mistakes_last(checkout: Path, tmp_path: Path) -> None:
    """The last lines of a Dagster command with invalid settings list the mistakes."""
    variables = clean(tmp_path, DAGSTER_HOME=str(checkout), ADS_PIPELINE_DATABASE_URL="mysql://x")
    process = python("-m", "dagster", "instance", "info", cwd=checkout, env=variables)
    assert process.returncode != 0
    assert process.stderr.splitlines()[-2:] == [
        "ads_pipeline.domain.errors.BadSettings: the settings have 1 mistake; correct and start again:",
        f"  ADS_PIPELINE_DATABASE_URL: must be {POSTGRES_FORM}",
    ]


def test_instance_has_the_configured_limits(checkout: Path, variables: dict[str, str]) -> None:
    """Dagster applies every limit of the file and prints no database URL."""
    with instance_in(checkout, variables) as instance:
        queue = instance.get_concurrency_config().run_queue_config
        assert queue is not None
        assert queue.max_concurrent_runs == 2
        assert queue.tag_concurrency_limits == [
            {"key": "ads_pipeline/query", "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
        ]
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_runtime_seconds > 0
        assert instance.run_retries_enabled
        assert not instance.run_retries_retry_on_asset_or_op_failure
        assert not instance.telemetry_enabled
        assert "postgresql" not in instance.info_str()
