"""A standby process: it loads everything ahead, waits for one run, and executes it.

`code_servers` decides when there is one, and which run it gets.
"""

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

SPAWN: Final = multiprocessing.get_context("spawn")
SECONDS_TO_ACCEPT: Final = 5.0
Load = Callable[[], Collection[Path]]  # loads what a run needs, and returns the files that it was made from


class Standby:
    """A process that waits for one run.

    It has the names of multiprocessing that a code server uses: first for a queue and an event, then for the process.
    """

    def __init__(self, load: Load, files: Collection[Path]) -> None:
        """Start a process that calls `load`. A change of these files, of code or of the environment outdates it."""
        self.is_used = False
        self._environment = dict(os.environ)  # which the process inherits
        self._queue, self._event = SPAWN.Queue(), SPAWN.Event()
        self._connection, theirs = SPAWN.Pipe()
        arguments = (theirs, load, list(files), self._queue, self._event)
        self.process: Any = SPAWN.Process(target=wait_for_run, args=arguments)
        self.process.start()
        theirs.close()  # only the process has it now, and its death closes the connection

    def is_ready(self) -> bool:
        """Whether the process has loaded everything."""
        return self.process.is_alive() and self._connection.poll()

    def discard(self) -> None:
        """End the process, which has no run."""
        self.process.kill()
        self.process.join()
        self._connection.close()

    def Queue(self) -> Any:  # noqa: N802
        return self._queue

    def Event(self) -> Any:  # noqa: N802
        return self._event

    def Process(self, *, target: Any, args: Sequence[Any]) -> "RunProcess":  # noqa: N802
        """The process of a run. The last two arguments are the queue and the event."""
        return RunProcess(self, target, args)

    def accepts(self, target: Any, args: Sequence[Any]) -> bool:
        """Hand a run over. False when the process is outdated, dead, or does not answer in time."""
        self.is_used = True
        if dict(os.environ) != self._environment:
            return False
        try:
            self._connection.recv()  # that it is ready
            self._connection.send((target, args))
            return self._connection.poll(SECONDS_TO_ACCEPT) and bool(self._connection.recv())
        except (OSError, EOFError):
            return False


class RunProcess:
    """The process of one run: the one that stood by, or a new one when that cannot take the run."""

    def __init__(self, standby: Standby, target: Any, args: Sequence[Any]) -> None:
        self._standby, self._target, self._args = standby, target, args
        self._process = standby.process

    def start(self) -> None:
        """Start the run."""
        if not self._standby.accepts(self._target, self._args[:-2]):
            self._standby.discard()  # first, because no run may be executed twice
            self._process = SPAWN.Process(target=self._target, args=self._args)
            self._process.start()

    def is_alive(self) -> bool:
        """Whether the run goes on."""
        return bool(self._process.is_alive())

    @property
    def exitcode(self) -> int | None:
        """The exit code of the run, or None while it goes on."""
        code: int | None = self._process.exitcode
        return code


def wait_for_run(connection: Connection, load: Load, files: Collection[Path], queue: Any, event: Any) -> None:
    """Load everything and wait for a run, in a process of its own. Ends when the server has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the server ends this one
    started, before = time.time_ns(), _read_versions(files)
    gc.disable()  # what is imported stays; to search it for garbage takes a third of the time of the imports
    loaded = {*load(), *_find_module_files()}
    gc.freeze()
    gc.enable()
    versions = _read_versions({*files, *loaded})
    changed_while_loading = _read_versions(files) != before or any(
        each and each.time > started for each in versions.values()
    )
    try:
        connection.send(True)
        target, args = connection.recv()
        is_current = not changed_while_loading and _read_versions(versions) == versions
        connection.send(is_current)
    except (OSError, EOFError):
        return
    if is_current:
        connection.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        target(*args, queue, event)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    """Tells two contents of a path apart, also when one file was put in the place of another with its time."""

    size: int
    time: int  # of the last change, in nanoseconds
    inode: int


def _read_versions(paths: Collection[Path]) -> dict[Path, _Version | None]:
    """The version of each file, or None where there is none."""
    return {path: _read_version(path) for path in paths}


def _read_version(path: Path) -> _Version | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _Version(size=found.st_size, time=found.st_mtime_ns, inode=found.st_ino)


def _find_module_files() -> list[Path]:
    """The files of all modules that this process has loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [Path(file) for file in files if file]
