"""Shared fixtures: a Postgres server, empty ledgers in Postgres and SQLite, and a local Spark session."""

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import settings
from pyspark.sql import SparkSession

from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.lake.storage.fixtures import (  # noqa: F401 - fixtures of all tests
    azure_location,
    azurite_endpoint,
    bucket_location,
    disk_location,
    s3_endpoint,
    s3_location,
    s3_variables,
    store_location,
)
from ads_pipeline_tests.ledger.builders import FakeClock
from ads_pipeline_tests.postgres_server import execute, new_database, start_postgres, url_of
from ads_pipeline_tests.processes import PROCESS_START
from ads_pipeline_tests.spark.jvm_options import prepare_jvm_options, wait_for_archive

MEMORY, MEMORY_NEEDED = Path("/dev/shm"), 4 << 30  # a file system in memory; the tests fill a quarter of that
LONG = 1_000  # seconds; a test with this limit mostly waits for Dagster's daemon, and starts first

settings.register_profile("ads_pipeline", deadline=None)  # a shared machine may be slow at any moment
settings.load_profile("ads_pipeline")


def _keep_files_in_memory() -> None:
    """Thousands of small transactions would wait for the disk. TMPDIR decides where it is set."""
    if "TMPDIR" not in os.environ and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > MEMORY_NEEDED:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


_keep_files_in_memory()


def pytest_configure(config: pytest.Config) -> None:
    """Let processes and Spark's JVMs start fast. Workers of pytest-xdist inherit the variables."""
    if not hasattr(config, "workerinput"):
        paths = os.environ.get("PYTHONPATH"), str(PROCESS_START)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if "SPARK_SUBMIT_OPTS" not in os.environ and not config.option.collectonly:
        os.environ["SPARK_SUBMIT_OPTS"] = prepare_jvm_options(jvm_directory(config))


def jvm_directory(config: pytest.Config) -> Path:
    """Where the archive of Spark's classes is. It is written while the tests are collected."""
    return config.rootpath / ".pytest_cache" / "jvm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start files with tests of minutes first, then those that use Spark: no worker runs one alone at the end.

    `--dist loadfile` runs a file in one worker, so that its fixtures are made once.
    """
    long, spark = set[Path](), set[Path]()
    for item in items:
        if (limit := item.get_closest_marker("timeout")) and limit.args[0] >= LONG:
            long.add(item.path)
        if "spark" in getattr(item, "fixturenames", ()):
            spark.add(item.path)
    items.sort(key=lambda item: (item.path not in long, item.path not in spark))


gc.disable()  # until all tests are collected


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the garbage collector skip what exists now: thousands of tests and their modules, which stay to the end."""
    gc.freeze()
    gc.enable()
    if not session.config.option.collectonly:
        wait_for_archive(jvm_directory(session.config))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Search for garbage once. pytest does it five times at the end, for resources that were not closed."""
    wait_for_archive(jvm_directory(session.config))
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real Postgres server on its own socket, with a migrated template database."""
    home = Path(tempfile.mkdtemp(prefix="pg"))  # the path of a socket must be short
    server = start_postgres(home / "data")
    try:
        url = server.get_uri(driver="psycopg2")
        # No test needs a database after a power failure. fsync takes most of the time that CREATE DATABASE takes.
        for setting in ("fsync", "full_page_writes"):
            execute(url, f"ALTER SYSTEM SET {setting} = off")
        execute(url, "SELECT pg_reload_conf()")
        execute(url, "CREATE DATABASE ledger_template")
        engine = database.open_engine(url_of(url, "ledger_template"))
        database.migrate(engine)
        engine.dispose()
        yield url
    finally:
        server.cleanup()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """A real local Spark session, whose workers can use the tests' bucket."""
    request.getfixturevalue("s3_variables")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    engine = database.open_engine(f"sqlite:///{path}")
    database.migrate(engine)
    engine.dispose()
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """An empty, migrated ledger in a SQLite file."""
    path = tmp_path / "home" / "ledger.db"
    path.parent.mkdir()
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty, migrated ledger in a Postgres database."""
    with new_database(postgres_server, "TEMPLATE ledger_template STRATEGY FILE_COPY") as url:
        yield url


@pytest.fixture
def unmigrated_postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty Postgres database without a schema."""
    with new_database(postgres_server) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty, migrated ledger, once for each database."""
    address: str = request.getfixturevalue(f"{request.param}_url")
    return address


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    with Ledger.opened(url) as opened:
        yield opened


@pytest.fixture
def opened_engines(monkeypatch: pytest.MonkeyPatch) -> list[sa.Engine]:
    """The engines that are opened on the ledger from now on."""
    opened, open_engine = list[sa.Engine](), database.open_engine

    def open_and_count(url: str, *, read_only: bool = False, answer_seconds: float | None = None) -> sa.Engine:
        opened.append(open_engine(url, read_only=read_only, answer_seconds=answer_seconds))
        return opened[-1]

    monkeypatch.setattr(database, "open_engine", open_and_count)
    return opened


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def timed_ledger(url: str, clock: FakeClock) -> Iterator[Ledger]:
    """A ledger that uses the test's clock."""
    with Ledger.opened(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def backdoor(url: str) -> Iterator[sa.Engine]:
    """A direct connection to the ledger's database, without the product's rules."""
    engine = database.open_engine(url)
    yield engine
    engine.dispose()
