"""Packs a table's small files, and finds and removes the files that no reader or loader can still need.

Nothing here decides what rows a table holds. Packed files are proved by `staging` and committed by `publication`.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark.sql import SparkSession

from ads_pipeline.warehouse.delta_commits import Snapshot, force_log, open_table, read_entry, trim_log, versions_since
from ads_pipeline.warehouse.staging import Staged, stage
from ads_pipeline.warehouse.values import DATE, STAGING, DataFile, Table

LEAST_RETENTION: Final = timedelta(hours=1)
# A day is read and rewritten whole by one Spark task and by one reader's thread; this is one HDFS block, what Spark
# itself reads at a time, and far above what a day of most queries weighs.
FULL_FILE: Final = 128 * 1024 * 1024


def stage_packed(spark: SparkSession, snapshot: Snapshot) -> Staged | None:
    """Fewer files for every day that lies in several small ones, or None when each day lies well.

    StagingDamaged when a partition's rows, run or schema version would come out differently.
    """
    packs = _packs(snapshot.files)
    if not packs:
        return None
    staged = [stage(spark, snapshot, rows=None, loads=[], partitions=(), replaced=files) for files in packs]
    return Staged(
        added=tuple(action for each in staged for action in each.added),
        replaced=tuple(file for each in staged for file in each.replaced),
        rewrite=True,
    )


def removable(table: Table, retention: timedelta) -> tuple[str, ...]:
    """The paths below the table that no version within the retention names and no living load can own."""
    if retention < LEAST_RETENTION:
        raise ValueError(f"{table}: loads and readers may run longer than a retention of {retention}; give an hour")
    cutoff = time.time() - retention.total_seconds()
    # Not DeltaTable.vacuum. Tried with 1.6.6: in full mode it follows links out of the table and deletes there, takes
    # files of any kind, and after a checkpoint takes what versions within a retention of more than 7 days name. Both
    # modes pass over _staging and write two commits without our transaction; lite mode does not know orphans.
    old = list(_old_files(table, cutoff))  # listed before the log is read, which names what is published meanwhile
    snapshot = open_table(table)
    if snapshot is None:
        return ()
    force_log(snapshot)  # a removal may only be acted on when a power cut cannot take it back
    named = _named_since(snapshot, cutoff)
    files = [] if named is None else [path for path in old if Path(path).name not in named]
    return tuple(sorted([*files, *_old_attempts(table, cutoff)]))


def remove_paths(table: Table, paths: Sequence[str]) -> None:
    """Remove files and staging directories; one that is gone already is no failure."""
    for path in paths:
        if path.startswith(f"{STAGING}/"):
            with suppress(FileNotFoundError):
                shutil.rmtree(table.path / path)
        else:
            (table.path / path).unlink(missing_ok=True)


def shorten_log(table: Table, retention: timedelta) -> None:
    """Let a checkpoint stand for log entries that nobody within the retention needs, where there are such."""
    snapshot = open_table(table)
    if snapshot is not None:
        trim_log(snapshot, retention)


def _packs(files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
    """Files to stage together: each set holds, of each day, what fits into one file; days of much data need several.

    What is packed counts fewer files each time, so this ends even where packed rows compress better than expected.
    """
    days: dict[date, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (file.day, file.lowest or "", file.path)):
        if file.size < FULL_FILE:
            days.setdefault(file.day, []).append(file)
    by_day = [[group for group in _groups(small) if len(group) > 1] for small in days.values()]
    return [tuple(file for group in groups for file in group) for groups in zip_longest(*by_day, fillvalue=())]


def _groups(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Neighbours by customer, as many as one full file holds, so that each file spans few customers."""
    groups: list[list[DataFile]] = []
    room = 0
    for file in files:
        if not groups or file.size > room:
            groups.append([])
            room = FULL_FILE
        groups[-1].append(file)
        room -= file.size
    return groups


def _named_since(snapshot: Snapshot, cutoff: float) -> set[str] | None:
    """The names of files in any version since then, or None when the log does not go back so far.

    Names, because a foreign writer may spell a path as an address; ours occur once in the world.
    """
    names = {Path(file.path).name for file in snapshot.files}
    since = versions_since(snapshot, cutoff)
    if since is None:
        return None
    for version in since:
        entry = read_entry(snapshot.table, version)
        if entry is None:
            return None
        names.update(Path(unquote(action["remove"]["path"])).name for action in entry if "remove" in action)
    return names


def _old_files(table: Table, cutoff: float) -> Iterator[str]:
    """Plain Parquet files in plain directories of days, all last written before then. No link is followed."""
    for day in _entries(table.path):
        if day.name.startswith(f"{DATE}=") and day.is_dir(follow_symlinks=False):
            for file in _entries(Path(day.path)):
                plain = file.name.endswith(".parquet") and file.is_file(follow_symlinks=False)
                if plain and _written(Path(file.path)) < cutoff:
                    yield f"{day.name}/{file.name}"


def _old_attempts(table: Table, cutoff: float) -> Iterator[str]:
    """Staging directories in which nothing was written since then: their loads are dead."""
    staging = table.path / STAGING
    if staging.is_symlink():
        return
    for attempt in _entries(staging):
        if attempt.is_dir(follow_symlinks=False) and max(_times(Path(attempt.path))) < cutoff:
            yield f"{STAGING}/{attempt.name}"


def _times(place: Path) -> Iterator[float]:
    yield _written(place)
    for top, folders, files in os.walk(place):
        yield from (_written(Path(top, name)) for name in (*folders, *files))


def _entries(place: Path) -> list[os.DirEntry[str]]:
    if not place.is_dir():
        return []
    with os.scandir(place) as entries:
        return list(entries)


def _written(path: Path) -> float:
    """When it was last written; what a living loader has just moved away counts as written now."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return time.time()
