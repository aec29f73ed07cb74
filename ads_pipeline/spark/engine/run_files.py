"""A file for each run that the engine executes: who executes it, and whether that process lives.

The process of a run holds a lock on the file until it ends in any way, so neither a look at its health nor its
termination needs the engine. The file appears with its lock and its content in one step, and only once: either the
process of the run creates it, or the launcher that gave up to wait for the engine. So no run is executed twice.
"""

import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from ads_pipeline.lake.storage.durable_files import make_durable_directories

if sys.platform != "win32":  # it has no Unix sockets either, so the engine executes no run there
    import fcntl

SECONDS_TO_KEEP: Final = 7 * 86_400.0  # longer than any run may take
SECONDS_TO_NOTE: Final = 1.0
_RUN_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,100}", re.ASCII)
_MAX_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProcess:
    """The process of a run, as its file describes it."""

    pid: int
    machine: str
    exit_code: int | None = None  # negative: the number of a signal. None: it runs, or nobody has seen its end

    @property
    def is_here(self) -> bool:
        """Return whether the process number means a process of this machine and container."""
        return self.machine == this_machine()

    def describe_end(self) -> str:
        """Describe how the process ended."""
        if self.exit_code is None:
            return f"its process {self.pid} has ended; its exit code is unknown, because the engine ended before it"
        if self.exit_code < 0:
            return f"its process {self.pid} was killed by {_name_signal(-self.exit_code)}"
        return f"its process {self.pid} ended with exit code {self.exit_code}"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of the runs of one deployment."""

    directory: Path

    def take(self, engine_run_id: str) -> int | None:
        """Make this process the one that executes the run. Return the descriptor that holds the lock.

        None when another process has the run, or when a launcher has given it to another one.
        """
        make_durable_directories(self.directory)
        with self._written(RunProcess(pid=os.getpid(), machine=this_machine())) as (descriptor, temporary):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                os.link(temporary, self._path(engine_run_id))
            except FileExistsError:
                os.close(descriptor)
                return None
        return descriptor

    def give_up(self, engine_run_id: str) -> bool:
        """Make sure that no process takes the run from now on. False when one has taken it."""
        make_durable_directories(self.directory)
        with suppress(FileExistsError):
            os.close(os.open(self._path(engine_run_id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return self.find(engine_run_id) is None

    def release(self, engine_run_id: str, pid: int) -> None:
        """Let another process take the run, if it was this one's. It was ended before it executed anything."""
        process = self.find(engine_run_id)
        if process is not None and (process.pid, process.machine) == (pid, this_machine()):
            self._path(engine_run_id).unlink(missing_ok=True)

    def find(self, engine_run_id: str) -> RunProcess | None:
        """The process that took the run; None when none did, or when nobody knows any more."""
        try:
            content = self._path(engine_run_id).read_bytes()[:_MAX_BYTES]
            return RunProcess(**json.loads(content))
        except (OSError, ValueError, TypeError):
            return None

    def is_alive(self, engine_run_id: str) -> bool:
        """Return whether the process that took the run holds its lock."""
        try:
            with self._path(engine_run_id).open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def interrupt(self, engine_run_id: str) -> bool:
        """Send SIGINT to the process of the run. False when it has ended, or is not of this machine."""
        process = self.find(engine_run_id)
        if process is None or not process.is_here:
            return False
        with suppress(ProcessLookupError), _handle(process.pid) as send:
            if self.is_alive(engine_run_id):  # so the handle is that of the run's process
                send(signal.SIGINT)
                return True
        return False

    def await_exit(self, engine_run_id: str) -> RunProcess | None:
        """The process of a run that has ended, when the engine has noted its exit code, which takes a moment."""
        end = time.monotonic() + SECONDS_TO_NOTE
        process = self.find(engine_run_id)
        while process is not None and process.exit_code is None and time.monotonic() < end:
            time.sleep(SECONDS_TO_NOTE / 20)
            process = self.find(engine_run_id)
        return process

    def note_exit(self, engine_run_id: str, exit_code: int) -> None:
        """Add the exit code of a process that has ended."""
        process = self.find(engine_run_id)
        if process is not None:
            with self._written(replace(process, exit_code=exit_code)) as (descriptor, temporary):
                os.close(descriptor)
                temporary.replace(self._path(engine_run_id))

    def remove_old(self) -> None:
        """Remove the files of processes that ended a week ago."""
        with suppress(OSError):
            for path in list(self.directory.iterdir()):
                is_old = path.stat().st_mtime < time.time() - SECONDS_TO_KEEP
                if is_old and not self.is_alive(path.name):
                    path.unlink()

    def _path(self, engine_run_id: str) -> Path:
        if _RUN_ID.fullmatch(engine_run_id) is None:
            raise ValueError("the id of a run has only letters, digits, - and _")
        return self.directory / engine_run_id

    @contextmanager
    def _written(self, process: RunProcess) -> Iterator[tuple[int, Path]]:
        """A file with this content and its descriptor. Its name is removed at the end, where it still exists."""
        descriptor, name = tempfile.mkstemp(dir=self.directory, prefix="new-")
        try:
            os.write(descriptor, json.dumps(asdict(process)).encode())
            yield descriptor, Path(name)
        finally:
            Path(name).unlink(missing_ok=True)


def run_files(home: Path) -> RunFiles:
    return RunFiles(home / "engine" / "runs")


def this_machine() -> str:
    """Tells apart where process numbers mean other processes: machines, and containers of one machine."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return f"{socket.gethostname()} {namespace}".strip()


@contextmanager
def _handle(pid: int) -> Iterator[Callable[[int], None]]:
    """Sends signals to the process that has this number now. Raises ProcessLookupError when there is none."""
    if not hasattr(os, "pidfd_open"):  # not on macOS
        yield lambda number: os.kill(pid, number)
        return
    descriptor = os.pidfd_open(pid)
    try:
        yield lambda number: signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
