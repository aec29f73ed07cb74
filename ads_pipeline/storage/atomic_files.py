"""Writes files that their readers find whole or not at all, whatever dies meanwhile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(path: Path, *, replace: bool = True) -> Iterator[BinaryIO]:
    """A file to write, which stands under its name once the block has ended well and all of it is on the disk.

    Without `replace` it is FileExistsError where another one came first, and that one stays.
    """
    unfinished = path.with_name(f"_tmp.{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            unfinished.replace(path)
        else:
            path.hardlink_to(unfinished)
        _fsync(path.parent)
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _fsync(folder: Path) -> None:
    """The new name is on the disk only when the folder is."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
