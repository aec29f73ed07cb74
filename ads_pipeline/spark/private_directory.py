"""A temporary directory of this process that other users cannot enter, for the files of its JVM.

The process locks its directory, so that a later process can tell one whose process was killed, and removes it.
"""

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

PREFIX: Final = "ads-pipeline-spark-"
SECONDS_TO_LOCK: Final = 60.0  # a younger directory may belong to a process that has not locked it yet
_LOCKS: Final = list[int]()  # open until the process ends


@cache
def private_directory() -> Path:
    """The directory of this process. It is removed when the process ends, or by the next one after a kill."""
    directory, lock = _make()
    if lock is not None:
        _LOCKS.append(lock)
    atexit.register(remove_private_directory)
    return directory


@contextmanager
def short_lived_directory() -> Iterator[Path]:
    """Such a directory for a block. It is removed at its end, or by a later process after a kill."""
    directory, lock = _make()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_private_directory() -> None:
    """Remove the directory of this process, if it has one. A process that ends without atexit calls this itself."""
    if private_directory.cache_info().currsize:
        shutil.rmtree(private_directory(), ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of this user whose processes have died. On Windows they stay.

    Each process that makes such a directory calls this first, and so does the nightly job `maintenance`.
    """
    if not hasattr(os, "geteuid"):
        return
    youngest = time.time() - SECONDS_TO_LOCK
    for directory in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another process removes it as well
            status = directory.lstat()
            if status.st_uid == os.geteuid() and status.st_mtime < youngest and not directory.is_symlink():
                _remove_if_unlocked(directory)


def _make() -> tuple[Path, int | None]:
    """A new directory that only its owner may enter, and its lock."""
    parent = Path(tempfile.gettempdir())
    remove_abandoned(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    return directory, _lock(directory)


def _remove_if_unlocked(directory: Path) -> None:
    lock = _lock(directory)
    if lock is None:
        return
    try:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(directory: Path) -> int | None:
    """Lock a directory; None when another process holds the lock, or the system has no locks."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
