"""Finds the days of a table whose rows were withdrawn or demoted after a version of it was opened."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from ads_pipeline.lake.warehouse.delta_commits import TOKEN_FIELD, TableSnapshot, read_log_entry
from ads_pipeline.lake.warehouse.table_values import DATE_COLUMN, REMOVAL_PREFIX


class RemovedDays:
    """Reads the log of a table from a version on. Each entry is read once."""

    def __init__(self, snapshot: TableSnapshot) -> None:
        self._table, self._version = snapshot.table, snapshot.version
        self._days: frozenset[date] = frozenset()

    def find(self) -> frozenset[date]:
        """The days from whose files a later version removed rows without replacing them, up to the newest version."""
        version, days = self._version, set(self._days)
        while (entry := read_log_entry(self._table, version + 1)) is not None:
            version += 1
            days.update(_list_removed(entry))
        self._version, self._days = version, frozenset(days)
        return self._days


def _list_removed(entry: Sequence[Mapping[str, Any]]) -> set[date]:
    tokens = (str(action["commitInfo"].get(TOKEN_FIELD, "")) for action in entry if "commitInfo" in action)
    if not any(token.startswith(REMOVAL_PREFIX) for token in tokens):
        return set()
    removed = (action["remove"]["partitionValues"][DATE_COLUMN] for action in entry if "remove" in action)
    return set(map(date.fromisoformat, removed))
