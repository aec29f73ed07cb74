"""Finding sealed runs on a disk: all runs of a partition, or all runs of a source in a range of days."""

import os
import stat
import time
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from ads_pipeline.domain.errors import BadName, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.domain.partition import PartitionKey, Run, parse_date, parse_run_path
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.reading import NOT_A_DIRECTORY, NOT_A_DIRECTORY_PROBLEM, read_seal, translate_os_errors
from ads_pipeline.lake.storage.durable_files import open_directory

_SAMPLE_PARTS = ("customer_id=0", "query_name=q", "logical_date=2000-01-01", "run_id=r")


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedRun:
    """A directory below the raw root that is not a sound run. `run` is None when the name is invalid."""

    path: str
    problem: str
    run: Run | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWithoutSeal:
    """A run's folder that has no seal: an extractor is writing it, or has died."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """The files of a run in a listing. `modified_at` is the age of the newest, in seconds since 1970."""

    run: Run
    has_seal: bool
    payload_size: int | None
    modified_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedDay:
    """A partition's folder, and a number that is another one after a run was added. None: look again.

    A listing of a bucket shows its runs as well.
    """

    path: str
    fingerprint: int | None
    runs: tuple[ListedRun, ...] = ()

    @property
    def key(self) -> PartitionKey:
        return parse_run_path(f"{self.path}/run_id=r").key


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedDays:
    """The result of a search for changed days. With `end`, it stopped there, and the next one goes on after it."""

    days: tuple[ChangedDay, ...]
    misnamed: tuple[DamagedRun, ...]
    end: str | None = None


Found = SealedRun | DamagedRun | RunWithoutSeal


def find_changed_days(
    source: int, path: str, *, since: date, until: date, seen: Mapping[str, int]
) -> Iterator[ChangedDay | DamagedRun]:
    """The folders of days in the range whose time of change is not the one that was seen before.

    The time is that of the file system, which may not change twice in one tick of its clock. Within two seconds it
    counts for nothing.
    """
    window = f"logical_date={since.isoformat()}", f"logical_date={until.isoformat()}"
    recent = time.time_ns() - 2_000_000_000
    yield from _find_changed(source, path, ("customer_id=", "query_name=", "logical_date="), window, seen, recent)


def find_in_source(source: int, path: str, *, since: date, until: date, known: Container[Run]) -> Iterator[Found]:
    """The runs below a source's directory with a logical date in the range, in path order."""
    window = f"logical_date={since.isoformat()}", f"logical_date={until.isoformat()}"
    yield from _walk(source, path, ("customer_id=", "query_name=", "logical_date="), window, known)


def find_in_day(day: int, path: str, known: Container[Run] = frozenset()) -> Iterator[Found]:
    """The runs in a partition's directory, except the known ones, in order of their names."""
    for name in sorted(os.listdir(day)):
        if name[0] in "._":
            continue
        run_path = f"{path}/{name}"
        try:
            run = parse_run_path(run_path)
        except BadName as error:
            yield DamagedRun(path=printable(run_path), problem=str(error))
            continue
        if run in known:
            continue
        try:
            with translate_os_errors(run_path), open_directory(name, day) as directory:
                found: Found = read_seal(directory, run)
        except RunNotSealed:
            found = RunWithoutSeal(run=run)
        except (RunDamaged, UnsafePath) as error:
            found = DamagedRun(path=run_path, problem=error.problem, run=run)
        yield found


def _walk(
    parent: int, path: str, prefixes: tuple[str, ...], window: tuple[str, str], known: Container[Run]
) -> Iterator[Found]:
    """The runs below a directory whose children have names with the first prefix."""
    if not prefixes:
        yield from find_in_day(parent, path, known)
        return
    prefix, *deeper = prefixes
    for name in sorted(os.listdir(parent)):
        if name[0] in "._":
            continue
        child_path = f"{path}/{name}"
        if not deeper and is_outside(name, prefix, window):
            continue
        problem = find_name_problem(child_path)
        if problem:
            yield DamagedRun(path=printable(child_path), problem=problem)
            continue
        try:
            with open_directory(name, parent) as child:
                yield from _walk(child, child_path, tuple(deeper), window, known)
        except OSError as error:
            if error.errno not in NOT_A_DIRECTORY:
                raise
            yield DamagedRun(path=printable(child_path), problem=NOT_A_DIRECTORY_PROBLEM)


def _find_changed(
    parent: int, path: str, prefixes: tuple[str, ...], window: tuple[str, str], seen: Mapping[str, int], recent: int
) -> Iterator[ChangedDay | DamagedRun]:
    prefix, *deeper = prefixes
    for name in os.listdir(parent):
        child_path = f"{path}/{name}"
        if name[0] in "._" or (not deeper and is_outside(name, prefix, window)):
            continue
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not deeper and seen.get(child_path) == status.st_mtime_ns:
            continue
        if problem := find_name_problem(child_path):
            yield DamagedRun(path=printable(child_path), problem=problem)
        elif not stat.S_ISDIR(status.st_mode):
            yield DamagedRun(path=printable(child_path), problem=NOT_A_DIRECTORY_PROBLEM)
        elif deeper:
            with open_directory(name, parent) as child:
                yield from _find_changed(child, child_path, tuple(deeper), window, seen, recent)
        else:
            changed = status.st_mtime_ns
            yield ChangedDay(path=child_path, fingerprint=changed if changed < recent else None)


def is_outside(name: str, prefix: str, window: tuple[str, str]) -> bool:
    """True if the name is a valid day outside the window. Most names need no parsing, because history is long."""
    if window[0] <= name <= window[1] or not name.startswith(prefix):
        return False
    try:
        parse_date(name.removeprefix(prefix))
    except BadName:
        return False
    return True


def find_name_problem(path: str) -> str | None:
    """The reason why the path cannot lead to a run; None when it can. Missing parts are filled with valid ones."""
    try:
        parse_run_path("/".join([path, *_SAMPLE_PARTS[path.count("/") :]]))
    except BadName as error:
        return str(error)
    return None
