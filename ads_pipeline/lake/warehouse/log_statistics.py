"""Keeps statistics of columns out of the log of a table, where they make readers drop rows without an error.

deltalake (0.18 to 1.6.6) turns the statistics of a log entry into a condition on the rows of its file. If an entry
has statistics of some columns, the condition compares the others with null, and pyarrow, pandas, DuckDB and polars
skip the file whenever they filter one of those. An entry with all columns lacks those that are added later. So the
entries of a table hold the row count only, and the customers of a file stand in its name.
"""

import logging
import re
import uuid
from contextlib import suppress
from typing import Final

from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from ads_pipeline.domain.errors import TableContended
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.lake.warehouse.commit_races import MAX_COMMIT_ATTEMPTS, pause
from ads_pipeline.lake.warehouse.delta_commits import (
    CommitOutcome,
    TableSnapshot,
    commit_files,
    make_add_action,
    open_table,
    write_checkpoint,
)
from ads_pipeline.lake.warehouse.table_values import DataFile, WarehouseTable

_LOG: Final = logging.getLogger(__name__)
# A path that the log holds as it is. Another path, such as a URI, would be added as a second file.
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9=_.-]+(?:/[A-Za-z0-9=_.-]+)*", re.ASCII)


def find_column_statistics(snapshot: TableSnapshot) -> list[DataFile]:
    """The files whose log entries have statistics of columns, as earlier releases and other writers leave them."""
    return [file for file in snapshot.files if file.has_column_statistics and _PLAIN_PATH.fullmatch(file.path)]


def open_for_writing(table: WarehouseTable) -> TableSnapshot | None:
    """The newest version, without statistics of columns, or None when there is no table."""
    return remove_statistics(table)[0]


def remove_statistics(table: WarehouseTable) -> tuple[TableSnapshot | None, int]:
    """The newest version without statistics of columns, and the number of entries that this call has replaced.

    One commit replaces all of them. A new entry has the same path, so readers of earlier versions keep their files.
    A crash leaves the old entries or the new ones. Raises TableContended after 20 lost races.
    """
    replaced = 0
    for attempt in range(MAX_COMMIT_ATTEMPTS):
        snapshot = open_table(table)
        described = [] if snapshot is None else find_column_statistics(snapshot)
        if snapshot is None or not described:
            return snapshot, replaced
        outcome = commit_files(
            snapshot,
            removed=(),
            added=[_describe(table, file) for file in described],
            token=uuid.uuid4().hex,
            rewrite=True,
        )
        if outcome is CommitOutcome.COMMITTED:
            replaced += len(described)
            with suppress(DeltaError, OSError):  # without it, readers read the old entries and then the new ones
                write_checkpoint(table, snapshot.version + 1)
            log_event(_LOG, LogEvent.STATISTICS_REMOVED, table=table, files=len(described))
        else:
            pause(attempt)
    raise TableContended(str(table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; try again")


def _describe(table: WarehouseTable, file: DataFile) -> AddAction:
    return make_add_action(
        file.path,
        size=file.size,
        values=table.name_values(file.partition),
        written_at=file.written_at,
        row_count=file.row_count,
    )
