"""Opens a Delta table at one version and commits the next version.

A commit is a compare-and-swap on the version: it either directly follows the snapshot that it was planned on, or it
does not happen. `publication` decides what to commit.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from ads_pipeline.domain.errors import WarehouseError
from ads_pipeline.lake.storage.store import FileInfo
from ads_pipeline.lake.warehouse.columns import TableColumn, read_delta_columns, to_delta_schema
from ads_pipeline.lake.warehouse.log_damage import find_log_damage
from ads_pipeline.lake.warehouse.table_values import DataFile, WarehouseTable, read_bounds

APP_ID = "ads_pipeline"
TOKEN_FIELD = "adsPipelineToken"  # noqa: S105 - the name of a field in the log
NOTE_FIELD = "adsPipelineNote"
_LOG = "{}/_delta_log"
_ENTRY = re.compile(r"[0-9]{20}\.json", re.ASCII)
# Other writers add no statistics of columns either; `log_statistics` says why.
_CONFIGURATION = {"delta.dataSkippingNumIndexedCols": "0"}
_COLUMN_STATISTICS = ("min.", "max.", "null_count.")  # prefixes of the columns of get_add_actions
_COMMITS_PER_CHECKPOINT = 100
_LOG_RETENTION = timedelta(days=30)  # Delta's default; our tables do not change it
_NO_MARKS: Mapping[str, int] = {}
_NO_NOTES: Mapping[str, str] = {}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class CommitOutcome(StrEnum):
    """The result of a commit, read from the log."""

    COMMITTED = "committed"
    LOST = "lost"  # another commit has taken the version, so this one cannot happen any more
    UNKNOWN = "unknown"  # the version is still free, and slow storage may still write this commit


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """One version of a table. A commit must use the handle through which the version was read."""

    table: WarehouseTable
    handle: DeltaTable
    version: int
    columns: tuple[TableColumn, ...]
    files: tuple[DataFile, ...]


def open_table(table: WarehouseTable) -> TableSnapshot | None:
    """The newest version, or None when there is no table.

    Raises WarehouseError for an unexpected layout, and LogDamaged when a file of the log is damaged.
    """
    if not table.store.has_files(_LOG.format(table.folder)):
        return None  # opening it would create its folder
    try:
        handle = DeltaTable(table.uri)
    except TableNotFoundError:
        return None
    except DeltaError as error:
        if damage := find_log_damage(table, _LOG.format(table.folder)):
            raise damage from error
        raise
    _check_layout(table, handle)
    return TableSnapshot(
        table=table,
        handle=handle,
        version=handle.version(),
        columns=read_delta_columns(handle.schema()),
        files=_read_files(table, handle),
    )


def create_table(table: WarehouseTable, columns: tuple[TableColumn, ...]) -> None:
    """Create the empty table. Succeeds also when another process created it first."""
    table.store.make_folder(table.folder)
    try:
        DeltaTable.create(
            table.uri,
            schema=to_delta_schema(columns),
            partition_by=list(table.partition_columns),
            configuration=_CONFIGURATION,
            commit_properties=CommitProperties(app_transactions=[Transaction(APP_ID, 1)], max_commit_retries=0),
        )
    except DeltaError:
        if table.store.head(_entry_name(table, 0)) is None:
            raise
    _sync_entry(table, 0)


def commit_files(
    snapshot: TableSnapshot,
    *,
    removed: Iterable[DataFile],
    added: Sequence[AddAction],
    token: str,
    rewrite: bool = False,
    marks: Mapping[str, int] = _NO_MARKS,
    note: str = "",
) -> CommitOutcome:
    """Remove and add files in one commit. A rewrite is marked as changing no data, for readers of the change log.

    `marks` are numbers that `read_mark` returns by their names, from this version on. `read_note` returns the note
    at this version.
    """
    now = int(time.time() * 1000)
    removes = [
        RemoveAction(file.path, not rewrite, now, file.size, snapshot.table.name_values(file.partition))
        for file in removed
    ]
    adds = [replace(action, data_change=not rewrite) for action in added]
    return _commit(
        snapshot,
        token,
        lambda properties: snapshot.handle.create_write_transaction(
            [*removes, *adds],
            "append",
            to_delta_schema(snapshot.columns),
            partition_by=list(snapshot.table.partition_columns),
            commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        ),
        marks,
        {NOTE_FIELD: note} if note else {},
    )


def read_note(snapshot: TableSnapshot) -> str:
    """The note of the snapshot's own commit, or an empty text."""
    entry = read_log_entry(snapshot.table, snapshot.version) or ()
    return next((str(each["commitInfo"].get(NOTE_FIELD, "")) for each in entry if "commitInfo" in each), "")


def read_mark(snapshot: TableSnapshot, name: str) -> int | None:
    """The number that the last commit with a mark of this name has stored."""
    return snapshot.handle.transaction_version(f"{APP_ID}/{name}")


def make_add_action(
    path: str, *, size: int, values: Mapping[str, str | None], written_at: int, row_count: int | None
) -> AddAction:
    """The log entry of a data file; `values` are those of the partition columns.

    Its only statistic is the row count; `log_statistics` says why.
    """
    stats = json.dumps({} if row_count is None else {"numRecords": row_count})
    return AddAction(path, size, {**values}, written_at, True, stats)


def commit_columns(snapshot: TableSnapshot, *, new: Iterable[TableColumn], token: str) -> CommitOutcome:
    """Add nullable columns. This needs its own commit, because a commit of files cannot change the schema."""
    return _commit(
        snapshot,
        token,
        lambda properties: snapshot.handle.alter.add_columns(
            list(to_delta_schema(new).fields), commit_properties=properties, post_commithook_properties=_NO_HOOKS
        ),
    )


def sync_log_entry(snapshot: TableSnapshot) -> None:
    """Sync the snapshot's log entry to disk, because its writer may have died before doing so."""
    _sync_entry(snapshot.table, snapshot.version)


def read_log_entry(table: WarehouseTable, version: int) -> list[dict[str, Any]] | None:
    """The actions of one version, or None when its entry does not exist."""
    try:
        text = table.store.read(_entry_name(table, version))
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in text.splitlines() if line]


def find_versions_since(snapshot: TableSnapshot, moment: float) -> range | None:
    """The versions that were committed since then, up to the snapshot's. None if the log does not go back so far.

    The time of an entry is that of its file, from the same clock as the data files' times.
    """
    times = {
        int(name.removesuffix(".json")): file.modified_at
        for name, file in _list_log(snapshot.table).items()
        if _ENTRY.fullmatch(name)
    }
    recent = [version for version, written in times.items() if written >= moment]
    first = min(recent, default=snapshot.version + 1)
    if first > 0 and first - 1 not in times:
        return None
    return range(first, snapshot.version + 1)


def delete_old_log_entries(snapshot: TableSnapshot, retention: timedelta) -> None:
    """Delete log entries older than 30 days that a checkpoint replaces, unless the retention is longer.

    The version that was newest 30 days ago is kept, with all later ones. deltalake 1.6.6 would delete it if the next
    version has a checkpoint. It never deletes beyond its handle's version, so the clean-up opens that version.
    """
    table = snapshot.table
    cutoff = table.store.read_clock() - _LOG_RETENTION.total_seconds()
    since = find_versions_since(snapshot, cutoff)
    oldest = 0 if since is None else since.start - 1
    configured = "delta.logRetentionDuration" in snapshot.handle.metadata().configuration
    if retention > _LOG_RETENTION or configured or oldest < 1:
        return
    for version in (oldest, snapshot.version):
        if f"{version:020}.checkpoint.parquet" not in _list_log(table):
            write_checkpoint(table, version)
    DeltaTable(table.uri, version=oldest).cleanup_metadata()


def write_checkpoint(table: WarehouseTable, version: int) -> None:
    """Write and sync a checkpoint, which replaces every log entry up to this version when a table is opened."""
    DeltaTable(table.uri, version=version).create_checkpoint()
    for name, file in _list_log(table).items():
        if name.startswith(f"{version:020}.checkpoint") or name == "_last_checkpoint":
            table.store.make_durable(file.name)


def _commit(
    snapshot: TableSnapshot,
    token: str,
    commit: Callable[[CommitProperties], None],
    marks: Mapping[str, int] = _NO_MARKS,
    notes: Mapping[str, str] = _NO_NOTES,
) -> CommitOutcome:
    """Commit, and read the outcome from the log, because the call may raise after the commit took place."""
    sync_log_entry(snapshot)  # the previous entry must survive a power cut before another one follows it
    previous = snapshot.handle.transaction_version(APP_ID) or 0
    properties = CommitProperties(
        custom_metadata={TOKEN_FIELD: token, **notes},
        app_transactions=[
            Transaction(APP_ID, previous + 1),
            *(Transaction(f"{APP_ID}/{name}", mark) for name, mark in marks.items()),
        ],
        max_commit_retries=0,  # a library retry would skip commits that it considers harmless
    )
    with suppress(Exception):
        commit(properties)
    outcome = _read_outcome(snapshot, token)
    if outcome is CommitOutcome.COMMITTED:
        _sync_entry(snapshot.table, snapshot.version + 1)
        _write_due_checkpoint(snapshot.table, snapshot.version + 1)
    return outcome


def _read_outcome(snapshot: TableSnapshot, token: str) -> CommitOutcome:
    entry = read_log_entry(snapshot.table, snapshot.version + 1)
    if entry is None:
        return CommitOutcome.UNKNOWN
    found = any(action.get("commitInfo", {}).get(TOKEN_FIELD) == token for action in entry)
    return CommitOutcome.COMMITTED if found else CommitOutcome.LOST


def _write_due_checkpoint(table: WarehouseTable, version: int) -> None:
    """Write a checkpoint for every 100th version. Errors are ignored, because the log is complete without it."""
    if version % _COMMITS_PER_CHECKPOINT:
        return
    with suppress(DeltaError, OSError):
        write_checkpoint(table, version)


def _read_files(table: WarehouseTable, handle: DeltaTable) -> tuple[DataFile, ...]:
    adds = pa.table(handle.get_add_actions(flatten=True))
    names = ["path", "size_bytes", "modification_time", "num_records"]
    nulls = [None] * adds.num_rows
    columns = [adds[name].to_pylist() if name in adds.column_names else nulls for name in names]
    values = [f"partition.{name}" for name in table.partition_columns if adds.num_rows]
    texts = [adds[name].cast(pa.string()).to_pylist() for name in values]
    partitions = list(zip(*texts, strict=True)) if texts else [()] * adds.num_rows
    with_statistics = {
        row
        for name in adds.column_names
        if name.startswith(_COLUMN_STATISTICS)
        for row in pc.indices_nonzero(adds[name].is_valid()).to_pylist()
    }
    return tuple(
        DataFile(
            path=path,
            size=size,
            partition=partitions[row],
            written_at=written_at,
            row_count=rows,
            has_column_statistics=row in with_statistics,
            min_customer_id=bounds[0],
            max_customer_id=bounds[1],
        )
        for row, (path, size, written_at, rows) in enumerate(zip(*columns, strict=True))
        for bounds in [read_bounds(path)]
    )


def _check_layout(table: WarehouseTable, handle: DeltaTable) -> None:
    """Raise WarehouseError for a table that this loader did not create.

    With deletion vectors or column mapping (reader version 2 and up), the files alone do not give the rows.
    """
    protocol = handle.protocol()
    if handle.metadata().partition_columns != list(table.partition_columns) or protocol.min_reader_version > 1:
        raise WarehouseError(str(table), "the table has an unexpected layout; move it away or restore it")
    names = {field.name for field in handle.schema().fields}
    if not names.issuperset(table.required_columns):
        raise WarehouseError(str(table), f"the table must have the columns {', '.join(table.required_columns)}")


def _list_log(table: WarehouseTable) -> dict[str, FileInfo]:
    """The files of the log by their names in its folder."""
    folder = _LOG.format(table.folder)
    return {file.name.removeprefix(f"{folder}/"): file for file in table.store.list(folder)}


def _entry_name(table: WarehouseTable, version: int) -> str:
    return f"{_LOG.format(table.folder)}/{version:020}.json"


def _sync_entry(table: WarehouseTable, version: int) -> None:
    with suppress(FileNotFoundError):  # deleted after a checkpoint replaced it
        table.store.make_durable(_entry_name(table, version))
