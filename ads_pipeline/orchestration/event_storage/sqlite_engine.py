"""An engine for the SQLite files of Dagster's records that is kept, so that each statement is compiled once.

Dagster's own storages create an engine for every transaction.
"""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

BUSY_SECONDS: Final = 30  # as in Dagster's storages
_INHERITED: Final[list[sa.Engine]] = []  # of a parent process; SQLite forbids even to close its connections


class SqliteEngine:
    """Opens transactions on SQLite files, for one thread at a time, as Dagster's storages do.

    With `stays_open` it keeps the connection to its file until the file is deleted or replaced.
    """

    def __init__(self, *, stays_open: bool) -> None:
        self._stays_open = stays_open
        self._create()

    def _create(self) -> None:
        pool = {"poolclass": sa.QueuePool, "pool_size": 1, "max_overflow": 0} if self._stays_open else {}
        self._engine = sa.create_engine("sqlite://", creator=self._connect, **({"poolclass": sa.NullPool} | pool))
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._path = Path()
        self._file: tuple[int, int] | None = None

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=BUSY_SECONDS, check_same_thread=False)

    @contextmanager
    def transaction(self, path: Path) -> Iterator[sa.Connection]:
        """A connection to the file, in a transaction that is committed at the end of the block."""
        if self._process != os.getpid():  # after a fork
            _INHERITED.append(self._engine)
            self._create()
        with self._lock:
            self._path = path
            if self._stays_open and self._file != (file := _identify(path)):
                self._engine.dispose()
                self._file = file
            with self._engine.begin() as connection:
                yield connection

    def close(self) -> None:
        """Close the file. The next transaction opens it again."""
        if self._process == os.getpid():
            with self._lock:
                self._engine.dispose()


def _identify(path: Path) -> tuple[int, int] | None:
    """The device and the inode of the file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
