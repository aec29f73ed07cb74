"""Connections to a Postgres that falls silent: every wait ends within its limit, in both pools."""

import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg2
import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerUnavailable
from ads_pipeline.ledger.sql import database, postgres_connection
from ads_pipeline.ledger.sql.postgres_connection import NETWORK_LIMITS, bounded_url
from ads_pipeline.ledger.write_steps import leases
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.orchestration.runs.lost_lease import EXIT_CODE, end_on_loss
from ads_pipeline_tests.black_hole import BlackHole, black_hole_before
from ads_pipeline_tests.orchestration.builders import open_instance

LIMIT = 2.0  # seconds for an answer
PATIENT = 10.0  # seconds, where statements of Dagster must pass on a busy machine
MARGIN = 60.0  # seconds that a busy machine may need in addition


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[BlackHole]:
    with black_hole_before(postgres_url) as opened:
        yield opened


@pytest.fixture
def engine(proxy: BlackHole, postgres_url: str) -> Iterator[sa.Engine]:
    opened = database.open_engine(proxy.url(postgres_url), answer_seconds=LIMIT)
    yield opened
    opened.dispose()


def read_one(connection: sa.Connection) -> object:
    return connection.execute(sa.text("SELECT 1")).scalar()


@pytest.mark.invariant("L5")
def test_statement_without_an_answer_ends_at_its_limit(engine: sa.Engine, proxy: BlackHole) -> None:
    """The connection was used before. When the server answers again, so does the pool."""
    assert database.transact(engine, read_one) == 1
    proxy.swallows.set()
    started = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=r"did not answer within 2 s"):
        database.transact(engine, read_one)
    assert LIMIT <= time.monotonic() - started < LIMIT + MARGIN
    proxy.swallows.clear()
    assert database.transact(engine, read_one) == 1


@pytest.mark.invariant("L5")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_end_of_a_transaction_without_an_answer_ends_at_its_limit(
    engine: sa.Engine, proxy: BlackHole, end: str
) -> None:
    """Whether the transaction was committed is unknown then. One that is rolled back shows its own error first."""

    def work(connection: sa.Connection) -> None:
        read_one(connection)
        proxy.swallows.set()
        if end == "rollback":
            raise KeyError("of the caller")

    started = time.monotonic()
    with pytest.raises(LedgerUnavailable, match=r"did not answer within 2 s") as raised:
        database.transact(engine, work)
    assert LIMIT <= time.monotonic() - started < LIMIT + MARGIN
    assert end == "commit" or isinstance(_first_of(raised.value), KeyError)


def _first_of(error: BaseException) -> BaseException:
    """The error during whose handling the others were raised."""
    while error.__context__ is not None:
        error = error.__context__
    return error


@pytest.mark.invariant("L5")
def test_next_rows_without_an_answer_end_at_their_limit(engine: sa.Engine, proxy: BlackHole) -> None:
    """A result that does not fit in memory is read in parts."""

    def work(connection: sa.Connection) -> None:
        rows = connection.execute(sa.text("SELECT generate_series(1, 100000)"), execution_options={"yield_per": 10})
        assert next(iter(rows))[0] == 1
        proxy.swallows.set()
        rows.all()

    with pytest.raises(LedgerUnavailable, match=r"did not answer within 2 s"):
        database.transact(engine, work)


def test_answer_within_the_limit_is_not_disturbed(engine: sa.Engine) -> None:
    """Each statement has its own limit: together they may take longer. Another limit can be set for a while."""

    def sleep_twice(connection: sa.Connection) -> object:
        for _ in range(2):
            connection.execute(sa.text("SELECT pg_sleep(1.2)"))
        return read_one(connection)

    assert database.transact(engine, sleep_twice) == 1
    with pytest.raises(LedgerUnavailable, match=r"within 0\.5 s"):
        database.transact(database.answering_within(engine, 0.5), sleep_twice)
    assert database.transact(engine, sleep_twice) == 1


def read_network_limits(connection: Any) -> dict[str, int]:
    """The limits that the kernel has for the connection."""
    options = {
        "keepalives": (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        "keepalives_idle": (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
        "keepalives_interval": (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
        "keepalives_count": (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
        "tcp_user_timeout": (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
    }
    own = socket.socket(fileno=connection.fileno())
    try:
        return {name: own.getsockopt(*option) for name, option in options.items()}
    finally:
        own.detach()


@pytest.mark.invariant("L5")
@pytest.mark.parametrize("pool", ["ledger", "dagster"])
def test_kernel_ends_a_connection_whose_network_died(
    proxy: BlackHole, postgres_url: str, engine: sa.Engine, tmp_path: Path, pool: str
) -> None:
    """Keepalives and the limit for unacknowledged data are set in both pools, at about 30 s."""
    expected = {name: value for name, value in NETWORK_LIMITS.items() if name != "connect_timeout"}
    if pool == "ledger":
        with engine.connect() as connection:
            assert read_network_limits(connection.connection.dbapi_connection) == expected
        return
    with open_instance(tmp_path, postgres_url=proxy.url(postgres_url)) as instance:
        storages: list[Any] = [instance.run_storage, instance.schedule_storage, instance.event_log_storage]
        opened = [storage.connect() for storage in storages[:2]] + [storages[2].index_connection()]
        for each in opened:
            with each as connection:
                assert read_network_limits(connection.connection.dbapi_connection) == expected


def test_option_of_the_url_takes_precedence(proxy: BlackHole, postgres_url: str) -> None:
    """A user whose network is slow can choose other limits."""
    url = bounded_url(proxy.url(postgres_url)).update_query_dict({"keepalives_idle": "77"})
    opened = sa.create_engine(url)
    with opened.connect() as connection:
        assert read_network_limits(connection.connection.dbapi_connection)["keepalives_idle"] == 77
    opened.dispose()


@pytest.mark.invariant("L5")
def test_dagsters_storage_gets_its_answer_within_the_limit(
    proxy: BlackHole, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a daemon whose database falls silent goes on, and so does the end of a run."""
    with open_instance(tmp_path, postgres_url=proxy.url(postgres_url)) as instance:
        monkeypatch.setattr(postgres_connection, "ANSWER_SECONDS", PATIENT)
        monkeypatch.setitem(NETWORK_LIMITS, "connect_timeout", 2)
        instance.optimize_for_webserver(statement_timeout=60_000, pool_recycle=600, max_overflow=1)
        calls: list[Callable[[], object]] = [
            instance.get_runs,
            instance.all_instigator_state,
            lambda: instance.get_latest_materialization_event(dg.AssetKey("x")),
        ]
        for call in calls:
            call()
        proxy.swallows.set()
        for call in calls:
            started = time.monotonic()
            with pytest.raises(Exception, match=r"no answer within|too many retries|timeout|closed"):
                call()
            assert time.monotonic() - started < 6 * PATIENT + MARGIN
        proxy.swallows.clear()
        for call in calls:
            call()


def hold_lease(url: str, seconds: float, ready: Any) -> None:
    """A run in a process of its own: it holds a lease, until it waits for an answer."""
    engine = database.open_engine(url)
    lease = Lease.held(engine, "run", duration=timedelta(seconds=seconds), on_loss=end_on_loss())
    with lease:
        ready.set()
        database.transact(engine, lambda connection: connection.execute(sa.text("SELECT pg_sleep(600)")))


@pytest.mark.invariant("L5", "L6")
def test_run_that_cannot_renew_its_lease_ends_itself(proxy: BlackHole, postgres_url: str) -> None:
    """The database takes everything and answers nothing. After the length of the lease the process is gone."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=hold_lease, args=(proxy.url(postgres_url), 6.0, ready))
    process.start()
    assert ready.wait(120)
    proxy.swallows.set()
    process.join(6 + MARGIN)
    assert process.exitcode == EXIT_CODE


@pytest.mark.invariant("L6")
def test_run_whose_lease_was_ended_ends_itself(postgres_url: str) -> None:
    """The sensor `run_completion` closed it. Nothing that it writes would be accepted."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    process = spawn.Process(target=hold_lease, args=(postgres_url, 20.0, ready))
    process.start()
    assert ready.wait(120)
    engine = database.open_engine(postgres_url)
    Lease(engine, "run", duration=timedelta(seconds=20)).end()
    engine.dispose()
    process.join(20 + MARGIN)
    assert process.exitcode == EXIT_CODE


@pytest.mark.invariant("L5")
def test_end_of_a_run_does_not_wait_for_its_threads(
    engine: sa.Engine, proxy: BlackHole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that renews the lease waits for the database; the run leaves it behind."""
    monkeypatch.setattr(leases, "SECONDS_TO_STOP", 0.5)
    monkeypatch.setattr(leases, "RENEWALS_PER_LEASE", 480)  # one in half a second
    lease = Lease(engine, "run", duration=timedelta(seconds=240))
    lease.open()
    with leases.renewing(lease):
        proxy.swallows.set()
        time.sleep(1.5)
        started = time.monotonic()
    assert time.monotonic() - started < MARGIN
    assert "lease" in {thread.name for thread in threading.enumerate()}


def test_run_in_a_process_of_its_callers_is_not_ended() -> None:
    """A notebook that executes a run in its own process goes on when the lease is lost."""
    assert end_on_loss() is None


def test_driver_names_the_servers_error(engine: sa.Engine) -> None:
    """Only a passed limit is told as one; any other error of the database stays as it is."""
    with engine.connect() as connection, pytest.raises(sa.exc.ProgrammingError) as raised:
        connection.execute(sa.text("SELECT * FROM nowhere"))
    assert isinstance(raised.value.orig, psycopg2.errors.UndefinedTable)


def test_time_of_the_database_is_read(engine: sa.Engine) -> None:
    """The driver's types are those of psycopg2."""
    found = database.transact(engine, lambda connection: connection.execute(sa.text("SELECT now()")).scalar())
    assert isinstance(found, datetime)
    assert abs(found - datetime.now(UTC)) < timedelta(hours=1)
