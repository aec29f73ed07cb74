"""`Store`: files below one root, on a disk or in a bucket. Everything that other packages know of durable storage.

A store is found by its location, a path or a URL without credentials, which is the same on every machine. Credentials
come from the environment of the process that opens it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from mmap import mmap
from typing import BinaryIO, Protocol

Content = bytes | memoryview | mmap  # a mapped file is written without being copied to memory


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file in a store. `name` is relative to the store's root, with "/" between its parts."""

    name: str
    size: int
    modified_at: float  # seconds since 1970 by the store's clock


class Store(Protocol):
    """Files below one root. Every failure of a store is an OSError; a missing file is FileNotFoundError."""

    @property
    def location(self) -> str:
        """The argument of `open_store`."""
        ...

    def create(self, name: str, content: Content) -> bool:
        """Write a new file, which survives a crash. False when the name is taken; then nothing was written.

        True when this call created the file, even if the answer to its first try was lost. After an OSError, the file
        may exist or appear later, with this content as a whole.
        """
        ...

    def read(self, name: str) -> bytes:
        """The whole content."""
        ...

    def open(self, name: str) -> BinaryIO:
        """The file, to read whole or in parts, from its start or after a seek. Of a later content, none is read."""
        ...

    def head(self, name: str) -> FileInfo | None:
        """Size and age of a file; None when there is none."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[FileInfo]:
        """The files below a folder, at any depth, in order of their names. A missing folder has no files.

        With `after`, only files whose names follow it are listed; S3 and Google Cloud Storage begin there.

        A bucket is listed while the caller iterates, in the order of its service, which is that of the names in S3,
        Google Cloud Storage and Azure. (Azure with hierarchical namespaces orders by the names of folders first.)
        """
        ...

    def has_files(self, prefix: str) -> bool:
        """True if there is a file below a folder, at any depth."""
        ...

    def replace(self, name: str, content: Content) -> None:
        """Write a file, or replace its content as a whole. Readers see the old content or the new one."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file. Does nothing when it is missing."""
        ...

    def make_folder(self, name: str) -> None:
        """Make a folder in which a library will write. A bucket needs none."""
        ...

    def make_durable(self, name: str) -> None:
        """Make a file that a library wrote survive a crash."""
        ...

    def read_clock(self) -> float:
        """The time by the store's clock, in seconds since 1970. OSError when the store cannot be written to.

        Ages of files are computed with it, because the clock of this machine may differ by days.
        """
        ...

    def require_exclusive_create(self) -> None:
        """OSError when `create` could overwrite a file, as it could in a bucket without conditional put."""
        ...

    def delete_leftovers(self, prefix: str, age: timedelta) -> None:
        """Delete what dead writers left below a folder longer ago than that, and `list` does not show."""
        ...
