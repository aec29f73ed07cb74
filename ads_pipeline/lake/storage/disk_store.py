"""`DiskStore`: a store on a disk that all machines of a deployment see at the same path."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from ads_pipeline.lake.storage.durable_files import (
    atomic_write,
    make_durable_directories,
    sync_directory,
    sync_file,
)
from ads_pipeline.lake.storage.store import Content, FileInfo

TEMPORARY = "_tmp."  # prefix of the names of files that are being written


class DiskStore:
    """Files below a directory. Symbolic links are neither listed nor followed to files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def location(self) -> str:
        return str(self.root)

    def create(self, name: str, content: Content) -> bool:
        path = self.root / name
        make_durable_directories(path.parent)
        try:
            with atomic_write(path, replace=False) as file:
                file.write(content)
        except FileExistsError:
            return False
        return True

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        return os.fdopen(os.open(self.root / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")

    def head(self, name: str) -> FileInfo | None:
        try:
            status = os.lstat(self.root / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return _describe(name, status) if stat.S_ISREG(status.st_mode) else None

    def list(self, prefix: str, after: str = "") -> Iterator[FileInfo]:
        for name in sorted(self._find_names(prefix)):
            info = self.head(name) if name > after else None
            if info is not None:
                yield info

    def has_files(self, prefix: str) -> bool:
        return any(self.head(name) is not None for name in self._find_names(prefix))

    def replace(self, name: str, content: Content) -> None:
        path = self.root / name
        make_durable_directories(path.parent)
        with atomic_write(path) as file:
            file.write(content)

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            (self.root / name).unlink()

    def make_folder(self, name: str) -> None:
        make_durable_directories(self.root / name)

    def make_durable(self, name: str) -> None:
        path = self.root / name
        sync_file(path)
        for folder in path.relative_to(self.root).parents:  # the library may have made some of them
            sync_directory(self.root / folder)

    def read_clock(self) -> float:
        with tempfile.TemporaryFile(dir=self.root, prefix=TEMPORARY) as file:
            return os.fstat(file.fileno()).st_mtime

    def require_exclusive_create(self) -> None:
        """Nothing: POSIX links a file only under a free name."""

    def delete_leftovers(self, prefix: str, age: timedelta) -> None:
        for name in list(self._find_names(prefix, temporary=True)):
            info = self.head(name)
            if info is not None and info.modified_at < self.read_clock() - age.total_seconds():
                self.delete(name)

    def _find_names(self, prefix: str, *, temporary: bool = False) -> Iterator[str]:
        for folder, _folders, files in os.walk(self.root / prefix, onerror=_raise_unless_missing):
            for file in files:
                if file.startswith(TEMPORARY) == temporary:
                    yield (Path(folder) / file).relative_to(self.root).as_posix()


def _describe(name: str, status: os.stat_result) -> FileInfo:
    return FileInfo(name=name, size=status.st_size, modified_at=status.st_mtime)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error
