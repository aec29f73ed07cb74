"""`DiskRuns`: the sealed runs below a directory. The root may be a symbolic link; nothing below it may."""

import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from ads_pipeline.domain.errors import RawUnavailable, RunNotSealed, UnsafePath
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.discovery import (
    ChangedDay,
    ChangedDays,
    DamagedRun,
    Found,
    find_changed_days,
    find_in_day,
    find_in_source,
)
from ads_pipeline.lake.raw.reading import open_below, open_verified_payload, read_seal, translate_os_errors
from ads_pipeline.lake.raw.unsealed_files import TEMPORARY, UnsealedDirectory

_UNSEALED: Final = f"*/customer_id=*/query_name=*/logical_date=*/{TEMPORARY}*"


class DiskRuns:
    """A read raises RawUnavailable when the root is missing or empty: its disk may not be mounted."""

    def __init__(self, root: Path, is_in_use: Callable[[], bool]) -> None:
        self._root, self._is_in_use = root, is_in_use

    def create(self, run: Run) -> UnsealedDirectory:
        with translate_os_errors(run.path):
            return UnsealedDirectory(self._root, run)

    def read_seal(self, run: Run) -> SealedRun:
        with translate_os_errors(run.path), ExitStack() as stack:
            return read_seal(self._open_run(run, stack), run)

    def open_verified(self, run: Run, payload_sha256: str | None) -> tuple[SealedRun, BinaryIO]:
        with translate_os_errors(run.path), ExitStack() as stack:
            directory = self._open_run(run, stack)
            seal = read_seal(directory, run)
            return seal, open_verified_payload(directory, seal, payload_sha256)

    def list_runs(self, key: PartitionKey, known: Container[Run]) -> tuple[Found, ...]:
        with self._open_existing(key.path) as day:
            return () if day is None else tuple(find_in_day(day, key.path, known))

    def find_runs(self, source: str, since: date, until: date, known: Container[Run]) -> Iterator[Found]:
        with self._open_existing(source) as top:
            if top is not None:
                yield from find_in_source(top, source, since=since, until=until, known=known)

    def list_many(self, keys: Sequence[PartitionKey], known: Container[Run]) -> Iterator[tuple[Found, ...]]:
        """The runs of each partition. A partition whose path holds something else than directories has none."""
        for key in keys:
            try:
                yield self.list_runs(key, known)
            except UnsafePath as error:
                yield (DamagedRun(path=key.path, problem=error.problem),)

    def find_changed_days(
        self,
        source: str,
        since: date,
        until: date,
        seen: Mapping[str, int],
        after: str | None,  # noqa: ARG002 - a disk is searched as a whole
    ) -> ChangedDays:
        with self._open_existing(source) as top:
            listed = () if top is None else tuple(find_changed_days(top, source, since=since, until=until, seen=seen))
        return ChangedDays(
            days=tuple(each for each in listed if isinstance(each, ChangedDay)),
            misnamed=tuple(each for each in listed if isinstance(each, DamagedRun)),
        )

    def read_days(self, days: Iterable[ChangedDay], known: Container[Run]) -> Iterator[Found]:
        for day in days:
            yield from self.list_runs(day.key, known)

    def find_unsealed(self, before: datetime) -> Iterator[tuple[str, datetime]]:
        for path in sorted(self._root.glob(_UNSEALED)):
            modified_at = datetime.fromtimestamp(path.lstat().st_mtime, tz=before.tzinfo)
            if modified_at < before:
                yield path.relative_to(self._root).as_posix(), modified_at

    def remove_unsealed(self, age: timedelta) -> Iterator[str]:
        found = sorted(self._root.glob(_UNSEALED))
        before = self._read_clock() - age.total_seconds() if found else 0.0
        for path in found:
            folder = path.parent.relative_to(self._root).as_posix()
            with translate_os_errors(folder), ExitStack() as stack:
                day = stack.enter_context(open_below(self._root, folder))  # refuses symbolic links
                if _last_write(path) < before:
                    shutil.rmtree(path.name, dir_fd=day)
                    yield f"{folder}/{path.name}"

    def _read_clock(self) -> float:
        """The time by the clock of the disk, which dates the files."""
        with tempfile.TemporaryFile(dir=self._root) as file:
            return os.fstat(file.fileno()).st_mtime

    @contextmanager
    def _open_existing(self, path: str) -> Iterator[int | None]:
        """A descriptor of a directory below the root; None when it does not exist."""
        with translate_os_errors(path), ExitStack() as stack:
            try:
                directory = self._open(path, stack)
            except FileNotFoundError:
                directory = None
            yield directory

    def _open(self, path: str, stack: ExitStack) -> int:
        """A descriptor of a directory below the root. FileNotFoundError, or RawUnavailable when the root is gone."""
        try:
            return stack.enter_context(open_below(self._root, path))
        except OSError as error:
            problem = self._find_root_problem()
            if problem is None or (isinstance(error, FileNotFoundError) and not self._is_in_use()):
                raise
            advice = "mount its disk, or correct ADS_PIPELINE_HOME or ADS_PIPELINE_LAKE"
            raise RawUnavailable(str(self._root), f"the raw root {problem}; {advice}") from None

    def _find_root_problem(self) -> str | None:
        try:
            return None if os.listdir(self._root) else "is empty"
        except FileNotFoundError:
            return "does not exist"
        except OSError as error:
            return f"cannot be opened: {error.strerror}"

    def _open_run(self, run: Run, stack: ExitStack) -> int:
        try:
            return self._open(run.path, stack)
        except FileNotFoundError:
            raise RunNotSealed(run.path, "no such run") from None


def _last_write(directory: Path) -> float:
    """The time at which something in the directory was last written."""
    return max(path.lstat().st_mtime for path in (directory, *directory.iterdir()))
