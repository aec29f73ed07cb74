"""Opens a table's log at one version and commits the next one, or says truly that it did not.

A commit is a compare-and-swap on the version: it becomes exactly the successor of the snapshot it was planned on, or
it does not happen. What should be committed is for `publication` to plan.
"""

import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from ads_pipeline.errors import WarehouseError
from ads_pipeline.warehouse.columns import TableColumn, columns_held, delta_fields, delta_schema
from ads_pipeline.warehouse.values import DATE, KEYS, DataFile, Table

APPLICATION = "ads_pipeline"
TOKEN = "adsPipelineToken"  # noqa: S105 - names a field of the log
_CHECKPOINT_EVERY = 100
_LOG_KEPT = timedelta(days=30)  # Delta's default, which tables of our making keep
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class CommitOutcome(StrEnum):
    """What the log says became of a commit."""

    OURS = "ours"
    LOST = "lost"  # another commit took the version: ours cannot happen any more
    UNKNOWN = "unknown"  # the version is still free; a slow storage may yet bring ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One version of a table. The handle is kept because a commit must start from what was read through it."""

    table: Table
    handle: DeltaTable
    version: int
    columns: tuple[TableColumn, ...]
    files: tuple[DataFile, ...]


def open_table(table: Table) -> Snapshot | None:
    """The newest version, or None when there is no table. WarehouseError when the table is not of our making."""
    if not table.log.is_dir():
        return None
    try:
        handle = DeltaTable(str(table.path))
    except TableNotFoundError:
        return None
    _refuse_foreign(table, handle)
    return Snapshot(
        table=table,
        handle=handle,
        version=handle.version(),
        columns=columns_held(handle.schema()),
        files=_files(handle),
    )


def create_table(table: Table, columns: tuple[TableColumn, ...]) -> None:
    """The empty table. When another creator is faster, its table stands and this is no failure."""
    make_directories(table.path)
    try:
        DeltaTable.create(
            str(table.path),
            schema=delta_schema(columns),
            partition_by=[DATE],
            commit_properties=CommitProperties(app_transactions=[Transaction(APPLICATION, 1)], max_commit_retries=0),
        )
    except DeltaError:
        if not _entry(table, 0).is_file():
            raise
    force_directory(table.path)
    _force_entry(table, 0)


def commit_files(
    snapshot: Snapshot, *, removed: Iterable[DataFile], added: Sequence[AddAction], token: str, rewrite: bool = False
) -> CommitOutcome:
    """Remove and add in one commit. A rewrite tells readers of changes that no row was changed."""
    now = int(time.time() * 1000)
    removes = [RemoveAction(file.path, not rewrite, now, file.size, {DATE: file.day.isoformat()}) for file in removed]
    adds = [replace(action, data_change=not rewrite) for action in added]
    return _committed(
        snapshot,
        token,
        lambda properties: snapshot.handle.create_write_transaction(
            [*removes, *adds],
            "append",
            delta_schema(snapshot.columns),
            partition_by=[DATE],
            commit_properties=properties,
            post_commithook_properties=_NO_HOOKS,
        ),
    )


def commit_columns(snapshot: Snapshot, *, fresh: Iterable[TableColumn], token: str) -> CommitOutcome:
    """Add nullable columns; a commit of its own, because a write's commit cannot change the schema."""
    return _committed(
        snapshot,
        token,
        lambda properties: snapshot.handle.alter.add_columns(
            delta_fields(fresh), commit_properties=properties, post_commithook_properties=_NO_HOOKS
        ),
    )


def force_log(snapshot: Snapshot) -> None:
    """Force the snapshot's own log entry to disk: whoever wrote it may have died before doing so."""
    _force_entry(snapshot.table, snapshot.version)


def read_entry(table: Table, version: int) -> list[dict[str, Any]] | None:
    """The actions of one version, or None when it does not exist (any more)."""
    try:
        text = _entry(table, version).read_text()
    except FileNotFoundError:
        return None
    return [json.loads(line) for line in text.splitlines() if line]


def versions_since(snapshot: Snapshot, moment: float) -> range | None:
    """The versions up to the snapshot's that may have been committed since then, or None when the log is younger.

    An entry's age is its file's, which the storage's own clock tells for data files as well.
    """
    table = snapshot.table
    ages = {int(path.stem): path.stat().st_mtime for path in table.log.glob("[0-9]" * 20 + ".json")}
    young = [version for version, written in ages.items() if written >= moment]
    first = min(young, default=snapshot.version + 1)
    if first > 0 and first - 1 not in ages:
        return None
    return range(first, snapshot.version + 1)


def trim_log(snapshot: Snapshot, retention: timedelta) -> None:
    """Remove entries of more than 30 days for which a checkpoint stands, unless the retention asks for them.

    The version that was newest 30 days ago stays, with all after it. Left to choose, the library (1.6.6) removes it
    where a checkpoint lies on the version after it; it goes no further than the version its handle has open.
    """
    table, cutoff = snapshot.table, time.time() - _LOG_KEPT.total_seconds()
    since = versions_since(snapshot, cutoff)
    eldest = 0 if since is None else since.start - 1
    configured = "delta.logRetentionDuration" in snapshot.handle.metadata().configuration
    if retention > _LOG_KEPT or configured or eldest < 1:
        return
    for version in (eldest, snapshot.version):
        if not (table.log / f"{version:020}.checkpoint.parquet").is_file():
            write_checkpoint(table, version)
    DeltaTable(str(table.path), version=eldest).cleanup_metadata()


def write_checkpoint(table: Table, version: int) -> None:
    """Keeps opening fast: the checkpoint stands for every entry up to this version."""
    DeltaTable(str(table.path), version=version).create_checkpoint()
    for path in table.log.glob(f"{version:020}.checkpoint*.parquet"):
        force_file(path)
    force_file(table.log / "_last_checkpoint")
    force_directory(table.log)


def force_file(path: Path) -> None:
    _force(path, os.O_RDONLY | os.O_NOFOLLOW)


def force_directory(path: Path) -> None:
    _force(path, os.O_RDONLY | os.O_DIRECTORY)


def make_directories(path: Path) -> None:
    """The directory with all above it, each name forced to disk."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        force_directory(each.parent)


def _committed(snapshot: Snapshot, token: str, commit: Callable[[CommitProperties], None]) -> CommitOutcome:
    """Call it, then believe the log and not the call: an exception may follow a commit that took place."""
    force_log(snapshot)  # an entry may only follow entries that a power cut cannot take away
    previous = snapshot.handle.transaction_version(APPLICATION) or 0
    properties = CommitProperties(
        custom_metadata={TOKEN: token},
        app_transactions=[Transaction(APPLICATION, previous + 1)],
        max_commit_retries=0,  # the library's own retries would step over commits it thinks harmless
    )
    with suppress(Exception):
        commit(properties)
    outcome = _outcome(snapshot, token)
    if outcome is CommitOutcome.OURS:
        _force_entry(snapshot.table, snapshot.version + 1)
        _checkpoint(snapshot.table, snapshot.version + 1)
    return outcome


def _outcome(snapshot: Snapshot, token: str) -> CommitOutcome:
    entry = read_entry(snapshot.table, snapshot.version + 1)
    if entry is None:
        return CommitOutcome.UNKNOWN
    ours = any(action.get("commitInfo", {}).get(TOKEN) == token for action in entry)
    return CommitOutcome.OURS if ours else CommitOutcome.LOST


def _checkpoint(table: Table, version: int) -> None:
    """It can fail without harm: the commit stands and the log is complete without it."""
    if version % _CHECKPOINT_EVERY:
        return
    with suppress(DeltaError, OSError):
        write_checkpoint(table, version)


def _files(handle: DeltaTable) -> tuple[DataFile, ...]:
    adds = pa.table(handle.get_add_actions(flatten=True))
    wanted = ["path", "size_bytes", "num_records", f"partition.{DATE}", "min.customer_id", "max.customer_id"]
    nothing = [None] * adds.num_rows
    cells = [adds[name].to_pylist() if name in adds.column_names else nothing for name in wanted]
    return tuple(
        DataFile(path=path, size=size, rows=rows, day=day, lowest=lowest, highest=highest)
        for path, size, rows, day, lowest, highest in zip(*cells, strict=True)
    )


def _refuse_foreign(table: Table, handle: DeltaTable) -> None:
    """Files of a table with deletion vectors or column mapping do not mean what they say."""
    protocol = handle.protocol()
    if handle.metadata().partition_columns != [DATE] or protocol.min_reader_version > 1:
        raise WarehouseError(
            str(table), "this table has another layout than the loader writes; move it away or restore it"
        )
    names = {field.name for field in handle.schema().fields}
    if not names.issuperset((*KEYS, DATE)):
        raise WarehouseError(str(table), f"this table lacks one of the columns {', '.join((*KEYS, DATE))}")


def _entry(table: Table, version: int) -> Path:
    return table.log / f"{version:020}.json"


def _force_entry(table: Table, version: int) -> None:
    with suppress(FileNotFoundError):  # cleaned up: then a checkpoint stands for it
        force_file(_entry(table, version))
    force_directory(table.log)


def _force(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path.name} is not a plain file")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
