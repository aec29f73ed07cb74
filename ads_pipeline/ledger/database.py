"""Opens the ledger's database and keeps every difference between SQLite and Postgres.

Which statements are run is for `reader` and `writer` to say; they are the same for both.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy as sa
import tenacity
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from ads_pipeline.errors import LedgerOutdated, LedgerRefused, LedgerUnavailable
from ads_pipeline.ledger.control import tables
from ads_pipeline.quoting import printable

T = TypeVar("T")

BUSY_SECONDS: Final = 30
MIGRATION_LOCK: Final = 0x616473  # any constant that only this product's migrations take
REVISION_TABLE: Final = "ledger_revision"
METADATA: Final = tables.leases.metadata  # with every table in it
ONLY_READS: Final = "only_reads"  # an option of connections through which a writer reads while others write
OLDEST_SQLITE: Final = (3, 38, 0)  # STRICT tables, UPDATE … FROM and JSON functions

# SQLSTATEs after which the same transaction may simply be tried again. Every write of the ledger is keyed, so that is
# also the cure when a connection breaks during COMMIT and nobody knows whether it took place.
_SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_SQLITE_OUTAGE = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)
_TRY_AGAIN_STATES = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53300")


class Overtaken(Exception):
    """Another transaction wrote first what this one had read without a lock. It is tried again, and never escapes."""


def open_engine(url: str, *, read_only: bool = False) -> sa.Engine:
    """An engine on the ledger; with read_only the database itself refuses every write made through it."""
    if sa.make_url(url).get_backend_name() == "sqlite":
        return _open_sqlite(url, read_only=read_only)
    options = {
        "timezone": "UTC",
        "lock_timeout": f"{BUSY_SECONDS}s",
        "idle_in_transaction_session_timeout": "60s",  # a stuck holder would stall everyone behind its locks
        "plan_cache_mode": "force_generic_plan",  # every prepared statement looks rows up by key
        "default_transaction_read_only": "on" if read_only else "off",
    }
    return sa.create_engine(
        url,
        hide_parameters=True,
        connect_args={
            "application_name": "ads_pipeline",
            "connect_timeout": 10,
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
        },
    )


def _open_sqlite(url: str, *, read_only: bool) -> sa.Engine:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise LedgerUnavailable(f"SQLite {sqlite3.sqlite_version} is too old, the ledger needs {wanted} or newer")
    path = Path(sa.make_url(url).database or "")
    if not read_only:
        _create_folder(path.parent)
    mode = "rw" if read_only else "rwc"  # a reader must not make an empty ledger where it looked for one
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
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
            f"query_only = {'ON' if read_only else 'OFF'}",
        ):
            connection.execute(f"PRAGMA {pragma}")

    # A deferred transaction that reads first cannot be upgraded once another has written: it fails at once, whatever
    # the busy timeout. So a writer takes the lock before it reads.
    @sa.event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        only_reads = read_only or connection.get_execution_options().get(ONLY_READS)
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")

    return engine


def _create_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LedgerUnavailable(f"the ledger's folder cannot be created: {error.strerror}") from error


def display_url(url: str) -> str:
    """The URL for messages, without its password and options. Raises ValueError when it is malformed."""
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise ValueError("not a database URL") from None  # the cause repeats a part of the URL
    shown = sa.URL.create(parsed.drivername, parsed.username, None, parsed.host, parsed.port, parsed.database)
    return printable(shown.render_as_string())


def transact(engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
    """Run the work in one transaction; again, a bounded number of times, when it only met others at the wrong moment.

    The work must be safe to run twice: a commit whose acknowledgement was lost may have taken place.
    """

    def once() -> T:
        with engine.begin() as connection:
            return work(connection)

    try:
        return _TRIES(once)
    except sa.exc.DBAPIError as error:
        raise translated(error) from error
    except Overtaken as error:
        raise LedgerUnavailable("the ledger's database is busy: others kept writing first") from error


def hold_still(connection: sa.Connection) -> None:
    """Let all reads of this transaction see one moment. Before its first statement; in SQLite they do anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose reads all see one moment, for answers that are too long to be held in memory."""
    try:
        with engine.connect().execution_options(**{ONLY_READS: True}) as connection:
            hold_still(connection)
            yield connection
    except sa.exc.DBAPIError as error:
        raise translated(error) from error


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection whose one transaction commits at the end of the block; unlike `transact`, it is not retried."""
    try:
        with engine.begin() as connection:
            yield connection
    except sa.exc.DBAPIError as error:
        raise translated(error) from error


def may_be_tried_again(error: BaseException) -> bool:
    """Whether the same transaction may succeed in a moment, or may even have succeeded already."""
    if not isinstance(error, sa.exc.DBAPIError):
        return isinstance(error, Overtaken)
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite_code(error.orig) in _SQLITE_BUSY
    return error.connection_invalidated or getattr(error.orig, "pgcode", None) in _TRY_AGAIN_STATES


_TRIES: Final = tenacity.Retrying(
    retry=tenacity.retry_if_exception(may_be_tried_again),
    wait=tenacity.wait_random_exponential(multiplier=0.02, max=2),
    stop=tenacity.stop_after_attempt(8) | tenacity.stop_after_delay(2 * BUSY_SECONDS),
    reraise=True,
)


def translated(error: sa.exc.DBAPIError) -> LedgerUnavailable | LedgerRefused:
    """The library's error as one of ours. Neither message repeats a statement's values or the address."""
    original = error.orig
    said = printable(str(original).strip().partition("\n")[0])
    if isinstance(original, sqlite3.Error):
        outage = _sqlite_code(original) in _SQLITE_BUSY + _SQLITE_OUTAGE
    else:
        state = getattr(original, "pgcode", None)
        outage = may_be_tried_again(error) or (state is None and isinstance(error, sa.exc.OperationalError))
        said = said if state else "no connection"  # a failed connection's message tells host and user
    if outage:
        return LedgerUnavailable(f"the ledger's database is busy or out of reach: {said}")
    return LedgerRefused(f"the ledger's database refused a statement that should not have been tried: {said}")


def _sqlite_code(error: sqlite3.Error) -> int:
    """The primary result code; the upper bits only tell variants of it apart."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def migrate(engine: sa.Engine) -> None:
    """Bring the schema to this release's revision. Safe to run again, and by many at once.

    LedgerOutdated for a ledger of a release that this one does not know: there is no way back.
    """

    def upgrade(connection: sa.Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
        config = _alembic()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")

    try:
        transact(engine, upgrade)
    except CommandError as error:
        raise LedgerOutdated(*revisions(engine)) from error


def upgrade(url: str) -> tuple[str | None, str]:
    """Migrate the database at this URL; its revision before and after."""
    engine = open_engine(url)
    try:
        before, after = revisions(engine)
        migrate(engine)
    finally:
        engine.dispose()
    return before, after


def revisions(engine: sa.Engine) -> tuple[str | None, str]:
    """The schema's revision, and the one this release writes."""

    def found(connection: sa.Connection) -> str | None:
        return MigrationContext.configure(connection, opts={"version_table": REVISION_TABLE}).get_current_revision()

    return transact(engine, found), newest_revision()


def newest_revision() -> str:
    """The revision that this release writes."""
    return str(ScriptDirectory.from_config(_alembic()).get_current_head())


def _alembic() -> Config:
    config = Config()
    config.set_main_option("script_location", "ads_pipeline.ledger:migrations")
    return config


@contextmanager
def opened(url: str, *, read_only: bool = False) -> Iterator[sa.Engine]:
    """An engine on a ledger of this release's revision, closed at the end of the block.

    A writer finds an empty database and makes the ledger in it. An older ledger is never migrated by the way.
    """
    engine = open_engine(url, read_only=read_only)
    try:
        found, wanted = revisions(engine)
        if found is None and not read_only:
            migrate(engine)
        elif found != wanted:
            raise LedgerOutdated(found, wanted)
        yield engine
    finally:
        engine.dispose()


def grant_reading(engine: sa.Engine, role: str) -> None:
    """Let a Postgres role read the ledger and nothing more: for loaders, sensors and whoever else only asks."""
    quoted_role = engine.dialect.identifier_preparer.quote_identifier(role)

    def grant(connection: sa.Connection) -> None:
        for table in METADATA.sorted_tables:
            connection.exec_driver_sql(f"GRANT SELECT ON {table.name} TO {quoted_role}")
        connection.exec_driver_sql(f"GRANT SELECT ON {REVISION_TABLE} TO {quoted_role}")

    transact(engine, grant)
