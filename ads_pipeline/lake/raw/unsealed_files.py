"""The files of a run before its seal: on a disk a temporary directory, for a bucket a local file.

`unsealed_run` writes the rows and makes the seal.
"""

import errno
import mmap
import os
import secrets
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Protocol

from ads_pipeline.domain.errors import RunExists
from ads_pipeline.domain.partition import Run
from ads_pipeline.lake.raw.reading import NOT_A_DIRECTORY, open_below
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline.lake.storage.durable_files import (
    access_mode,
    create_file,
    open_directory,
    open_new_file,
    sync_descriptor,
    sync_open_file,
)
from ads_pipeline.lake.storage.store import Store

TEMPORARY: Final = "_tmp."  # prefix of the directories of runs that are not sealed yet
_BUFFER_SIZE: Final = 1 << 16  # a month of days is written at once
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, *NOT_A_DIRECTORY)


class UnsealedFiles(Protocol):
    """Receives the payload and publishes it with the seal. Failures are OSErrors, or RunExists."""

    def write(self, lines: bytes) -> object:
        """Add to the payload."""
        ...

    def publish(self, metadata: bytes) -> None:
        """Make the payload and the seal a run that survives a power cut. RunExists when another writer was first."""
        ...

    def discard(self) -> None:
        """Remove what was not published, best effort. Does nothing a second time."""
        ...


class UnsealedDirectory:
    """A temporary directory beside the run's later one. It holds two descriptors until it is closed."""

    def __init__(self, root: Path, run: Run) -> None:
        """Create the directory. RunExists when the run_id is taken."""
        self._run = run
        self._temporary = f"{TEMPORARY}{run.run_id}.{secrets.token_hex(4)}"
        with ExitStack() as stack:
            self._day = stack.enter_context(open_below(root, run.key.path, create=True))
            _check_name_free(run, os.listdir(self._day))
            os.mkdir(self._temporary, access_mode(0o777), dir_fd=self._day)
            stack.callback(_remove, self._temporary, self._day)  # runs while the day is still open
            with open_directory(self._temporary, self._day) as directory:
                self._payload = open_new_file(PAYLOAD, directory, buffer_size=_BUFFER_SIZE)
            stack.callback(self._close_payload)
            self._open = stack.pop_all()

    def write(self, lines: bytes) -> object:
        return self._payload.write(lines)

    def publish(self, metadata: bytes) -> None:
        sync_open_file(self._payload)
        self._close_payload()
        with open_directory(self._temporary, self._day) as directory:
            with create_file(METADATA, directory) as file:
                file.write(metadata)
            sync_descriptor(directory)
        self._rename()
        sync_descriptor(self._day)

    def discard(self) -> None:
        self._open.close()

    def _rename(self) -> None:
        try:
            # POSIX replaces only empty directories by rename, and a sealed run is never empty: one racer wins.
            os.rename(self._temporary, f"run_id={self._run.run_id}", src_dir_fd=self._day, dst_dir_fd=self._day)
        except OSError as error:
            if error.errno in _NAME_TAKEN:
                raise _run_exists(self._run) from None
            raise

    def _close_payload(self) -> None:
        with suppress(OSError):  # what was not written is discarded, or was synced before
            self._payload.close()


class UnsealedObjects:
    """A local temporary file, which becomes two objects: the payload, and then the seal.

    A run_id whose landing died between the two cannot be used again: nobody can tell whether the seal is on its way.
    """

    def __init__(self, store: Store, run: Run) -> None:
        """Create the local file. RunExists when there is an object of this run_id."""
        self._store, self._run = store, run
        folder = f"{run.key.path}/"
        _check_name_free(run, {info.name.removeprefix(folder).split("/")[0] for info in store.list(run.key.path)})
        self._spool = tempfile.TemporaryFile(buffering=_BUFFER_SIZE)  # noqa: SIM115 - closed by `discard`

    def write(self, lines: bytes) -> object:
        return self._spool.write(lines)

    def publish(self, metadata: bytes) -> None:
        self._spool.flush()
        # Who creates the payload may create the seal: two writers' files never mix.
        if not (self._create_payload() and self._store.create(f"{self._run.path}/{METADATA}", metadata)):
            raise _run_exists(self._run)

    def discard(self) -> None:
        self._spool.close()

    def _create_payload(self) -> bool:
        name = f"{self._run.path}/{PAYLOAD}"
        if not self._spool.tell():
            return self._store.create(name, b"")  # an empty file cannot be mapped
        with mmap.mmap(self._spool.fileno(), 0, access=mmap.ACCESS_READ) as payload:
            return self._store.create(name, payload)


def _check_name_free(run: Run, siblings: Iterable[str]) -> None:
    """RunExists also for names that differ only in case: some file systems treat them as one directory."""
    name = f"run_id={run.run_id}".casefold()
    if any(sibling.casefold() == name for sibling in siblings):
        raise _run_exists(run)


def _run_exists(run: Run) -> RunExists:
    return RunExists(run.path, "the run_id is taken in this partition, in this spelling or another; use a new one")


def _remove(temporary: str, day: int) -> None:
    """Remove a temporary directory, best effort. Readers ignore temporary names, and a sealed run has none."""
    with suppress(OSError):
        with open_directory(temporary, day) as directory:
            for name in os.listdir(directory):
                os.unlink(name, dir_fd=directory)
        os.rmdir(temporary, dir_fd=day)
