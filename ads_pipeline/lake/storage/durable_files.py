"""Writes that survive a crash: whole files, new files and directories, syncing to disk.

Functions with a `parent` or `directory` parameter take an open descriptor and never follow a symbolic link below it.
New files and directories are open to their owner only, unless `leave_access_to_umask` was called.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from ads_pipeline.domain.errors import HomeReadOnly

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BUFFER_SIZE = 1 << 16
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
_OWNER_ONLY, _ANYBODY = 0o077, 0o000  # permissions that are withheld beyond those of the process's umask
_withheld = [_OWNER_ONLY]


def leave_access_to_umask(*, leave: bool = True) -> None:
    """Let the umask of this process alone decide who may open the files that this process creates from now on."""
    _withheld[0] = _ANYBODY if leave else _OWNER_ONLY


def access_mode(mode: int) -> int:
    """The mode for a new file or directory."""
    return mode & ~_withheld[0]


def create_empty_file(path: Path) -> None:
    """Create a file, unless it exists, for a library that would leave its mode to the umask.

    A file that exists is not opened: to close it would release the locks of this process on it, with which SQLite
    protects its files. https://www.sqlite.org/howtocorrupt.html#_posix_advisory_locks_canceled_by_a_separate_thread_doing_close_
    """
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, access_mode(0o666)))


@contextmanager
def atomic_write(path: Path, *, replace: bool = True, by_umask: bool = False) -> Iterator[BinaryIO]:
    """A file to write, which gets its name when the block has succeeded and its content is on disk.

    Readers see the earlier file or the whole new one. With `replace=False` an existing file stays and
    FileExistsError is raised. With `by_umask`, the umask alone decides who may read the file. Raises HomeReadOnly
    where no file can be created.
    """
    mode = 0o666 if by_umask else access_mode(0o666)
    temporary = path.with_name(f"_tmp.{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with os.fdopen(_create(temporary, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)
        sync_directory(path.parent)  # makes the new name durable
    finally:
        with suppress(OSError):
            temporary.unlink()


def _create(path: Path, mode: int) -> int:
    try:
        return os.open(path, _NEW_FILE, mode)
    except OSError as error:
        if error.errno in NOT_WRITABLE:
            raise HomeReadOnly(str(path.parent)) from error
        raise


def sync_file(path: Path) -> None:
    """Sync a file's content to disk. OSError when the path is not a plain file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path.name} is not a plain file")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Sync the names in a directory to disk."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_durable_directories(path: Path) -> None:
    """Create a directory and its missing parents, and sync each new name to disk."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(access_mode(0o777), exist_ok=True)
        sync_directory(each.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


@contextmanager
def open_directory(name: str, parent: int | None, *, follow: bool = False) -> Iterator[int]:
    """A descriptor of a directory. OSError when it is a symbolic link, unless `follow` allows one."""
    descriptor = os.open(name, _DIRECTORY if follow else _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_directory(name: str, parent: int) -> None:
    """Create a directory unless it exists, and sync its name to disk."""
    with suppress(FileExistsError):
        os.mkdir(name, access_mode(0o777), dir_fd=parent)
    os.fsync(parent)  # even if it existed: its creator may have crashed before syncing


def open_new_file(name: str, directory: int, *, buffer_size: int) -> BinaryIO:
    """A new read-only file to write. Before it is closed, `sync_open_file` makes its content durable."""
    descriptor = os.open(name, _NEW_FILE, access_mode(0o444), dir_fd=directory)
    return os.fdopen(descriptor, "wb", buffering=buffer_size)


def sync_open_file(file: BinaryIO) -> None:
    """Sync what was written to disk."""
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def create_file(name: str, directory: int) -> Iterator[BinaryIO]:
    """A new read-only file, synced to disk at the end of the block."""
    with open_new_file(name, directory, buffer_size=_BUFFER_SIZE) as file:
        yield file
        sync_open_file(file)


def sync_descriptor(descriptor: int) -> None:
    """Sync an open file or directory to disk."""
    os.fsync(descriptor)
