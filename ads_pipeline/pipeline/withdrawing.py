"""Withdraws partitions: hides them, removes their rows from the Delta tables, and sets them to pending."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ads_pipeline.domain.batches import group_by
from ads_pipeline.domain.errors import PartitionRefused, WarehouseError
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import PartitionState
from ads_pipeline.ledger.control.withdrawals import Withdrawals
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, OpenWithdrawal
from ads_pipeline.pipeline.hidden_rows import HiddenRows


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawResult:
    """The result for each partition. `left` are hidden, and `reconcile` removes their rows later.

    `replaced` had another current run by the time the rows were removed, and keep it.
    """

    withdrawn: Collection[PartitionKey]
    replaced: Collection[PartitionKey]
    unchanged: Collection[PartitionKey]
    left: Mapping[PartitionKey, WarehouseError] = field(default_factory=dict)
    refused: Mapping[PartitionKey, PartitionRefused] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawing:
    """Withdraws partitions, and finishes withdrawals that a crash interrupted."""

    withdrawals: Withdrawals
    hidden_rows: HiddenRows

    def withdraw(
        self, keys: Iterable[PartitionKey], request: ActionRequest, *, expected: Iterable[PartitionState] = ()
    ) -> WithdrawResult:
        """Withdraw the current runs of these partitions. When it returns, no reader of plain Delta sees their rows.

        Raises WarehouseUnavailable when the table cannot be written. Then the rows stay until `reconcile`.
        """
        begun = self.withdrawals.begin(keys, request, expected=expected)
        left = self.hidden_rows.remove(state.key for state in begun.changed)
        removed = {state.key: str(state.current_run_id) for state in begun.changed if state.key not in left}
        withdrawn = self.withdrawals.finish([Run(key=key, run_id=run_id) for key, run_id in removed.items()], request)
        return WithdrawResult(
            withdrawn=withdrawn,
            replaced=removed.keys() - set(withdrawn),
            unchanged=begun.unchanged,
            left=left,
            refused=begun.refused,
        )

    def finish(self, open_withdrawals: Iterable[OpenWithdrawal]) -> None:
        """Remove the rows of withdrawals that have begun, and record them."""
        by_request = group_by(open_withdrawals, lambda each: each.request)
        left = self.hidden_rows.remove(each.run.key for group in by_request.values() for each in group)
        for request, group in by_request.items():
            self.withdrawals.finish([each.run for each in group if each.run.key not in left], request)
