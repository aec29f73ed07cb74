"""Finds runs in the listing of a bucket, which has files but no directories."""

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import date
from typing import Final

from ads_pipeline.domain.errors import BadName, RawUnavailable
from ads_pipeline.domain.partition import Run, parse_run_path
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.raw.discovery import ChangedDay, DamagedRun, ListedRun, find_name_problem, is_outside
from ads_pipeline.lake.raw.reading import NOT_A_DIRECTORY_PROBLEM
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline.lake.storage.store import FileInfo

DAY_DEPTH: Final = 4  # source, customer, query, day
LAST_CHARACTER: Final = "\U0010ffff"  # a folder's name with it comes after all files in the folder, also in UTF-8


class ListingPart:
    """The first files of a listing, up to the end of the day in which the limit is reached.

    Afterwards `end` is the name after which the next part begins, or None when the listing has ended.
    """

    def __init__(self, files: Iterable[FileInfo], limit: int) -> None:
        self._files, self._limit = files, limit
        self.is_empty = True
        self.end: str | None = None

    def __iter__(self) -> Iterator[FileInfo]:
        last = ""
        for number, info in enumerate(self._files):
            if number >= self._limit and _cut_to_day(info.name) != (day := _cut_to_day(last)):
                self.end = f"{day}{LAST_CHARACTER}" if day.endswith("/") else day
                return
            self.is_empty, last = False, info.name
            yield info


def find_in_listing(
    files: Iterable[FileInfo], *, since: date, until: date, known: Container[Run]
) -> Iterator[ListedRun | DamagedRun]:
    """The runs in a listing with a logical date in the range, except the known ones, in path order.

    A run's payload is listed after its seal, and was created before it: a listing that has the seal has the payload.
    """
    window = f"logical_date={since.isoformat()}", f"logical_date={until.isoformat()}"
    reported: set[str] = set()
    for day, in_day in _group_by_day(files):
        yield from _find_in_day(day, in_day, window, reported, known)


def find_changed_days(
    files: Iterable[FileInfo], *, since: date, until: date, seen: Mapping[str, int]
) -> Iterator[ChangedDay | DamagedRun]:
    """The days of a listing in the range whose files are not those that were seen before."""
    window = f"logical_date={since.isoformat()}", f"logical_date={until.isoformat()}"
    reported: set[str] = set()
    for day, listed in _group_by_day(files):
        path, fingerprint = day.rstrip("/"), hash(tuple([info.name for info in listed]))
        if seen.get(path) == fingerprint:
            continue
        found = list(_find_in_day(day, listed, window, reported, known=()))
        yield from (each for each in found if isinstance(each, DamagedRun) and each.run is None)
        if runs := tuple(each for each in found if isinstance(each, ListedRun)):
            yield ChangedDay(path=path, fingerprint=fingerprint, runs=runs)


def _group_by_day(files: Iterable[FileInfo]) -> Iterator[tuple[str, list[FileInfo]]]:
    day, in_day = "", list[FileInfo]()
    for info in files:
        if in_day and day.endswith("/") and info.name.startswith(day):  # most files: no other work for them
            in_day.append(info)
            continue
        if in_day:
            yield day, in_day
        latest, day, in_day = day, _cut_to_day(info.name), [info]
        if day < latest and day.split("/") < latest.split("/"):  # the files of a day would come in pieces
            raise RawUnavailable(printable(day), "the bucket's service lists objects in no order")
    if in_day:
        yield day, in_day


def _cut_to_day(name: str) -> str:
    """The folder of the day, with a slash at its end, or the name of a file that is in none."""
    *folders, _name = parts = name.split("/")
    return "/".join([*folders[:DAY_DEPTH], ""]) if len(folders) >= DAY_DEPTH else "/".join(parts)


def _find_in_day(
    day: str, files: Iterable[FileInfo], window: tuple[str, str], reported: set[str], known: Container[Run]
) -> Iterator[ListedRun | DamagedRun]:
    """The runs of a day. Each invalid name of a folder above it is reported once."""
    parts = day.rstrip("/").split("/")
    if any(part[:1] in {".", "_"} for part in parts[1:]):
        return
    for depth in range(2, len(parts) + 1):
        if depth == DAY_DEPTH and is_outside(parts[-1], "logical_date=", window):
            return
        folder = "/".join(parts[:depth])
        if problem := find_name_problem(folder):
            if folder not in reported:
                reported.add(folder)
                yield DamagedRun(path=printable(folder), problem=problem)
            return
    if day.endswith("/"):
        yield from _find_in_runs(day, files, known)
    elif any(info.size for info in files):  # an empty one stands for a folder, as some tools write it
        yield DamagedRun(path=day, problem=NOT_A_DIRECTORY_PROBLEM)


def _find_in_runs(day: str, files: Iterable[FileInfo], known: Container[Run]) -> Iterator[ListedRun | DamagedRun]:
    by_folder: dict[str, list[FileInfo]] = {}
    for info in files:
        by_folder.setdefault(info.name.removeprefix(day).split("/")[0], []).append(info)
    for name in sorted(by_folder):
        if name[:1] not in {".", "_"}:
            yield from _describe_run(f"{day}{name}", by_folder[name], known)


def _describe_run(path: str, files: list[FileInfo], known: Container[Run]) -> Iterator[ListedRun | DamagedRun]:
    try:
        run = parse_run_path(path)
    except BadName as error:
        yield DamagedRun(path=printable(path), problem=str(error))
        return
    sizes = {info.name: info.size for info in files}
    if sizes.get(path):
        yield DamagedRun(path=path, problem=NOT_A_DIRECTORY_PROBLEM, run=run)
    elif run not in known:
        yield ListedRun(
            run=run,
            has_seal=f"{path}/{METADATA}" in sizes,
            payload_size=sizes.get(f"{path}/{PAYLOAD}"),
            modified_at=max(info.modified_at for info in files),
        )
