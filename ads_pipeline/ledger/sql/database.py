"""Opens the ledger's database: engines, transactions, errors and migrations, on SQLite and Postgres.

`statements` has the form of the SQL statements. They stand in the folders of the ledger, beside their callers.
"""

import errno
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar, overload

import sqlalchemy as sa
import tenacity

from ads_pipeline.domain.errors import HomeReadOnly, LedgerOutdated, LedgerRefused, LedgerUnavailable
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.storage.durable_files import NOT_WRITABLE, create_empty_file, make_durable_directories
from ads_pipeline.ledger.sql import unwritable
from ads_pipeline.ledger.sql.ledger_tables import instant_text, metadata

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")

BUSY_SECONDS: Final = 30
Engine = sa.Engine  # for callers that only pass it on
MIGRATION_LOCK: Final = 0x616473  # any constant that no other advisory lock uses
REVISION_TABLE: Final = "ledger_revision"
REVISION: Final = "0001"  # of this release: the newest one of `migrations`
METADATA: Final = metadata  # with every table of the ledger
SCHEMA: Final = "ads_pipeline"  # in Postgres, where Dagster and other projects may use the same database
READ_ONLY: Final = "read_only"  # an execution option of `read_only`
ANSWER: Final = "answer_seconds"  # an execution option of `answering_within`
# Of a connection. With SQLite's 2 MiB, a transaction over thousands of partitions reads and writes pages repeatedly.
SQLITE_CACHE_KIB: Final = 65_536
OLDEST_SQLITE: Final = (3, 39, 0)  # STRICT tables, JSON functions and IS DISTINCT FROM

# SQLSTATEs after which the same transaction is retried. Every write of the ledger is idempotent, so a retry is also
# right when the connection breaks during COMMIT and the outcome is unknown.
_SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SQLITE_OUTAGE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)
_RETRYABLE_STATES = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300")


class ConcurrentWrite(Exception):
    """Another transaction changed a row that this one had read without a lock. `transact` retries it."""


class OpenTransaction:
    """A transaction that has begun. Everything that is given it in place of an engine reads in it."""

    def __init__(self, connection: sa.Connection) -> None:
        self.connection, self.dialect = connection, connection.dialect


Reading = sa.Engine | OpenTransaction  # all that reading needs: `transact` begins a transaction only on an engine


def open_engine(url: str, *, read_only: bool = False, answer_seconds: float | None = None) -> sa.Engine:
    """An engine on the ledger. With read_only, the database refuses every write.

    LedgerUnavailable is raised when Postgres does not answer a statement within `answer_seconds`, by default 300.
    """
    if sa.make_url(url).get_backend_name() == "sqlite":
        return _open_sqlite(url, read_only=read_only)
    return _open_postgres(url, read_only=read_only, answer_seconds=answer_seconds)


def _open_postgres(url: str, *, read_only: bool, answer_seconds: float | None) -> sa.Engine:
    from ads_pipeline.ledger.sql.postgres_connection import ANSWER_SECONDS, bounded_url  # noqa: PLC0415 - loads the driver

    options = {
        "search_path": SCHEMA,
        "timezone": "UTC",
        "lock_timeout": f"{BUSY_SECONDS}s",
        "idle_in_transaction_session_timeout": "60s",  # a stuck process would block all others with its locks
        "plan_cache_mode": "force_generic_plan",  # every prepared statement looks up rows by key
        "default_transaction_read_only": "on" if read_only else "off",
    }
    engine = sa.create_engine(
        bounded_url(url),
        hide_parameters=True,
        use_native_hstore=False,  # a query for each connection, about a type that the ledger has not
        connect_args={
            "application_name": "ads_pipeline",
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        },
    )

    @sa.event.listens_for(engine, "begin")
    def _limit(connection: sa.Connection) -> None:
        driver_connection: Any = connection.connection.dbapi_connection
        limit = connection.get_execution_options().get(ANSWER, answer_seconds)
        driver_connection.answer_seconds = ANSWER_SECONDS if limit is None else limit

    return engine


def _open_sqlite(url: str, *, read_only: bool) -> sa.Engine:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise LedgerUnavailable(f"SQLite {sqlite3.sqlite_version} is too old; the ledger needs {oldest} or newer")
    path = Path(sa.make_url(url).database or "")
    if not read_only:
        _create_file(path)
    options, check_unchanged = unwritable.describe(path) if read_only else ("mode=rw", None)
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        ),
        poolclass=sa.QueuePool,
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: sqlite3.Connection, _record: object) -> None:
        for pragma in (
            *(() if read_only else ("journal_mode = WAL",)),
            "synchronous = FULL",  # NORMAL may lose the last commits in a power cut
            "foreign_keys = ON",
            f"cache_size = -{SQLITE_CACHE_KIB}",
        ):
            connection.execute(f"PRAGMA {pragma}")
        connection.create_function("clock_text", 1, _read_clock)

    # A deferred transaction that has read fails at its first write when another one has written meanwhile, without
    # waiting for the busy timeout. So a writer takes the write lock before it reads.
    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        is_reading = read_only or connection.get_execution_options().get(READ_ONLY, False)
        if connection.info.get(READ_ONLY) is not is_reading:  # the pragma makes SQLite prepare every statement again
            connection.exec_driver_sql(f"PRAGMA query_only = {'ON' if is_reading else 'OFF'}")
            connection.info[READ_ONLY] = is_reading
        connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")

    if check_unchanged is not None:
        sa.event.listen(engine, "commit", lambda _connection: check_unchanged())
    return engine


def _read_clock(seconds_ahead: float) -> str:
    """The clock for SQLite, in microseconds. Its own has milliseconds, and two actions can take less than one."""
    return instant_text(datetime.now(UTC) + timedelta(seconds=seconds_ahead))


@overload
def read_only(engine: sa.Engine) -> sa.Engine: ...
@overload
def read_only(engine: OpenTransaction) -> OpenTransaction: ...
def read_only(engine: Reading) -> Reading:
    """The same engine with its connections, on which the database refuses writes. SQLite takes no write lock."""
    if isinstance(engine, OpenTransaction):
        return engine
    return engine.execution_options(**{READ_ONLY: True, "postgresql_readonly": True})


def answering_within(engine: sa.Engine, seconds: float) -> sa.Engine:
    """The same engine with its connections, on which Postgres has so many seconds for each answer."""
    return engine.execution_options(**{ANSWER: seconds})


def _create_file(path: Path) -> None:
    """Create the ledger's file. SQLite gives the files beside it the same mode."""
    try:
        make_durable_directories(path.parent)
        create_empty_file(path)
        if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):  # also for the files beside it
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        if error.errno in NOT_WRITABLE:
            raise HomeReadOnly(str(path.parent)) from error
        raise LedgerUnavailable(f"the ledger's file cannot be created: {error.strerror}") from error


def display_url(url: str) -> str:
    """A valid URL for messages, without its password and options."""
    parsed = sa.make_url(url)
    shown = sa.URL.create(parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database)
    return printable(shown.render_as_string())


def transact(engine: Reading, work: Callable[[sa.Connection], T]) -> T:
    """Run the work in one transaction. Retries a bounded number of times after conflicts and lost connections.

    The work must be idempotent: a commit whose acknowledgement was lost may have happened.
    """
    if isinstance(engine, OpenTransaction):  # the transaction that it is a part of is retried
        return work(engine.connection)

    def run_once() -> T:
        with engine.begin() as connection:
            return work(connection)

    try:
        with _translated_errors():
            return _RETRYING(run_once)
    except ConcurrentWrite as error:
        raise LedgerUnavailable(
            "the ledger's database is busy: concurrent writes kept changing the same rows"
        ) from error


def fetch(engine: Reading, statement: sa.Executable) -> Sequence[sa.Row[Any]]:
    """Return the rows of a query, in a transaction of its own."""
    return transact(engine, lambda connection: connection.execute(statement).all())


def read_at_once(engine: Reading, work: Callable[[OpenTransaction], T]) -> T:
    """Run reads in one transaction that sees one moment. They are retried."""
    if isinstance(engine, OpenTransaction):
        return work(engine)

    def read(connection: sa.Connection) -> T:
        use_one_snapshot(connection)
        return work(OpenTransaction(connection))

    return transact(read_only(engine), read)


def use_one_snapshot(connection: sa.Connection) -> None:
    """Let all reads of this transaction see one moment. Call it before the first statement; SQLite does so anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@contextmanager
def open_snapshot(engine: Reading) -> Iterator[sa.Connection]:
    """A connection whose reads all see one moment, for results that do not fit in memory."""
    if isinstance(engine, OpenTransaction):
        yield engine.connection
        return
    with _translated_errors(), read_only(engine).connect() as connection:
        use_one_snapshot(connection)
        yield connection


@contextmanager
def open_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection with one transaction, committed at the end of the block. It is not retried, unlike `transact`."""
    with _translated_errors(), engine.begin() as connection:
        yield connection


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Errors of the library as errors of the ledger.

    A failed connection has no cause, because the driver may quote parts of the URL.
    """
    try:
        yield
    except sa.exc.DBAPIError as error:
        is_shown = isinstance(error.orig, sqlite3.Error) or getattr(error.orig, "pgcode", None)
        raise _translate_error(error) from error if is_shown else None


def is_retryable(error: BaseException) -> bool:
    """Return true when a retry of the same transaction may succeed. It may also have been committed already."""
    if not isinstance(error, sa.exc.DBAPIError):
        return isinstance(error, ConcurrentWrite)
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in _SQLITE_BUSY
    if _find_limit(error) is not None:  # the next wait would be as long
        return False
    return error.connection_invalidated or getattr(error.orig, "pgcode", None) in _RETRYABLE_STATES


def _find_limit(error: sa.exc.DBAPIError) -> float | None:
    """The seconds within which Postgres did not answer, if that was the error."""
    seconds: float | None = getattr(error.orig, "no_answer_seconds", None)
    return seconds


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome and state.outcome.exception()
    log_event(_LOG, LogEvent.TRANSACTION_RETRIED, attempt=state.attempt_number, error=type(error).__name__)


_RETRYING: Final = tenacity.Retrying(
    retry=tenacity.retry_if_exception(is_retryable),
    wait=tenacity.wait_random_exponential(multiplier=0.02, max=2),
    before_sleep=_log_retry,
    stop=tenacity.stop_after_attempt(8) | tenacity.stop_after_delay(2 * BUSY_SECONDS),
    reraise=True,
)


def _translate_error(error: sa.exc.DBAPIError) -> LedgerUnavailable | LedgerRefused:
    """The library's error as an error of the ledger. The message contains no statement values and no URL."""
    original, limit = error.orig, _find_limit(error)
    if limit is not None:
        return LedgerUnavailable(f"the ledger's database did not answer within {limit:g} s")
    message = printable(str(original).strip().partition("\n")[0])
    if isinstance(original, sqlite3.Error):
        outage = _sqlite_code(original) in _SQLITE_BUSY + _SQLITE_OUTAGE
    else:
        state = getattr(original, "pgcode", None)
        outage = is_retryable(error) or (state is None and isinstance(error, sa.exc.OperationalError))
        message = message if state else "no connection"  # the driver's message names host and user
    if outage:
        return LedgerUnavailable(f"the ledger's database is busy or unreachable: {message}")
    return LedgerRefused(f"the ledger's database refused a statement: {message}")


def _sqlite_code(error: sqlite3.Error) -> int:
    """The primary result code. The upper bits hold the extended code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def migrate(engine: sa.Engine) -> None:
    """Create the schema, or upgrade it to this release's revision. Safe to repeat, and to run concurrently.

    Raises LedgerOutdated when the revision is unknown to this release. There are no downgrades.
    """

    from ads_pipeline.ledger.sql import revisions  # noqa: PLC0415 - it loads Alembic, which only a migration needs

    def create_and_upgrade(connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            if not sa.inspect(connection).has_schema(SCHEMA):  # creating it needs a right that its owner may lack
                connection.execute(sa.schema.CreateSchema(SCHEMA))
        revisions.run_revisions(connection)

    try:
        transact(engine, create_and_upgrade)
    except revisions.UnknownRevision as error:
        raise LedgerOutdated(*read_revisions(engine)) from error


def upgrade(url: str) -> tuple[str | None, str]:
    """Migrate the database. Returns its revision before and after."""
    engine = open_engine(url)
    try:
        before, after = read_revisions(engine)
        migrate(engine)
    finally:
        engine.dispose()
    return before, after


def read_revisions(engine: sa.Engine) -> tuple[str | None, str]:
    """The revision of the database, and the revision of this release."""

    def read(connection: sa.Connection) -> str | None:
        if not sa.inspect(connection).has_table(REVISION_TABLE):
            return None
        return connection.execute(sa.text(f"SELECT version_num FROM {REVISION_TABLE}")).scalar()

    return transact(engine, read), REVISION


@contextmanager
def open_checked_engine(
    url: str, *, read_only: bool = False, create: bool = True, answer_seconds: float | None = None
) -> Iterator[sa.Engine]:
    """An engine on a ledger of this release's revision, disposed at the end of the block.

    A process opens one, and hands it to everything that uses the ledger. With `create`, a writer creates the schema
    in an empty database. Raises LedgerOutdated for any other revision.
    """
    engine = open_engine(url, read_only=read_only, answer_seconds=answer_seconds)
    try:
        found, expected = read_revisions(engine)
        if found is None and create and not read_only:
            migrate(engine)
        elif found != expected:
            raise LedgerOutdated(found, expected)
        yield engine
    finally:
        engine.dispose()
