"""Begins and finishes withdrawals. In between, the caller removes the rows from the warehouse.

Beginning one hides the rows of the current run. Finishing it sets the partition to pending and logs the action.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import sqlalchemy as sa

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.quoting import printable
from ads_pipeline.domain.transitions import Action, PartitionState, Status
from ads_pipeline.ledger.control.control_actions import (
    decide_action,
    execute_action,
    log_executed,
    read_earlier_result,
)
from ads_pipeline.ledger.sql.ledger_tables import control_actions, demotions
from ads_pipeline.ledger.sql.ledger_values import ActionRequest, ActionResult
from ads_pipeline.ledger.sql.row_mapping import decode_run, encode_run, encode_withdrawal
from ads_pipeline.ledger.sql.statements import insert
from ads_pipeline.ledger.state.verdicts import DELETE_WITHDRAWALS, READ_OPEN_DEMOTIONS
from ads_pipeline.ledger.write_steps.audit_log import is_logged
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

_INSERT: Final = insert(demotions, skip_present=True)


class Withdrawals:
    """Begins and finishes withdrawals. They need no claim."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def begin(
        self, keys: Iterable[PartitionKey], request: ActionRequest, *, expected: Iterable[PartitionState] = ()
    ) -> ActionResult:
        """Hide the rows of these successes, and return which ones are to be removed and finished.

        With `expected` states, as a preview showed them, a partition that has changed since is refused.
        """
        requested, states = sorted(set(keys)), {state.key: state for state in expected}

        def work(transaction: LedgerTransaction) -> ActionResult:
            before = transaction.lock_states(requested)
            if is_logged(transaction, Action.WITHDRAW.name, request):
                return read_earlier_result(transaction, request, requested, before)
            found = [before.get(key) or PartitionState.absent(key) for key in requested]
            result = decide_action(Action.WITHDRAW, found, states, (), (), transaction.now)
            hidden = [before[state.key] for state in result.changed]
            _begin(transaction, hidden, request)
            return replace(result, changed=tuple(hidden))

        return self._writer.transact(work)

    def finish(self, runs: Iterable[Run], request: ActionRequest) -> list[PartitionKey]:
        """Set the partitions to pending whose current run is one of these. Return those that are withdrawn now.

        Others are left alone: another run was accepted in the meantime, or a verdict rejected this one.
        """
        removed = sorted(set(runs))

        def work(transaction: LedgerTransaction) -> tuple[list[PartitionKey], ActionResult]:
            states, result = transaction.lock_states(run.key for run in removed), ActionResult()
            current = [states[run.key] for run in removed if _is_current(run, states.get(run.key))]
            if successes := [state.key for state in current if state.status is Status.SUCCESS]:
                part = _number_part(transaction, request)
                result = execute_action(transaction, Action.WITHDRAW, successes, part, {})
            DELETE_WITHDRAWALS.execute(transaction.connection, map(encode_run, removed))
            return [state.key for state in current], result

        withdrawn, result = self._writer.transact(work)
        log_executed(Action.WITHDRAW, request, result)
        return withdrawn


def _begin(transaction: LedgerTransaction, states: Sequence[PartitionState], request: ActionRequest) -> None:
    """Store the request for each current run, withdraw the pointers, and emit an event for each new withdrawal."""
    attempts = {Run(key=state.key, run_id=str(state.current_run_id)): state.attempt_count for state in states}
    is_open = set(map(decode_run, READ_OPEN_DEMOTIONS.execute(transaction.connection, map(encode_run, attempts))))
    new = [run for run in attempts if run not in is_open]
    _INSERT.write(transaction.connection, (encode_withdrawal(run, request, transaction.at) for run in new))
    transaction.withdraw_pointers(run.key for run in attempts)
    for run in new:
        data = {"operator": printable(request.operator), "reason": printable(request.reason), "run_id": run.run_id}
        transaction.emit("WithdrawalBegun", run.key, attempts[run] + 1, data, caused_by=request.action_id)


def _is_current(run: Run, state: PartitionState | None) -> bool:
    """Return whether a success or a withdrawn partition has this run."""
    return state is not None and state.status is not Status.FAILED and state.current_run_id == run.run_id


def _number_part(transaction: LedgerTransaction, request: ActionRequest) -> ActionRequest:
    """The request under an id of its own, if a part of it is logged already: the rows of others took longer."""
    column = control_actions.c.action_id
    matches = sa.or_(column == request.action_id, column.startswith(f"{request.action_id}.", autoescape=True))
    logged = transaction.connection.scalar(sa.select(sa.func.count()).where(matches)) or 0
    return replace(request, action_id=f"{request.action_id}.{logged + 1}") if logged else request
