"""Where Dagster keeps its records: this checkout's `dagster.yaml`, on SQLite and on a real Postgres."""

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
from ads_pipeline.errors import BadSettings
from ads_pipeline.ledger import tables
from ads_pipeline.ledger.database import REVISION_TABLE
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.instance_storage import SCHEMA
from ads_pipeline.settings import VARIABLES
from ads_pipeline_tests.builders import key

ROOT = Path(ads_pipeline.__file__).parent.parent
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
    print("a step speaks")
    return 7


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with this checkout's two files for Dagster, in which nothing else may appear."""
    path = tmp_path / "checkout"
    path.mkdir()
    for name in ("dagster.yaml", "workspace.yaml"):
        shutil.copy(ROOT / name, path)
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def variables(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The whole environment of a process that keeps Dagster's records in SQLite, and in Postgres."""
    if request.param == "sqlite":
        return clean(tmp_path)
    return clean(tmp_path, ADS_PIPELINE_DATABASE_URL=request.getfixturevalue("unmigrated_postgres_url"))


def clean(tmp_path: Path, **variables: str) -> dict[str, str]:
    """An environment with nothing of the tests' own but what a process needs to find its code."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), **variables}


@contextmanager
def instance_in(checkout: Path, variables: dict[str, str]) -> Iterator[dg.DagsterInstance]:
    """Dagster's instance as a process with that environment opens it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        with dg.DagsterInstance.from_config(str(checkout)) as instance:
            yield instance


def python(*words: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60
    )


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def tables_of(url: str) -> set[tuple[str, str]]:
    """Every table of a Postgres database, with its schema."""
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).all()
    engine.dispose()
    return {(schema, table) for schema, table in found}


def test_another_process_reads_what_was_recorded(checkout: Path, variables: dict[str, str]) -> None:
    """A run and its events are there for the next process, and the checkout holds what it held."""
    with instance_in(checkout, variables) as instance:
        run = dg.materialize([rows], instance=instance)
    read = python("-c", READ, cwd=checkout, env=variables | {"DAGSTER_HOME": str(checkout)})
    assert read.stdout.split() == [run.run_id, "SUCCESS", run.run_id, ads_pipeline.__file__], read.stderr
    assert files(checkout) == {"dagster.yaml", "workspace.yaml"}


@pytest.mark.parametrize("home", [None, "elsewhere"])
def test_everything_is_kept_below_the_home(checkout: Path, tmp_path: Path, home: str | None) -> None:
    """Records, values and what steps print are in the home's folder for Dagster, wherever the home is."""
    variables = clean(tmp_path) | ({"ADS_PIPELINE_HOME": str(tmp_path / home)} if home else {})
    with instance_in(checkout, variables) as instance:
        run = dg.materialize([rows], instance=instance)
    folder = tmp_path / (home or ".ads_pipeline") / "dagster"
    kept = files(folder)
    assert {"history/runs.db", f"history/runs/{run.run_id}.db", "schedules/schedules.db", "storage/rows"} <= kept
    (printed,) = [name for name in kept if name.startswith("storage/") and name.endswith(".out")]
    assert (folder / printed).read_text() == "a step speaks\n"
    assert files(tmp_path) == {"checkout/dagster.yaml", "checkout/workspace.yaml"} | {
        str((folder / name).relative_to(tmp_path)) for name in kept
    }


def test_nothing_has_to_be_set(checkout: Path, tmp_path: Path) -> None:
    """In a checkout, without a DAGSTER_HOME, a Dagster command keeps what it records and leaves nothing behind."""
    code = tmp_path / "code.py"
    code.write_text("import dagster as dg\n\n@dg.asset\ndef rows():\n    return 7\n")
    command = ("-m", "dagster", "asset", "materialize", "-f", str(code), "--select", "rows")
    done = python(*command, cwd=checkout, env=clean(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in checkout.iterdir()} == {"dagster.yaml", "workspace.yaml"}
    with instance_in(checkout, clean(tmp_path)) as instance:
        assert [run.status for run in instance.get_runs()] == [dg.DagsterRunStatus.SUCCESS]


@pytest.mark.parametrize("first", ["ledger", "dagster"])
def test_the_ledger_and_dagster_share_a_database(
    checkout: Path, tmp_path: Path, unmigrated_postgres_url: str, first: str
) -> None:
    """Whichever comes first, both make their tables, both have one named runs, and both open again."""
    variables = clean(tmp_path, ADS_PIPELINE_DATABASE_URL=unmigrated_postgres_url)

    def open_ledger() -> None:
        with Ledger.opened(unmigrated_postgres_url) as ledger:
            assert ledger.runs(key()) == []

    def open_dagster() -> None:
        with instance_in(checkout, variables) as instance:
            assert instance.get_runs_count() == 0

    order = [open_ledger, open_dagster] if first == "ledger" else [open_dagster, open_ledger]
    for each in order * 2:
        each()
    found = tables_of(unmigrated_postgres_url)
    assert {table for schema, table in found if schema == "public"} == {*tables.metadata.tables, REVISION_TABLE}
    assert {(SCHEMA, "runs"), (SCHEMA, "event_logs"), (SCHEMA, "alembic_version")} <= found
    assert {schema for schema, _ in found} == {"public", SCHEMA}


def test_many_may_open_an_empty_database_at_once(
    checkout: Path, tmp_path: Path, unmigrated_postgres_url: str
) -> None:
    """Of processes that start together on an empty database, each finds the tables there."""
    variables = clean(tmp_path, ADS_PIPELINE_DATABASE_URL=unmigrated_postgres_url, DAGSTER_HOME=str(checkout))
    script = "import dagster as dg\nwith dg.DagsterInstance.get() as instance: print(instance.get_runs_count())"
    with ThreadPoolExecutor(3) as pool:
        opened = [pool.submit(python, "-c", script, cwd=checkout, env=variables) for _ in range(3)]
    assert [each.result().stdout for each in opened] == ["0\n"] * 3


def test_a_schema_that_is_there_needs_no_right_to_create_one(
    checkout: Path, tmp_path: Path, unmigrated_postgres_url: str
) -> None:
    """A role that may not create schemas keeps Dagster's records in the one that was made for it."""
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
    """The driver is the one under which Dagster's NOTIFY works, and the address's own options are kept."""
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
            said = "SELECT current_setting('application_name'), current_setting('search_path')"
            assert connection.exec_driver_sql(said).one() == ("mine", SCHEMA)


def test_the_webserver_finds_the_same_records(checkout: Path, variables: dict[str, str]) -> None:
    """The connections that the webserver makes anew read what others wrote."""
    with instance_in(checkout, variables) as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("rows"))
        instance.optimize_for_webserver(statement_timeout=5000, pool_recycle=60, max_overflow=2)
        assert instance.get_runs_count() == 0
        assert instance.get_latest_materialization_event(dg.AssetKey("rows")) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ADS_PIPELINE_DATABASE_URL", f"postgresql://me:{SECRET}@127.0.0.1/db"),
        ("ADS_PIPELINE_HOME", "relative"),
        ("ADS_PIPELINE_DATABSE_URL", "sqlite://"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(checkout: Path, tmp_path: Path, name: str, value: str) -> None:
    """No record is kept anywhere while a variable is wrong or misspelt, and the message names it without secrets."""
    with pytest.raises(BadSettings) as caught, instance_in(checkout, clean(tmp_path, **{name: value})):
        pass
    assert [mistake.location for mistake in caught.value.mistakes] == [name]
    assert SECRET not in str(caught.value)
    assert files(tmp_path) == {"checkout/dagster.yaml", "checkout/workspace.yaml"}


def test_a_command_ends_with_the_mistakes(checkout: Path, tmp_path: Path) -> None:
    """The last words of a Dagster command that met wrong settings are ours."""
    variables = clean(tmp_path, DAGSTER_HOME=str(checkout), ADS_PIPELINE_DATABASE_URL="mysql://x")
    done = python("-m", "dagster", "instance", "info", cwd=checkout, env=variables)
    assert done.returncode != 0
    assert done.stderr.splitlines()[-2:] == [
        "ads_pipeline.errors.BadSettings: the settings hold 1 mistake; mend and start again:",
        "  ADS_PIPELINE_DATABASE_URL: must start with postgresql+psycopg2://",
    ]


def test_the_instance_is_what_the_file_says(checkout: Path, variables: dict[str, str]) -> None:
    """Dagster takes every limit of the file, and shows no address when it shows itself."""
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
