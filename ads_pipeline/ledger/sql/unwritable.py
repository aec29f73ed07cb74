"""Opens a SQLite ledger whose file cannot be written: on a read-only mount, or by another user.

SQLite needs files beside a ledger with a write-ahead log. Where they exist, it reads them. Where they do not, the
last writer has closed the ledger, and SQLite is told that the file does not change.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ads_pipeline.domain.errors import HomeReadOnly, LedgerUnavailable

_NOT_CLOSED: Final = (
    "its ledger was not closed by the last writer, and reading it needs files beside it, such as "
    '"ads-pipeline migrate" makes there'
)


def describe(path: Path) -> tuple[str, Callable[[], None] | None]:
    """The options of a connection that only reads, and a check after each transaction.

    The check raises LedgerUnavailable when a file that should not change has changed. Raises HomeReadOnly for a
    ledger that cannot be read without writing.
    """
    if not path.exists() or (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        return "mode=rw", None
    if _log_of(path).exists():
        _require_readable(path)
        return "mode=ro", None
    return "mode=ro&immutable=1", _make_check(path)


def _require_readable(path: Path) -> None:
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        raise HomeReadOnly(str(path.parent), _NOT_CLOSED) from error
    finally:
        connection.close()


def _make_check(path: Path) -> Callable[[], None]:
    def describe_files() -> tuple[int, int, bool]:
        status = path.stat()
        return status.st_mtime_ns, status.st_size, _log_of(path).exists()

    before = describe_files()

    def check() -> None:
        if describe_files() != before:
            raise LedgerUnavailable("another machine changed the ledger while it was read")

    return check


def _log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
