"""Writes the rows of accepted runs as files of the warehouse while they are judged, and remembers these files.

Nothing of it is durable: what a dead process has staged, vacuum removes, and a later load reads the runs again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.lake.warehouse.file_writer import StagedRows, decode_files, encode_files
from ads_pipeline.lake.warehouse.table_values import StagedFile, StagedRun, WarehouseTable
from ads_pipeline.validation.payload_task import RowSink, TaskRun


class _WarehouseSink:
    """Hands the rows of a contract to the files of a table, inside a task."""

    def __init__(self, table: WarehouseTable, schema_version: str) -> None:
        self._rows = StagedRows(table.location, table.folder, schema_version)

    def add(self, accepted: Sequence[tuple[TaskRun, int]], rows: pa.Table) -> None:
        start = 0
        for day, group in groupby(accepted, key=lambda each: each[0].day):
            runs = [_describe(run, count) for run, count in group]
            count = sum(run.rows for run in runs)
            self._rows.add(day, runs, rows.slice(start, count))
            start += count

    def finish(self) -> Sequence[Mapping[str, Any]]:
        return encode_files(self._rows.finish())


def _describe(run: TaskRun, count: int) -> StagedRun:
    extracted_at = datetime.fromisoformat(run.extracted_at)
    return StagedRun(run.customer_id, run.run_id, count, run.currency_code, extracted_at)


def sink_into(table: WarehouseTable, schema_version: str) -> Callable[[], RowSink]:
    """The function by which a task opens its sink. Spark sends it, so it holds no store and no credentials."""
    return partial(_WarehouseSink, table, schema_version)


@dataclass(frozen=True, slots=True)
class StagedRuns:
    """The files that were staged by this process and are not published yet."""

    _files: dict[tuple[str, str], list[StagedFile]] = field(default_factory=dict)

    def add(self, table: WarehouseTable, written: Iterable[Mapping[str, Any]]) -> None:
        """Remember what the sinks of a job have written. Earlier files with one of its runs are forgotten.

        Otherwise the rows of a run that is judged again would be published twice.
        """
        files = decode_files(written)
        again = {run for file in files for run in _name_runs(file)}
        earlier = self._files.get((table.source, table.query_name), [])
        kept = [file for file in earlier if again.isdisjoint(_name_runs(file))]
        self._files[table.source, table.query_name] = kept + files

    def restore(self, table: WarehouseTable, files: Iterable[StagedFile]) -> None:
        """Remember files again that were taken and not published."""
        self._files.setdefault((table.source, table.query_name), []).extend(files)

    def take(self, keys: Iterable[PartitionKey]) -> list[StagedFile]:
        """The files that hold rows of these partitions of one table. They are forgotten here."""
        by_table: dict[tuple[str, str], set[tuple[str, date]]] = {}
        for key in keys:
            by_table.setdefault((key.source, key.query_name), set()).add((key.customer_id, key.logical_date))
        taken: list[StagedFile] = []
        for table, partitions in by_table.items():
            left: list[StagedFile] = []
            for file in self._files.pop(table, []):
                is_needed = any((run.customer_id, file.day) in partitions for run in file.runs)
                (taken if is_needed else left).append(file)
            if left:
                self._files[table] = left
        return taken


def _name_runs(file: StagedFile) -> set[tuple[str, date, str]]:
    return {(run.customer_id, file.day, run.run_id) for run in file.runs}
