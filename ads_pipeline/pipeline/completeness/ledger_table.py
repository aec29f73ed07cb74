"""Keeps a table about the warehouse as the ledger says. Each table says what may have changed, and which rows it has.

The log of a table says up to which event of each run it has seen the ledger. The newest version is opened before the
ledger is read, and a commit directly follows it. So no version holds older knowledge than the one before, whoever
writes it.
"""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import ClassVar, Final, Protocol

from ads_pipeline.domain.errors import AdsPipelineError, FilesDamaged, LogDamaged, TableContended
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.lake.completeness.keyed_rows import (
    Partition,
    RowChange,
    RowLayout,
    commit_rows,
    find_changed,
    open_rows,
    write_rows,
)
from ads_pipeline.lake.warehouse.commit_races import MAX_COMMIT_ATTEMPTS, pause
from ads_pipeline.lake.warehouse.delta_commits import TableSnapshot, open_table, read_mark, read_note
from ads_pipeline.lake.warehouse.error_translation import translate_errors
from ads_pipeline.lake.warehouse.table_values import WarehouseTable
from ads_pipeline.ledger.events.new_events import (
    COMMIT_DELAY,
    LogPosition,
    list_partitions_changed_after,
    read_position,
)
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.pipeline.days.day_conditions import QueryFileSettings

_LOG: Final = logging.getLogger(__name__)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
# The marks that every table has: the newest event that it has seen, the time of its last commit, and of the last
# comparison of everything.
EVENTS, AS_OF, COMPARED = "events", "as_of", "compared"
_COMPARED_AFTER: Final = timedelta(days=1)
MOST_READ_AGAIN: Final = 500  # changed partitions

Changes = Iterator[tuple[Partition, RowChange]]


class TableSettings(QueryFileSettings, Protocol):
    """The settings of a deployment that decide about its days, and where its warehouse is."""

    @property
    def warehouse_location(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """What a commit has not seen: the partitions that have `changed` by events from about `events` on.

    It has seen what time had changed up to `as_of`. `differing` are the table's own marks that are other ones now.
    """

    changed: frozenset[PartitionKey]
    events: datetime
    as_of: datetime
    differing: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCommit:
    """What the next commit would write over a snapshot, and what it leaves in the log: marks and the position.

    With `is_due`, it is made also without a change of rows, because the next one would read many events again.
    """

    snapshot: TableSnapshot
    marks: Mapping[str, int]
    position: LogPosition
    changes: Iterable[tuple[Partition, RowChange]]
    is_due: bool = False


class LedgerTable(ABC):
    """A table of one deployment that is derived from the ledger."""

    name: ClassVar[str]
    layout: ClassVar[RowLayout]

    def __init__(self, *, ledger: LedgerReader, settings: TableSettings, now: Clock | None = None) -> None:
        self._ledger, self._settings = ledger, settings
        self._now: Clock = now or (lambda: datetime.now(UTC))
        self.source = settings.google_apis.source
        self.table = WarehouseTable(location=settings.warehouse_location, source=self.source, query_name=self.name)

    def _read_marks(self) -> Mapping[str, int]:
        """The table's own marks as they are now. `Since` names those that differ from the last commit."""
        return {}

    @abstractmethod
    def _find_changes(
        self, snapshot: TableSnapshot, since: Since | None, also: Collection[PartitionKey], now: datetime
    ) -> Changes:
        """Yield the partitions that may have changed since then; without it, all partitions."""

    def publish(self, also: Collection[PartitionKey] = ()) -> int:
        """Write what changed since the last version. Gives the number of changed rows.

        The days in `also` are described too, whatever the log of events says. A table that does not exist, or has
        seen events that the ledger does not have, is compared as a whole.
        Raises WarehouseUnavailable when the table cannot be written, and TableContended after 20 lost races.
        """
        return self._publish(also, everything=False)

    def publish_all(self) -> int:
        """Compare all rows, and write those that differ. Replaces a damaged table.

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
            last = None if snapshot is None else read_mark(snapshot, COMPARED)
            if last is not None and timedelta(0) <= self._now() - to_time(last) < _COMPARED_AFTER:
                return self.publish()
        return self.publish_all()

    def publish_or_log(self, also: Collection[PartitionKey] = (), planned: PlannedCommit | None = None) -> None:
        """Do the same as `publish` after a change that has happened already. An error is logged.

        Until `reconcile` or a later change repairs it, the table is behind. `planned` was read before.
        """
        try:
            self._publish(also, everything=False, planned=planned)
        except AdsPipelineError as error:
            log_event(_LOG, LogEvent.DAYS_BEHIND, table=self.table, problem=str(error))

    def publish_if_present(self, also: Collection[PartitionKey]) -> None:
        """Do the same, unless there is no table: then every day would have to be described."""
        if self.table.store.has_files(self.table.folder):
            self.publish_or_log(also)

    def count_behind(self, *, before: datetime | None = None) -> int | None:
        """The number of rows that `publish` would change. None when there is no table. Nothing is written.

        With `before`, 0 while every event that the table has not seen is newer: a later change may still write it.
        """
        with translate_errors(self.table):
            snapshot = open_table(self.table)
            if snapshot is None:
                return None
            if before is not None and self._has_only_newer(snapshot, before):
                return 0
            planned = self._plan(snapshot, (), everything=False)
            return sum(each.changed for each in find_changed(snapshot, self.layout, planned.changes))

    def _has_only_newer(self, snapshot: TableSnapshot, before: datetime) -> bool:
        newest, seen = self._ledger.events.get_newest().at, read_mark(snapshot, EVENTS)
        if newest is None or seen is None or to_number(newest) <= seen:
            return False
        return self._ledger.events.count_changes(to_time(seen + 1), before) == 0

    def open(self) -> TableSnapshot:
        """The newest version. It is opened before the ledger is read."""
        with translate_errors(self.table):
            return open_rows(self.table, self.layout)

    def plan_changed(
        self, ledger: LedgerReader, snapshot: TableSnapshot, also: Collection[PartitionKey]
    ) -> PlannedCommit | None:
        """Read what changed since the snapshot from this ledger; None when everything has to be compared."""
        table = type(self)(ledger=ledger, settings=self._settings, now=self._now)
        marks = table._read_all_marks()
        last = {name: read_mark(snapshot, name) for name in marks}
        events, as_of = last[EVENTS], last[AS_OF]
        if events is None or as_of is None or marks[EVENTS] < events:
            return None
        now = to_time(marks[AS_OF])
        differing = frozenset(name for name, mark in marks.items() if mark != last[name])
        position = _read_position(snapshot) or LogPosition(newest_at=to_time(events))
        changed, position = list_partitions_changed_after(ledger.engine, position, now=now)
        since = Since(
            changed=frozenset(key for key in changed if key.source == self.source),
            events=min(to_time(events), now) - COMMIT_DELAY,
            as_of=to_time(as_of),
            differing=differing,
        )
        return PlannedCommit(
            snapshot=snapshot,
            marks=marks,
            position=position,
            changes=list(table._find_changes(snapshot, since, also, now)),
            is_due=len(changed) > MOST_READ_AGAIN or to_time(marks[EVENTS]) - to_time(events) > COMMIT_DELAY,
        )

    def _publish(
        self, also: Collection[PartitionKey], *, everything: bool, planned: PlannedCommit | None = None
    ) -> int:
        with translate_errors(self.table):
            for attempt in range(MAX_COMMIT_ATTEMPTS):
                try:
                    plan = planned or self._plan(self.open(), also, everything=everything)
                    planned, snapshot, marks = None, plan.snapshot, plan.marks
                    rows = write_rows(snapshot, self.layout, find_changed(snapshot, self.layout, plan.changes))
                except FilesDamaged as error:  # raised only while a part of the rows is described
                    log_event(_LOG, LogEvent.FILES_DAMAGED, table=self.table, problem=error.problem)
                    everything = True
                    continue
                is_new = read_mark(snapshot, EVENTS) is None
                if not (rows.added or rows.removed or everything or is_new or plan.is_due):
                    return 0
                compared = {COMPARED: marks[AS_OF]} if everything or is_new else {}
                if commit_rows(snapshot, rows, {**marks, **compared}, json.dumps(plan.position.document)):
                    return rows.changed
                pause(attempt)
        raise TableContended(str(self.table), f"others committed first {MAX_COMMIT_ATTEMPTS} times; try again")

    def _plan(self, snapshot: TableSnapshot, also: Collection[PartitionKey], *, everything: bool) -> PlannedCommit:
        """What changed, read in one transaction; or else all rows, as they are consumed."""
        changed = (
            None
            if everything
            else self._ledger.read_at_once(lambda ledger: self.plan_changed(ledger, snapshot, also))
        )
        if changed is not None:
            return changed
        marks, position = self._read_all_marks(), read_position(self._ledger.engine, self._now())
        changes = self._find_changes(snapshot, None, also, to_time(marks[AS_OF]))
        return PlannedCommit(snapshot=snapshot, marks=marks, position=position, changes=changes)

    def _read_all_marks(self) -> dict[str, int]:
        """The marks of the next commit. They are read before the rows."""
        now, newest = self._now(), self._ledger.events.get_newest().at
        return {EVENTS: 0 if newest is None else to_number(newest), AS_OF: to_number(now), **self._read_marks()}


def _read_position(snapshot: TableSnapshot) -> LogPosition | None:
    """Up to where the snapshot's own commit has read the events; None when its entry does not say so."""
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        return LogPosition.parse(json.loads(read_note(snapshot)))
    return None


def to_number(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def to_time(number: int) -> datetime:
    return _EPOCH + number * _MICROSECOND


def digest(*values: object) -> int:
    """A number that differs where the values differ."""
    return int.from_bytes(sha256(repr(values).encode()).digest()[:7])
