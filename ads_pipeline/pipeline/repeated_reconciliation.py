"""Reconciles a query again and again, and looks only at the days that may have changed since the pass before.

A pass over everything reads one row of each partition from the tables and from the ledger. So an hourly job would pay
for years of history each time. Once a day it looks at everything all the same.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import parse_date
from ads_pipeline.lake.storage.durable_files import atomic_write, make_durable_directories
from ads_pipeline.ledger.events.new_events import COMMIT_DELAY
from ads_pipeline.ledger.sql.ledger_values import DayChanges, DayWindow
from ads_pipeline.pipeline.reconciliation import ReconcileResult, Reconciliation

FULL_PASS_AFTER: Final = timedelta(days=1)
MAX_GAP: Final = timedelta(days=7)  # days so close together are looked at in one pass
MAX_WINDOWS: Final = 20  # each opens the table again


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPass:
    """The facts that a pass has seen. `unsettled` are the days in which it found differences, repaired or not."""

    full_at: datetime
    changes: Mapping[date, DayChanges] = field(default_factory=dict)
    files: Mapping[str, date] = field(default_factory=dict)
    unsettled: Collection[date] = ()


class LastPasses:
    """The last pass over each query, in files below the home. Without its file, a pass looks at everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, source: str, query_name: str) -> LastPass | None:
        """The last pass, or None when there was none or its file cannot be read."""
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, BadName):
            return _decode(json.loads(self._path(source, query_name).read_bytes()))
        return None

    def write(self, source: str, query_name: str, last: LastPass) -> None:
        make_durable_directories(self._folder)
        with atomic_write(self._path(source, query_name)) as file:
            file.write(json.dumps(_encode(last)).encode())

    def _path(self, source: str, query_name: str) -> Path:
        return self._folder / f"{source}.{query_name}.json"


class RepeatedReconciliation:
    """Repairs what may have changed since the last pass."""

    def __init__(self, reconciliation: Reconciliation, passes: LastPasses) -> None:
        self._reconciliation, self._passes = reconciliation, passes

    def repair(self, source: str, query_name: str, *, now: datetime) -> list[ReconcileResult]:
        """Repair the days that changed since the last pass, or all days. Gives the result of each range of days.

        What is remembered was read before the plans, so that a change in between is looked at in the next pass.
        """
        whole = DayWindow(source=source, query_name=query_name)
        self._reconciliation.warehouse.remove_column_statistics(source=source, query_name=query_name)
        files = self._reconciliation.warehouse.list_files(source=source, query_name=query_name)
        changes = self._reconciliation.publications.day_changes(whole)
        last = self._passes.read(source, query_name)
        if last is None or not timedelta(0) <= now - last.full_at < FULL_PASS_AFTER:
            full_at, windows = now, [whole]
        else:
            publications = self._reconciliation.publications
            removing = {each.run.key.logical_date for each in publications.open_demotions(whole)}
            removing |= {each.run.key.logical_date for each in publications.open_withdrawals(whole)}
            damaged = self._reconciliation.warehouse.find_damaged_days(source=source, query_name=query_name)
            days = {*_find_changed(last, files, changes), *removing, *damaged, *last.unsettled}
            full_at, windows = last.full_at, list(_cover(whole, sorted(days)))
        plans = [(window, self._reconciliation.plan(window)) for window in windows]
        unsettled = {day for _window, plan in plans for day in plan.days}
        results = [self._reconciliation.carry_out(plan, window) for window, plan in plans]
        self._passes.write(
            source, query_name, LastPass(full_at=full_at, changes=changes, files=files, unsettled=unsettled)
        )
        return results


def _find_changed(last: LastPass, files: Mapping[str, date], changes: Mapping[date, DayChanges]) -> Iterator[date]:
    """The days whose files are other ones, and those whose states or pointers may have changed."""
    yield from (day for _path, day in files.items() ^ last.files.items())
    yield from (day for day, _change in changes.items() ^ last.changes.items())
    newest = max((change.newest_at for change in last.changes.values()), default=None)
    for day, change in changes.items():
        # A transaction takes its time when it begins, and may be visible only later.
        if newest is not None and change.newest_at >= newest - COMMIT_DELAY:
            yield day


def _cover(whole: DayWindow, days: list[date]) -> Iterator[DayWindow]:
    """Ranges that hold all of these days, which are in order."""
    if not days:
        return
    starts = [days[0], *(later for earlier, later in pairwise(days) if later - earlier > MAX_GAP)]
    ends = [*(earlier for earlier, later in pairwise(days) if later - earlier > MAX_GAP), days[-1]]
    if len(starts) > MAX_WINDOWS:
        starts, ends = [days[0]], [days[-1]]
    for since, until in zip(starts, ends, strict=True):
        yield DayWindow(source=whole.source, query_name=whole.query_name, since=since, until=until)


def _encode(last: LastPass) -> dict[str, Any]:
    return {
        "full_at": last.full_at.isoformat(),
        "changes": {day.isoformat(): (at.isoformat(), *numbers) for day, (at, *numbers) in last.changes.items()},
        "files": {path: day.isoformat() for path, day in last.files.items()},
        "unsettled": sorted(day.isoformat() for day in last.unsettled),
    }


def _decode(document: dict[str, Any]) -> LastPass:
    return LastPass(
        full_at=datetime.fromisoformat(document["full_at"]).astimezone(UTC),
        changes={
            parse_date(day): DayChanges(datetime.fromisoformat(at).astimezone(UTC), int(attempts), int(partitions))
            for day, (at, attempts, partitions) in document["changes"].items()
        },
        files={path: parse_date(day) for path, day in document["files"].items()},
        unsettled=[parse_date(day) for day in document["unsettled"]],
    )
