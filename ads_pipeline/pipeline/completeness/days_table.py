"""Keeps the table `days` as the ledger says: one row for each expected day of a customer and query.

Whoever changes days calls `publish`, and passes no list of what it changed: the table's log says up to which event it
has seen the ledger. The newest version is opened before the ledger is read, and a commit directly follows it. So no
version holds older knowledge than the one before.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, date, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from ads_pipeline.domain.errors import AdsPipelineError, FilesDamaged, LogDamaged, TableContended
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.warehouse_names import DAYS
from ads_pipeline.lake.completeness.keyed_rows import (
    Partition,
    RowChange,
    commit_rows,
    find_changed,
    open_rows,
    read_rows,
)
from ads_pipeline.lake.warehouse.commit_races import MAX_COMMIT_ATTEMPTS, pause
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot, open_table, read_mark
from ads_pipeline.lake.warehouse.error_translation import translate_errors
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline.ledger.events.new_events import COMMIT_DELAY
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.pipeline.completeness.day_rows import (
    LAYOUT,
    list_expected,
    partition_of,
    read_day_rows,
    read_window_rows,
    row_key,
)
from ads_pipeline.pipeline.days.day_conditions import DayRules
from ads_pipeline.pipeline.days.deadlines import find_due
from ads_pipeline.settings.query_file import GoogleApis

_LOG: Final = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COMPARED: Final = "compared"  # the mark of the last comparison of everything
_COMPARED_AFTER: Final = timedelta(days=1)

Changes = Iterator[tuple[Partition, RowChange]]


class TableSettings(Protocol):
    """The settings of a deployment that decide about its days, and where its warehouse is."""

    @property
    def google_apis(self) -> GoogleApis: ...

    @property
    def queries_file(self) -> Path: ...

    @property
    def warehouse_location(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What a version of the table has seen: events up to a time, deadlines up to a time, and a digest of the waits.

    The log of the table stores them as numbers.
    """

    events: int
    as_of: int
    waits: int

    @classmethod
    def of_snapshot(cls, snapshot: TableSnapshot) -> "Marks | None":
        """The marks of the last commit, or None for a new table."""
        marks = {each.name: read_mark(snapshot, each.name) for each in fields(cls)}
        known = {name: mark for name, mark in marks.items() if mark is not None}
        return cls(**known) if len(known) == len(marks) else None


class DaysTable:
    """The table `days` of one deployment."""

    def __init__(self, *, ledger: LedgerReader, settings: TableSettings, now: Clock | None = None) -> None:
        self._ledger, self._settings = ledger, settings
        self._now: Clock = now or (lambda: datetime.now(UTC))
        source = settings.google_apis.source
        self.table = WarehouseTable(location=settings.warehouse_location, source=source, query_name=DAYS)

    def publish(self, also: Collection[PartitionKey] = ()) -> int:
        """Write the days that changed since the last version. Gives the number of changed rows.

        The days in `also` are described too, whatever the log of events says. A table that does not exist, or has
        seen events that the ledger does not have, is compared as a whole.
        Raises WarehouseUnavailable when the table cannot be written, and TableContended after 20 lost races.
        """
        return self._publish(also, everything=False)

    def publish_all(self) -> int:
        """Compare every expected day, and write those that differ. Replaces a damaged table.

        The log stores when it was done, so that this makes a version also without a difference.
        """
        try:
            return self._publish((), everything=True)
        except LogDamaged as error:
            log_event(_LOG, LogEvent.FILES_DAMAGED, table=self.table, problem=error.problem)
            for file in list(self.table.store.list(self.table.folder)):
                self.table.store.delete(file.name)
            return self._publish((), everything=True)

    def publish_due(self) -> int:
        """Compare everything once a day, and otherwise do the same as `publish`."""
        with suppress(LogDamaged), translate_errors(self.table):
            snapshot = open_table(self.table)
            last = None if snapshot is None else read_mark(snapshot, _COMPARED)
            if last is not None and timedelta(0) <= self._now() - _to_time(last) < _COMPARED_AFTER:
                return self.publish()
        return self.publish_all()

    def publish_or_log(self, also: Collection[PartitionKey] = ()) -> None:
        """Do the same as `publish` after a change that has happened already. An error is logged.

        Until `reconcile` or a later change repairs it, the table is behind. It names no day as readable that is not.
        """
        try:
            self.publish(also)
        except AdsPipelineError as error:
            log_event(_LOG, LogEvent.DAYS_BEHIND, table=self.table, problem=str(error))

    def publish_if_present(self, also: Collection[PartitionKey]) -> None:
        """Do the same, unless there is no table: then every day would have to be described."""
        if self.table.store.has_files(self.table.folder):
            self.publish_or_log(also)

    def publish_before_removal(self, keys: Collection[PartitionKey]) -> None:
        """Write that these days are not readable, before their rows are removed.

        Raises WarehouseUnavailable when it cannot be written: then the rows must stay. A table that no reader can
        open, because its log is damaged, names no day as readable.
        """
        try:
            self.publish(keys)
        except LogDamaged as error:
            log_event(_LOG, LogEvent.DAYS_BEHIND, table=self.table, problem=error.problem)

    def count_behind(self) -> int | None:
        """The number of rows that `publish` would change. None when there is no table. Nothing is written."""
        with translate_errors(self.table):
            snapshot = open_table(self.table)
            if snapshot is None:
                return None
            _marks, changes = self._find_changes(snapshot, (), everything=False)
            return sum(each.changed for each in find_changed(snapshot, LAYOUT, changes))

    def _publish(self, also: Collection[PartitionKey], *, everything: bool) -> int:
        with translate_errors(self.table):
            for attempt in range(MAX_COMMIT_ATTEMPTS):
                snapshot = open_rows(self.table, LAYOUT)
                try:
                    marks, changes = self._find_changes(snapshot, also, everything=everything)
                    changed = list(find_changed(snapshot, LAYOUT, changes))
                except FilesDamaged as error:  # raised only while a part of the days is described
                    log_event(_LOG, LogEvent.FILES_DAMAGED, table=self.table, problem=error.problem)
                    everything = True
                    continue
                if not changed and not everything and Marks.of_snapshot(snapshot) is not None:
                    return 0
                compared = {_COMPARED: marks.as_of} if everything else {}
                if commit_rows(snapshot, LAYOUT, changed, asdict(marks) | compared):
                    return sum(each.changed for each in changed)
                pause(attempt)
        raise TableContended(str(self.table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; try again")

    def _find_changes(
        self, snapshot: TableSnapshot, also: Collection[PartitionKey], *, everything: bool
    ) -> tuple[Marks, Changes]:
        """The new marks, and the partitions that may have changed since the last commit."""
        apis, now = self._settings.google_apis, self._now()
        newest = self._ledger.events.get_newest().at
        rules = DayRules.read(self._ledger, self._settings, now=now)
        marks = Marks(
            events=0 if newest is None else _to_number(newest),
            as_of=_to_number(now),
            waits=_digest(self._ledger.retry_queue.list_parkings(apis.source), rules.holds),
        )
        last = Marks.of_snapshot(snapshot)
        if everything or last is None or marks.events < last.events:
            return marks, self._describe_all(snapshot, rules)
        since = min(_to_time(last.events), now) - COMMIT_DELAY
        changed = self._ledger.events.list_changed_partitions(self._ledger.events.list_changed_runs(since), since)
        keys = {key for key in (*changed, *also) if key.source == apis.source}
        keys.update(find_due(self._ledger, apis.source, list(apis.queries), _to_time(last.as_of), rules))
        keys.update(self._find_unlisted(snapshot, keys, rules))
        if marks.waits != last.waits:
            keys.update(self._find_waiting(snapshot))
        return marks, self._describe(keys, rules)

    def _describe(self, keys: Iterable[PartitionKey], rules: DayRules) -> Changes:
        """The rows of these days in place of the ones that the table has."""
        groups = defaultdict[Partition, list[PartitionKey]](list)
        for key in keys:
            groups[partition_of(key)].append(key)
        for partition, group in groups.items():
            yield partition, RowChange(rows=self._read(group, rules), keys=[row_key(key) for key in group])

    def _read(self, keys: Collection[PartitionKey], rules: DayRules) -> pa.Table:
        start = self._settings.google_apis.start_date
        shown = [key for key in keys if key.logical_date >= start]
        return self._ledger.read_at_once(lambda ledger: read_day_rows(ledger, shown, rules))

    def _describe_all(self, snapshot: TableSnapshot, rules: DayRules) -> Changes:
        """All rows of all partitions. A query that the query file no longer has keeps the days that it has."""
        apis, first_days = self._settings.google_apis, self._ledger.days.first_days(self._settings.google_apis.source)
        months = list(_list_months(max(apis.start_date, first_days.earliest or rules.now.date()), rules.now.date()))
        left = {file.partition for file in snapshot.files}
        for name in apis.queries:
            starts = first_days.of_query(name)
            for first, last in months:
                since = max(first, apis.start_date)
                window = DayWindow(source=apis.source, query_name=name, since=since, until=last)
                read = partial(read_window_rows, window=window, first_days=starts, rules=rules)
                partition: Partition = (name, f"{first:%Y-%m}")
                left.discard(partition)
                yield partition, RowChange(rows=self._ledger.read_at_once(read))
        for partition in sorted(left):
            keys = list[PartitionKey]()
            if partition[0] not in apis.queries:
                with suppress(FilesDamaged):
                    keys = self._list_keys(snapshot, partition)
            yield partition, RowChange(rows=self._read(keys, rules))

    def _find_unlisted(
        self, snapshot: TableSnapshot, keys: Collection[PartitionKey], rules: DayRules
    ) -> set[PartitionKey]:
        """The days that are expected and not in the table, or the reverse, of customers whose first day changed."""
        apis, customers = self._settings.google_apis, {key.customer_id for key in keys}
        first_days = self._ledger.days.first_days(apis.source, customers)
        expected = {name: first_days.of_query(name) for name in {key.query_name for key in keys}}
        begun = {
            key.customer_id
            for key in keys
            if (days := expected[key.query_name].get(key.customer_id)) is not None
            and key.logical_date <= max(days.first, apis.start_date)
        }
        if not begun:
            return set()
        wanted = list_expected(apis, begun, first_days, rules)
        partitions = {file.partition for file in snapshot.files if file.partition[0] in apis.queries}
        present = {key for each in partitions for key in self._list_keys(snapshot, each) if key.customer_id in begun}
        return {key for key in wanted ^ present if key.logical_date >= apis.start_date}

    def _find_waiting(self, snapshot: TableSnapshot) -> set[PartitionKey]:
        """The days of the table that readers do not see: a parking or a hold may change their condition."""
        partitions = {file.partition for file in snapshot.files}
        return {key for each in partitions for key in self._list_keys(snapshot, each, only_unreadable=True)}

    def _list_keys(
        self, snapshot: TableSnapshot, partition: Partition, *, only_unreadable: bool = False
    ) -> list[PartitionKey]:
        rows = read_rows(snapshot, LAYOUT, partition)
        columns = (rows[name].to_pylist() for name in ("customer_id", "logical_date", "is_readable"))
        return [
            PartitionKey(source=self.table.source, customer_id=customer, query_name=partition[0], logical_date=day)
            for customer, day, is_readable in zip(*columns, strict=True)
            if not (only_unreadable and is_readable)
        ]


def _list_months(first: date, last: date) -> Iterator[tuple[date, date]]:
    """The first and the last day of each month from one day to another."""
    month = first.replace(day=1)
    while month <= last:
        following = (month + timedelta(days=31)).replace(day=1)
        yield month, following - timedelta(days=1)
        month = following


def _to_number(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def _to_time(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND


def _digest(*values: object) -> int:
    return int.from_bytes(sha256(repr(values).encode()).digest()[:7])
