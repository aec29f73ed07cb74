"""Plans the compaction of small files, and finds and removes files that no reader or loader can still need.

Ages are computed with the clock of the store, which dates the files: a clock of another machine may differ by days.
Nothing here changes which rows a table holds. `staging` verifies compacted files, and `publication` commits them.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

from ads_pipeline.lake.warehouse.delta_commits import (
    TableSnapshot,
    find_versions_since,
    open_table,
    read_log_entry,
    sync_log_entry,
)
from ads_pipeline.lake.warehouse.merging import TARGET_FILE_BYTES
from ads_pipeline.lake.warehouse.table_values import DataFile, WarehouseTable

MIN_RETENTION: Final = timedelta(hours=1)


def plan_compaction(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Groups of small files of one day that fit into one target file.

    Every run reduces the number of files, so compaction ends even if rows compress better than expected.
    """
    days: dict[date, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: (file.day, file.min_customer_id or "", file.path)):
        if file.size < TARGET_FILE_BYTES:
            days.setdefault(file.day, []).append(file)
    return [group for small in days.values() for group in _group_by_size(small) if len(group) > 1]


def find_removable_paths(table: WarehouseTable, retention: timedelta) -> tuple[str, ...]:
    """Paths below the table that no version within the retention refers to and no running load can own.

    Raises ValueError for a retention under one hour.
    """
    if retention < MIN_RETENTION:
        raise ValueError(f"{table}: the retention is {retention}; loads and readers need at least {MIN_RETENTION}")
    if not table.store.has_files(table.folder):
        return ()
    cutoff = table.store.read_clock() - retention.total_seconds()
    # DeltaTable.vacuum (1.6.6) is unsafe. In full mode it follows links out of the table and deletes there, deletes
    # files of any kind, and after a checkpoint deletes files that versions within a retention of more than 7 days
    # refer to. Both modes skip _staging and write two commits without our transaction; lite mode misses orphans.
    old = sorted(_find_old_files(table, cutoff))  # before the log is read, so that files published meanwhile are kept
    snapshot = open_table(table)
    if snapshot is None:
        return ()
    sync_log_entry(snapshot)  # a power cut must not undo a commit after its replaced files are deleted
    referenced = _find_referenced_names(snapshot, cutoff)
    return () if referenced is None else tuple(path for path in old if path.rpartition("/")[2] not in referenced)


def remove_paths(table: WarehouseTable, paths: Iterable[str], retention: timedelta) -> None:
    """Remove these files, and what writers that died before the retention left behind."""
    for path in paths:
        table.store.delete(table.name_of(path))
    table.store.delete_leftovers(table.folder, retention)


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
    names = {PurePosixPath(file.path).name for file in snapshot.files}
    versions = find_versions_since(snapshot, cutoff)
    if versions is None:
        return None
    for version in versions:
        entry = read_log_entry(snapshot.table, version)
        if entry is None:
            return None
        names.update(PurePosixPath(unquote(action["remove"]["path"])).name for action in entry if "remove" in action)
    return names


def _find_old_files(table: WarehouseTable, cutoff: float) -> Iterator[str]:
    """Parquet files in the folders of partitions that were last written before then."""
    data_file = re.compile("".join(f"{name}=[^/]*/" for name in table.partition_columns) + r"[^/]*\.parquet")
    for file in table.store.list(table.folder):
        path = file.name.removeprefix(f"{table.folder}/")
        if data_file.fullmatch(path) and file.modified_at < cutoff:
            yield path
