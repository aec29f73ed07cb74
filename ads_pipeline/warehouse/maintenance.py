"""Plans the compaction of small files, and finds and removes files that no reader or loader can still need.

Nothing here changes which rows a table holds. `staging` verifies compacted files, and `publication` commits them.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from itertools import zip_longest
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from pyspark.sql import SparkSession

from ads_pipeline.warehouse.delta_commits import (
    TableSnapshot,
    find_versions_since,
    open_table,
    read_log_entry,
    sync_log_entry,
)
from ads_pipeline.warehouse.staging import StagedFiles, stage_files
from ads_pipeline.warehouse.values import DATE_COLUMN, STAGING_DIRECTORY, DataFile, WarehouseTable

MIN_RETENTION: Final = timedelta(hours=1)
# One Spark task and one reader thread process a file. 128 MiB is one HDFS block and Spark's default read size, and
# far more than one day of most queries.
TARGET_FILE_BYTES: Final = 128 * 1024 * 1024


def stage_compaction(start_spark: Callable[[], SparkSession], snapshot: TableSnapshot) -> StagedFiles | None:
    """Stage fewer files for each day that has several small ones. None when no day has; then Spark is not started.

    Raises StagingDamaged when the rows, run or schema version of a partition would change.
    """
    sets = _plan_compaction(snapshot.files)
    if not sets:
        return None
    spark = start_spark()
    staged = [stage_files(spark, snapshot, rows=None, loads=[], partitions=(), replaced=files) for files in sets]
    return StagedFiles(
        added=tuple(action for part in staged for action in part.added),
        replaced=tuple(file for part in staged for file in part.replaced),
        rewrite=True,
    )


def find_removable_paths(table: WarehouseTable, retention: timedelta) -> tuple[str, ...]:
    """Paths below the table that no version within the retention refers to and no running load can own.

    Raises ValueError for a retention under one hour.
    """
    if retention < MIN_RETENTION:
        raise ValueError(f"{table}: the retention is {retention}; loads and readers need at least {MIN_RETENTION}")
    cutoff = time.time() - retention.total_seconds()
    # DeltaTable.vacuum (1.6.6) is unsafe. In full mode it follows links out of the table and deletes there, deletes
    # files of any kind, and after a checkpoint deletes files that versions within a retention of more than 7 days
    # refer to. Both modes skip _staging and write two commits without our transaction; lite mode misses orphans.
    old = list(_find_old_files(table, cutoff))  # before the log is read, so that files published meanwhile are kept
    snapshot = open_table(table)
    if snapshot is None:
        return ()
    sync_log_entry(snapshot)  # a power cut must not undo a commit after its replaced files are deleted
    referenced = _find_referenced_names(snapshot, cutoff)
    files = [] if referenced is None else [path for path in old if Path(path).name not in referenced]
    return tuple(sorted([*files, *_find_old_staging(table, cutoff)]))


def remove_paths(table: WarehouseTable, paths: Sequence[str]) -> None:
    """Remove files and staging directories. Ignores those that no longer exist."""
    for path in paths:
        if path.startswith(f"{STAGING_DIRECTORY}/"):
            with suppress(FileNotFoundError):
                shutil.rmtree(table.path / path)
        else:
            (table.path / path).unlink(missing_ok=True)


def _plan_compaction(files: Sequence[DataFile]) -> list[tuple[DataFile, ...]]:
    """Sets of files to stage together. A set has, for each day, as many small files as fit into one target file.

    Every run reduces the number of files, so compaction ends even if rows compress better than expected.
    """
    days: dict[date, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (file.day, file.min_customer_id or "", file.path)):
        if file.size < TARGET_FILE_BYTES:
            days.setdefault(file.day, []).append(file)
    groups_by_day = [[group for group in _group_by_size(small) if len(group) > 1] for small in days.values()]
    return [tuple(file for group in groups for file in group) for groups in zip_longest(*groups_by_day, fillvalue=())]


def _group_by_size(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Groups of at most TARGET_FILE_BYTES in customer order, so that each new file covers few customers."""
    groups: list[list[DataFile]] = []
    free_bytes = 0
    for file in files:
        if not groups or file.size > free_bytes:
            groups.append([])
            free_bytes = TARGET_FILE_BYTES
        groups[-1].append(file)
        free_bytes -= file.size
    return groups


def _find_referenced_names(snapshot: TableSnapshot, cutoff: float) -> set[str] | None:
    """Names of the files in every version since then. None when the log does not go back so far.

    Names, because another writer may log a path as a URI. Our file names are unique.
    """
    names = {Path(file.path).name for file in snapshot.files}
    versions = find_versions_since(snapshot, cutoff)
    if versions is None:
        return None
    for version in versions:
        entry = read_log_entry(snapshot.table, version)
        if entry is None:
            return None
        names.update(Path(unquote(action["remove"]["path"])).name for action in entry if "remove" in action)
    return names


def _find_old_files(table: WarehouseTable, cutoff: float) -> Iterator[str]:
    """Regular Parquet files in the day directories that were last written before then. Follows no links."""
    for day in _list_entries(table.path):
        if day.name.startswith(f"{DATE_COLUMN}=") and day.is_dir(follow_symlinks=False):
            for file in _list_entries(Path(day.path)):
                is_data = file.name.endswith(".parquet") and file.is_file(follow_symlinks=False)
                if is_data and _modified_at(Path(file.path)) < cutoff:
                    yield f"{day.name}/{file.name}"


def _find_old_staging(table: WarehouseTable, cutoff: float) -> Iterator[str]:
    """Staging directories in which nothing was written since then. Their loads have died."""
    staging = table.path / STAGING_DIRECTORY
    if staging.is_symlink():
        return
    for attempt in _list_entries(staging):
        if attempt.is_dir(follow_symlinks=False) and max(_all_modified_at(Path(attempt.path))) < cutoff:
            yield f"{STAGING_DIRECTORY}/{attempt.name}"


def _all_modified_at(directory: Path) -> Iterator[float]:
    yield _modified_at(directory)
    for top, folders, files in os.walk(directory):
        yield from (_modified_at(Path(top, name)) for name in (*folders, *files))


def _list_entries(directory: Path) -> list[os.DirEntry[str]]:
    if not directory.is_dir():
        return []
    with os.scandir(directory) as entries:
        return list(entries)


def _modified_at(path: Path) -> float:
    """The modification time, or now if a running loader has just moved the file away."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return time.time()
