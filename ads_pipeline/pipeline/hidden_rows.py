"""Removes the rows of hidden partitions from the Delta tables, for readers that do not know the ledger.

A demotion and a withdrawal take the same steps. The ledger records the intention, which hides the partitions from its
own readers. Their rows are removed here. Then the ledger records the verdict or the action. `reconciliation` finishes
what a crash interrupted.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ads_pipeline.domain.batches import group_by
from ads_pipeline.domain.errors import FilesDamaged, LogDamaged, WarehouseError
from ads_pipeline.domain.log_lines import LogEvent, log_event
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.staging import StartSpark
from ads_pipeline.ledger.state.pointers import Publications
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables

_LOG: Final = logging.getLogger(__name__)


def describe_left_rows(error: WarehouseError) -> str:
    """What a person is told of hidden rows that could not be removed."""
    return f"it is hidden, and its rows stay in plain Delta until reconcile: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenRows:
    """Removes rows that readers may not see. Spark starts only for large files."""

    start_spark: StartSpark
    publications: Publications
    warehouse: Warehouse
    tables: CompletenessTables

    def remove(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, WarehouseError]:
        """Remove the rows of these partitions whose runs readers may not see. First, `days` says so.

        Gives the partitions whose rows stay, because their table's log or a data file is damaged.
        """
        left, hidden = dict[PartitionKey, WarehouseError](), list(keys)
        if hidden:
            self.tables.publish_before_removal(hidden)
        for table_keys in group_by(hidden, lambda key: (key.source, key.query_name)).values():
            left |= self._remove_from_table(table_keys)
        if left:
            first = min(left)
            log_event(_LOG, LogEvent.FILES_DAMAGED, first=first, problem=left[first].problem)
        return left

    def _remove_from_table(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, WarehouseError]:
        left = dict[PartitionKey, WarehouseError]()
        while removable := [key for key in keys if key not in left]:
            try:
                self.warehouse.remove(
                    self.start_spark,
                    removable,
                    is_removable=lambda runs: set(runs) - self.publications.readable_runs(runs),
                )
            except LogDamaged as error:
                return dict.fromkeys(keys, error)
            except FilesDamaged as error:
                blocked = [key for key in removable if is_blocked(key, error)]
                if not blocked:
                    raise
                left |= dict.fromkeys(blocked, error)
            else:
                break
        return left


def is_blocked(key: PartitionKey, error: FilesDamaged) -> bool:
    return any(each.may_hold(key.customer_id, key.logical_date) for each in error.damaged)
