"""`RawRuns`: writes and seals runs below a raw root, and gives access to sealed runs.

A run is a directory with `payload.jsonl` and the seal, `metadata.json`. It is written under a temporary name, synced
to disk, and renamed. So at every moment a run is either complete or absent. The validator judges sealed runs; the
ledger decides which run has authority.
"""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, Final

from ads_pipeline.domain.partition import PartitionKey, Run, validate_name
from ads_pipeline.errors import BadJson, BadRow, RawUnavailable, RunExists, RunNotSealed
from ads_pipeline.raw.discovery import DamagedRun, find_in_day, find_in_source
from ads_pipeline.raw.reading import (
    NOT_A_DIRECTORY,
    open_below,
    open_verified_payload,
    read_seal,
    translate_os_errors,
)
from ads_pipeline.raw.seal import METADATA, PAYLOAD, Seal, SealFacts, encode_seal
from ads_pipeline.raw.strict_json import parse_object
from ads_pipeline.storage.durable_files import (
    access_mode,
    create_file,
    open_directory,
    sync_descriptor,
)

TEMPORARY: Final = "_tmp."  # prefix of the directories of runs that are not sealed yet
_NAME_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, *NOT_A_DIRECTORY)


class RawRuns:
    """The runs below one root. The root may be a symbolic link; nothing below it may.

    A read raises RawUnavailable when the root is missing or empty, because its disk may not be mounted. Only before
    the first use, when `is_in_use` returns False, such a root holds no runs. `land` creates a missing root.
    """

    def __init__(self, root: Path, *, is_in_use: Callable[[], bool] = lambda: True) -> None:
        self.root, self._is_in_use = root, is_in_use

    def land(self, run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts) -> Seal:
        """Write the rows in the order given and seal the run. Afterwards the run survives a power cut.

        Raises RunExists when the run_id is taken. After any failure, also of the rows' iterator, nothing is sealed.
        The only exception is a failure of the last step, the sync of the new name: then the run is readable, but may
        not survive a power cut.
        """
        try:
            return self._land(run, _mark_os_errors(rows), facts)
        except _RowsError as failed:
            raise failed.error from None

    def read_seal(self, run: Run) -> Seal:
        """The run's seal, checked against the payload's size. RunNotSealed, or RunDamaged with the reason."""
        with translate_os_errors(run.path), ExitStack() as stack:
            return read_seal(self._open_run(run, stack), run)

    def verify(self, run: Run, *, payload_sha256: str | None = None) -> Seal:
        """The run's seal, after every byte of the payload was checked against it, and against a digest if given."""
        with self.open(run, payload_sha256=payload_sha256) as (seal, _payload):
            return seal

    @contextmanager
    def open(self, run: Run, *, payload_sha256: str | None = None) -> Iterator[tuple[Seal, BinaryIO]]:
        """The seal and the payload, open at its start, after every byte was checked as in `verify`."""
        with translate_os_errors(run.path), ExitStack() as stack:
            directory = self._open_run(run, stack)
            seal = read_seal(directory, run)
            payload = open_verified_payload(directory, seal, payload_sha256)
        with payload:
            yield seal, payload

    def list_runs(self, key: PartitionKey, known: Container[Run] = frozenset()) -> tuple[Seal | DamagedRun, ...]:
        """Every sealed run of a partition in order of run_id, except the known ones.

        Directories without a seal are skipped.
        """
        with translate_os_errors(key.path), ExitStack() as stack:
            try:
                day = self._open(key.path, stack)
            except FileNotFoundError:
                return ()
            return tuple(find_in_day(day, key.path, known))

    def find_runs(
        self, *, source: str, since: date, until: date, known: Container[Run] = frozenset()
    ) -> Iterator[Seal | DamagedRun]:
        """Every sealed run of a source with a logical date from since to until, in path order.

        Seals are checked against the payload's size only. Known runs are skipped without being read. A directory with
        an invalid name is reported as damage at every level, so that a misspelt account is noticed.
        """
        validate_name("source", source)
        with translate_os_errors(source), ExitStack() as stack:
            try:
                top = self._open(source, stack)
            except FileNotFoundError:
                return
            yield from find_in_source(top, source, since=since, until=until, known=known)

    def _land(self, run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts) -> Seal:
        with translate_os_errors(run.path), ExitStack() as stack:
            day = stack.enter_context(open_below(self.root, run.key.path, create=True))
            _check_name_free(run, os.listdir(day))
            temporary = f"{TEMPORARY}{run.run_id}.{secrets.token_hex(4)}"
            os.mkdir(temporary, access_mode(0o777), dir_fd=day)
            try:
                seal = _write_run(run, rows, facts, day, temporary)
                # POSIX replaces only empty directories by rename, and a sealed run is never empty: one racer wins.
                os.rename(temporary, f"run_id={run.run_id}", src_dir_fd=day, dst_dir_fd=day)
            except BaseException as error:
                _discard(temporary, day)
                if isinstance(error, OSError) and error.errno in _NAME_TAKEN:
                    raise _run_exists(run) from None
                raise
            sync_descriptor(day)
        return seal

    def _open(self, path: str, stack: ExitStack) -> int:
        """A descriptor of a directory below the root. FileNotFoundError, or RawUnavailable when the root is gone."""
        try:
            return stack.enter_context(open_below(self.root, path))
        except OSError as error:
            problem = self._find_root_problem()
            if problem is None or (isinstance(error, FileNotFoundError) and not self._is_in_use()):
                raise
            advice = "mount its disk, or correct ADS_PIPELINE_HOME"
            raise RawUnavailable(str(self.root), f"the raw root {problem}; {advice}") from None

    def _find_root_problem(self) -> str | None:
        try:
            return None if os.listdir(self.root) else "is empty"
        except FileNotFoundError:
            return "does not exist"
        except OSError as error:
            return f"cannot be opened: {error.strerror}"

    def _open_run(self, run: Run, stack: ExitStack) -> int:
        try:
            return self._open(run.path, stack)
        except FileNotFoundError:
            raise RunNotSealed(run.path, "no such run") from None


def _write_run(run: Run, rows: Iterable[Mapping[str, Any]], facts: SealFacts, day: int, temporary: str) -> Seal:
    with open_directory(temporary, day) as directory:
        digest, size, count = hashlib.sha256(), 0, 0
        with create_file(PAYLOAD, directory) as payload:
            for count, row in enumerate(rows, 1):
                line = _encode_row(run, row, count)
                payload.write(line)
                digest.update(line)
                size += len(line)
        seal = Seal(run=run, facts=facts, record_count=count, payload_bytes=size, payload_sha256=digest.hexdigest())
        with create_file(METADATA, directory) as metadata:
            metadata.write(encode_seal(seal))
        sync_descriptor(directory)
    return seal


def _encode_row(run: Run, row: Mapping[str, Any], number: int) -> bytes:
    try:
        line = json.dumps(dict(row), ensure_ascii=False, separators=(",", ":")).encode("utf-8")
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


def _discard(temporary: str, day: int) -> None:
    """Remove a temporary directory, best effort. Readers ignore temporary names."""
    with suppress(OSError):
        with open_directory(temporary, day) as directory:
            for name in os.listdir(directory):
                os.unlink(name, dir_fd=directory)
        os.rmdir(temporary, dir_fd=day)


class _RowsError(Exception):
    """Carries an OSError of the rows' iterator past `translate_os_errors`."""

    def __init__(self, error: OSError) -> None:
        self.error = error


def _mark_os_errors(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    try:
        yield from rows
    except OSError as error:
        raise _RowsError(error) from error
