"""The tables about the warehouse, as those who change the ledger know them: `days` and the others."""

from collections.abc import Collection
from contextlib import suppress
from typing import Final

from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.pipeline.completeness.accounts_table import AccountsTable
from ads_pipeline.pipeline.completeness.days_table import DaysTable
from ads_pipeline.pipeline.completeness.history_tables import LoadsTable, RestatementsTable
from ads_pipeline.pipeline.completeness.ledger_table import LedgerTable, PlannedCommit, TableSettings

_OTHERS: Final[tuple[type[LedgerTable], ...]] = (LoadsTable, RestatementsTable, AccountsTable)


class CompletenessTables:
    """All tables of one deployment. `days` is written first."""

    def __init__(self, *, ledger: LedgerReader, settings: TableSettings, now: Clock | None = None) -> None:
        self._ledger = ledger
        self.days = DaysTable(ledger=ledger, settings=settings, now=now)
        others = [table(ledger=ledger, settings=settings, now=now) for table in _OTHERS]
        self.all: tuple[LedgerTable, ...] = (self.days, *others)

    def publish_before_removal(self, keys: Collection[PartitionKey]) -> None:
        """Write that these days are not readable, before their rows are removed. Raises as `DaysTable` does."""
        self.days.publish_before_removal(keys)

    def publish_or_log(self, also: Collection[PartitionKey] = ()) -> None:
        """Write what has changed. A table that cannot be written is logged, and stays behind until `reconcile`."""
        planned = self._plan_together(also)
        for table in self.all:
            table.publish_or_log(also, planned.get(table.name))

    def _plan_together(self, also: Collection[PartitionKey]) -> dict[str, PlannedCommit | None]:
        """What each table has to write, read in one transaction. After an error, each table reads for itself."""
        with suppress(AdsPipelineError):
            snapshots = {table: table.open() for table in self.all}
            return self._ledger.read_at_once(
                lambda ledger: {
                    table.name: table.plan_changed(ledger, snapshot, also) for table, snapshot in snapshots.items()
                }
            )
        return {}

    def publish_if_present(self, also: Collection[PartitionKey]) -> None:
        """Do the same for the tables that exist."""
        for table in self.all:
            table.publish_if_present(also)

    def publish_due(self) -> dict[str, int]:
        """Compare everything once a day, and else write what has changed. Gives the number of rows by table."""
        return {table.name: table.publish_due() for table in self.all}

    def publish_all(self) -> dict[str, int]:
        """Compare everything. Gives the number of changed rows by table."""
        return {table.name: table.publish_all() for table in self.all}
