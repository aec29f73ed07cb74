"""The tables `loads` and `restatements`: what happened to days, one row an event. A row never changes.

They are partitioned by the day of the event, so that a load writes one small file again.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from ads_pipeline.domain.measures import PartitionRestatement
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.warehouse_names import LOADS, RESTATEMENTS
from ads_pipeline.lake.completeness.keyed_rows import RowChange, RowLayout
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot
from ads_pipeline.ledger.sql.ledger_values import RecordedLoad
from ads_pipeline.pipeline.completeness.ledger_table import Changes, LedgerTable, Since

_TIME: Final = pa.timestamp("us", "UTC")
_KEY: Final = [(name, pa.string()) for name in ("source", "customer_id", "query_name")] + [
    ("logical_date", pa.date32())
]
_FIGURES: Final = {
    "rows": pa.int64(),
    "cost_micros": pa.int64(),
    "conversions": pa.float64(),
    "conversions_value": pa.float64(),
}
LOADS_LAYOUT: Final = RowLayout(
    schema=pa.schema(
        [
            *_KEY,
            ("run_id", pa.string()),
            ("schema_version", pa.string()),
            ("record_count", pa.int64()),
            ("table_version", pa.int64()),
            ("loaded_at", _TIME),
        ]
    ),
    key=("query_name", "logical_date", "customer_id", "run_id"),
    dates=True,
)
RESTATEMENTS_LAYOUT: Final = RowLayout(
    schema=pa.schema(
        [
            *_KEY,
            ("at", _TIME),
            ("run_id", pa.string()),
            ("previous_run_id", pa.string()),
            *_FIGURES.items(),
            *((f"previous_{name}", kind) for name, kind in _FIGURES.items()),
        ]
    ),
    key=("query_name", "logical_date", "customer_id", "run_id", "at"),
    dates=True,
)


class HistoryTable(LedgerTable):
    """A table of events of partitions. Each event has a time, by which it is found and partitioned."""

    time_column: str

    @abstractmethod
    def _read_since(self, keys: Iterable[PartitionKey], since: datetime) -> Iterator[dict[str, Any]]:
        """Yield the rows of these partitions from a time on."""

    @abstractmethod
    def _read_all(self) -> Iterator[dict[str, Any]]:
        """Yield all rows in the order of time."""

    def _find_changes(
        self, snapshot: TableSnapshot, since: Since | None, _also: Collection[PartitionKey], _now: datetime
    ) -> Changes:
        if since is not None:
            found = list(self._read_since(since.changed, since.events))
            for day, rows in self._group(sorted(found, key=lambda row: row[self.time_column])):
                yield day, RowChange(rows=rows, keys=self._list_keys(rows))
            return
        left = {file.partition for file in snapshot.files}
        for day, rows in self._group(self._read_all()):
            left.discard(day)
            yield day, RowChange(rows=rows)
        for day in sorted(left):
            yield day, RowChange(rows=self.layout.schema.empty_table())

    def _group(self, rows: Iterable[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
        """The rows of each day, which come in the order of time."""
        for day, group in groupby(rows, lambda row: row[self.time_column].astimezone(UTC).date()):
            yield (day.isoformat(),), pa.Table.from_pylist(list(group), schema=self.layout.schema)

    def _list_keys(self, rows: pa.Table) -> list[tuple[str, ...]]:
        columns = (rows[name].cast(pa.string()).to_pylist() for name in self.layout.key)
        return list(zip(*columns, strict=True))


class LoadsTable(HistoryTable):
    """The table `loads`: the first load of each run."""

    name, layout, time_column = LOADS, LOADS_LAYOUT, "loaded_at"

    def _read_since(self, keys: Iterable[PartitionKey], since: datetime) -> Iterator[dict[str, Any]]:
        return map(RecordedLoad._asdict, self._ledger.publications.loads_since(keys, since))

    def _read_all(self) -> Iterator[dict[str, Any]]:
        return map(RecordedLoad._asdict, self._ledger.publications.all_loads(self.source))


class RestatementsTable(HistoryTable):
    """The table `restatements`: each accepted run beside the accepted run before it."""

    name, layout, time_column = RESTATEMENTS, RESTATEMENTS_LAYOUT, "at"

    def _read_since(self, keys: Iterable[PartitionKey], since: datetime) -> Iterator[dict[str, Any]]:
        return map(_describe, self._ledger.restatements.since(keys, since))

    def _read_all(self) -> Iterator[dict[str, Any]]:
        return map(_describe, self._ledger.restatements.all(self.source))


def _describe(restatement: PartitionRestatement) -> dict[str, Any]:
    key, after, before = restatement.key, restatement.after, restatement.before
    measured = {name: getattr(after.measures, name) for name in _FIGURES if name != "rows"}
    measured_before = {f"previous_{name}": getattr(before.measures, name) for name in measured}
    return {
        "source": key.source,
        "customer_id": key.customer_id,
        "query_name": key.query_name,
        "logical_date": key.logical_date,
        "at": restatement.judged_at,
        "run_id": after.run_id,
        "previous_run_id": before.run_id,
        "rows": after.rows,
        "previous_rows": before.rows,
        **measured,
        **measured_before,
    }
