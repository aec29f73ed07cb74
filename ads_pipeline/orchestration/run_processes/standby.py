"""A standby process: it loads everything ahead, waits for one run, and executes it.

`code_servers` decides when there is one, and which run it gets.
"""

import gc
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

SPAWN: Final = multiprocessing.get_context("spawn")
SECONDS_TO_ACCEPT: Final = 5.0


class Standby:
    """A process that waits for one run.

    It has the names of multiprocessing that a code server uses: first for a queue and an event, then for the process.
    """

    def __init__(self, load: Callable[[], None], files: Collection[Path]) -> None:
        """Start a process that calls `load`. A change of these files, or of this code, makes it outdated."""
        self.is_used = False
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


def wait_for_run(
    connection: Connection, load: Callable[[], None], files: Collection[Path], queue: Any, event: Any
) -> None:
    """Load everything and wait for a run, in a process of its own. Ends when the server has died."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the server ends this one
    started = time.time_ns()
    gc.disable()  # what is imported stays; to search it for garbage takes a third of the time of the imports
    load()
    gc.freeze()
    gc.enable()
    versions = _read_versions([*map(str, files), *_find_module_files()])
    changed_while_loading = any(version and version[1] > started for version in versions.values())
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


def _read_versions(files: Collection[str]) -> dict[str, tuple[int, int] | None]:
    """The size and the time of change of each file, or None where there is none."""
    return {file: _read_version(file) for file in files}


def _read_version(file: str) -> tuple[int, int] | None:
    try:
        found = Path(file).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


def _find_module_files() -> list[str]:
    """The files of all modules that this process has loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [file for file in files if file]
