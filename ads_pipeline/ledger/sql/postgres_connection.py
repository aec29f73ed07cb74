"""Connections to Postgres on which no wait is without a limit.

The kernel ends a connection whose network has died: its keepalives and `tcp_user_timeout` take about 30 s. It does
not see a server that takes a statement and never answers, and the server's own `statement_timeout` does not help
then. So each statement, commit and rollback has a limit here, after which the connection is shut down.

SQLAlchemy opens these connections for URLs with `DRIVER`. Dagster's storages create their engines from such a URL.
"""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2

T = TypeVar("T")

DRIVER: Final = "postgresql+ads_pipeline"
ANSWER_SECONDS: Final = 300.0  # for one answer; a statement over a whole ledger takes a minute
SECONDS_BETWEEN_CHECKS: Final = 0.25
CHECKS_WITHOUT_WAIT: Final = 40  # after these the watching thread ends
# A silent network is noticed after 10 + 4 * 5 s while nothing is sent, and after 30 s while something is.
NETWORK_LIMITS: Final = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


class NoAnswer(psycopg2.OperationalError):
    """The server did not answer in time. It may have executed the statement."""

    def __init__(self, seconds: float) -> None:
        self.no_answer_seconds = seconds
        super().__init__(f"no answer within {seconds:g} s")


def bounded_url(url: sa.URL | str) -> sa.URL:
    """The URL with the driver whose connections have limits. Options in the URL take precedence over the limits."""
    return sa.make_url(url).set(drivername=DRIVER)


@dataclass(slots=True, eq=False)
class _Wait:
    """One wait for an answer."""

    connection: "BoundedConnection"
    until: float  # of the monotonic clock
    is_over: bool = False


class _Watch:
    """Shuts down the connections of waits that are over, in one thread of the process, which ends when none waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits = set[_Wait]()
        self._thread: threading.Thread | None = None

    def begin(self, connection: "BoundedConnection") -> _Wait:
        wait = _Wait(connection, time.monotonic() + connection.answer_seconds)
        with self._lock:
            self._waits.add(wait)
            if self._thread is None or not self._thread.is_alive():  # it is not alive in a forked process
                self._thread = threading.Thread(target=self._watch, name="postgres-answers", daemon=True)
                self._thread.start()
        return wait

    def end(self, wait: _Wait) -> None:
        with self._lock:
            self._waits.discard(wait)

    def _watch(self) -> None:
        idle = 0
        while True:
            time.sleep(SECONDS_BETWEEN_CHECKS)
            with self._lock:
                idle = 0 if self._waits else idle + 1
                if idle > CHECKS_WITHOUT_WAIT:
                    self._thread = None
                    return
                for wait in [wait for wait in self._waits if wait.until <= time.monotonic()]:
                    self._waits.discard(wait)
                    wait.is_over = True
                    _shut_down(wait.connection)


_WATCH: Final = _Watch()


class BoundedConnection(psycopg2.extensions.connection):
    """A connection that is shut down when the server does not answer within `answer_seconds`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.answer_seconds = ANSWER_SECONDS
        self.cursor_factory = BoundedCursor

    def wait_for(self, call: Callable[..., T], *arguments: Any) -> T:
        """Return what the call returns. Raises NoAnswer when the server does not answer in time."""
        wait = _WATCH.begin(self)
        try:
            return call(*arguments)
        except psycopg2.Error as error:
            if wait.is_over:
                raise NoAnswer(self.answer_seconds) from error
            raise
        finally:
            _WATCH.end(wait)

    def commit(self) -> None:
        self.wait_for(super().commit)

    def rollback(self) -> None:
        self.wait_for(super().rollback)


class BoundedCursor(psycopg2.extensions.cursor):
    """A cursor of a bounded connection. A cursor with a name asks the server for each batch of rows."""

    connection: BoundedConnection

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - the base's name
        self.connection.wait_for(super().execute, query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        self.connection.wait_for(super().executemany, query, vars_list)

    def fetchone(self) -> Any:
        return self.connection.wait_for(super().fetchone) if self.name else super().fetchone()

    def fetchmany(self, size: int | None = None) -> Any:
        size = self.arraysize if size is None else size
        return self.connection.wait_for(super().fetchmany, size) if self.name else super().fetchmany(size)

    def fetchall(self) -> Any:
        return self.connection.wait_for(super().fetchall) if self.name else super().fetchall()

    def close(self) -> None:
        if self.name and not self.connection.closed:
            self.connection.wait_for(super().close)
        else:
            super().close()


def _shut_down(connection: BoundedConnection) -> None:
    """End both directions of the connection's socket. Whoever reads from it gets the end of the stream at once."""
    with suppress(OSError, psycopg2.Error):
        own = socket.socket(fileno=connection.fileno())
        try:
            own.shutdown(socket.SHUT_RDWR)
        finally:
            own.detach()  # the driver closes it


class BoundedDialect(PGDialect_psycopg2):
    """The dialect of psycopg2, with these connections."""

    supports_statement_cache = True

    def connect(self, *cargs: Any, **cparams: Any) -> Any:
        return super().connect(*cargs, **{**NETWORK_LIMITS, "connection_factory": BoundedConnection, **cparams})


registry.register(DRIVER.replace("+", "."), __name__, BoundedDialect.__name__)
