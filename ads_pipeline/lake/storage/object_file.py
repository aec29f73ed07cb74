"""`ObjectFile`: reads an object of a bucket as a file, with one request for each part."""

import errno
import io
import os
from collections.abc import Callable
from typing import Any, Final

FIRST_PART: Final = 256 << 10  # most payloads are smaller, and then are read with one request
LARGEST_PART: Final = 8 << 20
BUFFER_SIZE: Final = 1 << 20

# (the options of obstore's `get`) -> (content, its size and e_tag)
Get = Callable[[Any], tuple[bytes, Any]]


class ObjectFile(io.RawIOBase):
    """The content that the object had when this file was opened. OSError when the object was replaced since."""

    def __init__(self, get: Get) -> None:
        """Read the first part, and learn the size from the answer."""
        self._get, self._position = get, 0
        self._first, meta = get({"range": (0, FIRST_PART)})
        self.size: int = meta["size"]
        self._same = {"if_match": meta["e_tag"]}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        part = self._read_part(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self._read_part(LARGEST_PART), b""))

    def _read_part(self, size: int) -> bytes:
        start, end = self._position, min(self._position + min(size, LARGEST_PART), self.size)
        if start >= end:
            return b""
        if end <= len(self._first):
            part = self._first[start:end]
        else:
            part, _meta = self._get(self._same | {"range": (start, end)})
        self._position = start + len(part)
        return part
