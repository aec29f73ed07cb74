"""Kills the process at a file operation, or lets its disk be full. Python reports each operation to a hook.

SQLite, Spark and the Delta library write files without Python. A full disk is one for the files that Python writes.
"""

import errno
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_ELSEWHERE: Final = ("/dev/null", "/tmp", "/proc")
CURSORS: Final = "simulated_cursors"  # the file of the simulation itself
_CHANGES: Final = frozenset({"os.rename", "os.mkdir", "os.link", "os.remove"})


@dataclass
class Interruptions:
    """What happens at the next operations on files below the home."""

    home: Path
    disk_is_full: bool = False
    disk_errors: int = 0
    operations_left: int | None = None

    def __post_init__(self) -> None:
        sys.addaudithook(self._notice)

    def die_after(self, operations: int) -> None:
        """Kill the process at the operation after so many."""
        self.operations_left = operations

    def fill_disk(self, *, is_full: bool) -> None:
        """Let the disk be full or not, and count its errors from now on when it becomes full."""
        self.disk_is_full = is_full
        if is_full:
            self.disk_errors = 0

    def _notice(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not (self.disk_is_full or self.operations_left is not None) or not self._is_change(event, arguments):
            return
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if self.disk_is_full and event == "open" and arguments[2] & os.O_CREAT:
            self.disk_errors += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    def _is_change(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Whether the operation changes a file below the home. A path may be relative to an open directory."""
        if event == "open":
            is_change = isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
        else:
            is_change = event in _CHANGES
        return is_change and not str(arguments[0]).startswith((*_ELSEWHERE, str(self.home / CURSORS)))
