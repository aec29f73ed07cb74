"""`UnsealedRun`: a run while its rows arrive. It ends sealed or discarded; readers never see it before its seal."""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ads_pipeline.domain.partition import Run
from ads_pipeline.errors import BadJson, BadRow, RunExists
from ads_pipeline.raw.reading import NOT_A_DIRECTORY, open_below, translate_os_errors
from ads_pipeline.raw.seal import METADATA, PAYLOAD, Seal, SealFacts, encode_seal
from ads_pipeline.raw.strict_json import parse_object
from ads_pipeline.storage.durable_files import (
    access_mode,
    create_file,
    open_directory,
    open_new_file,
    sync_descriptor,
    sync_open_file,
)

TEMPORARY: Final = "_tmp."  # prefix of the directories of runs that are not sealed yet
_BUFFER_SIZE: Final = 1 << 16  # a month of days is written at once
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode  # json.dumps makes one for each row
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, *NOT_A_DIRECTORY)


class UnsealedRun:
    """A temporary directory that receives the rows of one run. It holds two descriptors until it is sealed.

    Use it as a context manager: leaving the block without a seal discards the rows.
    """

    def __init__(self, root: Path, run: Run) -> None:
        """Create the directory. Raises RunExists when the run_id is taken."""
        self.run = run
        self._digest, self._size, self._count = hashlib.sha256(), 0, 0
        self._temporary = f"{TEMPORARY}{run.run_id}.{secrets.token_hex(4)}"
        with translate_os_errors(run.path), ExitStack() as stack:
            self._day = stack.enter_context(open_below(root, run.key.path, create=True))
            _check_name_free(run, os.listdir(self._day))
            os.mkdir(self._temporary, access_mode(0o777), dir_fd=self._day)
            stack.callback(_remove, self._temporary, self._day)  # runs while the day is still open
            with open_directory(self._temporary, self._day) as directory:
                self._payload = open_new_file(PAYLOAD, directory, buffer_size=_BUFFER_SIZE)
            stack.callback(self._close_payload)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.discard()

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row. BadRow when strict JSON cannot express it."""
        line = _encode_row(self.run, row, self._count + 1)
        with translate_os_errors(self.run.path):
            self._payload.write(line)
        self._digest.update(line)
        self._size += len(line)
        self._count += 1

    def seal(self, facts: SealFacts, *, extraction: Mapping[str, Any] | None = None) -> Seal:
        """Seal the run. Afterwards it survives a power cut; a row can no longer be added.

        `extraction` is what the extractor notes about itself in the seal, for people; readers ignore it.

        RunExists when another writer has sealed the run_id. After any failure nothing is sealed, except when the last
        step fails, the sync of the new name: then the run is readable, but may not survive a power cut.
        """
        seal = Seal(
            run=self.run,
            facts=facts,
            record_count=self._count,
            payload_bytes=self._size,
            payload_sha256=self._digest.hexdigest(),
        )
        with translate_os_errors(self.run.path), self._open:
            sync_open_file(self._payload)
            self._close_payload()
            with open_directory(self._temporary, self._day) as directory:
                with create_file(METADATA, directory) as metadata:
                    metadata.write(encode_seal(seal, extraction))
                sync_descriptor(directory)
            self._rename()
            sync_descriptor(self._day)
        return seal

    def discard(self) -> None:
        """Remove the rows, best effort. Does nothing after the seal, or a second time."""
        self._open.close()

    def _rename(self) -> None:
        name = f"run_id={self.run.run_id}"
        try:
            # POSIX replaces only empty directories by rename, and a sealed run is never empty: one racer wins.
            os.rename(self._temporary, name, src_dir_fd=self._day, dst_dir_fd=self._day)
        except OSError as error:
            if error.errno in _NAME_TAKEN:
                raise _run_exists(self.run) from None
            raise

    def _close_payload(self) -> None:
        with suppress(OSError):  # what was not written is discarded, or was synced before
            self._payload.close()


def _encode_row(run: Run, row: Mapping[str, Any], number: int) -> bytes:
    try:
        line = _encode(row if type(row) is dict else dict(row)).encode("utf-8")
        parse_object(line)  # refuse what the strict reader would refuse later
    except (TypeError, ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, BadJson) else type(error).__name__
        raise BadRow(run.path, f"row {number} cannot be written as strict JSON: {problem}") from error
    return line + b"\n"


def _check_name_free(run: Run, siblings: list[str]) -> None:
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
