"""Records verdicts, and opens and closes demotions, which hide an accepted run that a later verdict rejects.

Opening a demotion hides the run's rows. The warehouse then removes them, and recording the verdict closes it.
The transaction that records verdicts is in `verdict_recorder`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from ads_pipeline.domain.errors import PartitionRefused, VerdictsRefused
from ads_pipeline.domain.transitions import Effect, Outcome, Status, Verdict
from ads_pipeline.ledger.sql.ledger_tables import demotions
from ads_pipeline.ledger.sql.ledger_values import VerdictCause, VerdictResult
from ads_pipeline.ledger.sql.row_mapping import decode_run, encode_demotion, encode_key, encode_run, encode_verdict_id
from ads_pipeline.ledger.sql.statements import RUN_COLUMNS, Statement, insert
from ads_pipeline.ledger.state.pointers import READ_POINTERS, READABLE_RUNS
from ads_pipeline.ledger.state.verdict_recorder import VerdictRecorder, log_cause, read_verdict_rows
from ads_pipeline.ledger.state.verdict_statements import VerdictRow
from ads_pipeline.ledger.write_steps.transactions import LedgerTransaction, LedgerWriter

# The given runs that have an open demotion.
READ_OPEN_DEMOTIONS: Final = Statement(
    "read_open_demotions",
    RUN_COLUMNS,
    """
    SELECT source, customer_id, query_name, logical_date, run_id
    FROM given JOIN demotions USING (source, customer_id, query_name, logical_date, run_id)
    """,
)
_INSERT_DEMOTIONS: Final = insert(demotions, skip_present=True)
# A verdict on a run replaces its withdrawal: the rows are removed all the same.
DELETE_WITHDRAWALS: Final = Statement(
    "replace_withdrawals",
    RUN_COLUMNS,
    """
    DELETE FROM demotions
    WHERE request IS NOT NULL AND (source, customer_id, query_name, logical_date, run_id) IN (SELECT source,
        customer_id, query_name, logical_date, run_id FROM given)
    """,
)
_DELETE_DEMOTIONS: Final = Statement(
    "delete_demotions",
    {**RUN_COLUMNS, "validation_id": "text"},
    """
    DELETE FROM demotions
    WHERE (source, customer_id, query_name, logical_date, run_id, validation_id) IN (SELECT source, customer_id,
        query_name, logical_date, run_id, validation_id FROM given)
    """,
)


class Verdicts:
    """Records verdicts. Only holders of this object can mark a run as safe to read."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    def record(self, verdicts: Sequence[Verdict], *, cause: VerdictCause | None = None) -> list[VerdictResult]:
        """Record verdicts in the given order, in one transaction, and log the operator's action that caused them.

        Raises VerdictsRefused when some are refused. The others are recorded nevertheless.
        """
        results = self._writer.transact(lambda transaction: _record(transaction, verdicts, cause))
        recorded = [result for result in results if isinstance(result, VerdictResult)]
        refusals = {
            verdict.run: result
            for verdict, result in zip(verdicts, results, strict=True)
            if isinstance(result, PartitionRefused)
        }
        if refusals:
            raise VerdictsRefused(tuple(recorded), refusals)
        return recorded

    def begin_demotions(self, verdicts: Sequence[Verdict], *, cause: VerdictCause | None = None) -> list[Verdict]:
        """Hide the readable runs that these verdicts reject, and return the verdicts that do so.

        The caller then removes these runs from the warehouse, and records the returned verdicts.
        """
        return self._writer.transact(lambda transaction: _begin(transaction, verdicts, cause))


def _record(
    transaction: LedgerTransaction, verdicts: Sequence[Verdict], cause: VerdictCause | None
) -> list[VerdictResult | PartitionRefused]:
    results = VerdictRecorder(transaction).record(verdicts, cause)
    _finish(transaction, [result for result in results if isinstance(result, VerdictResult)])
    return results


def _begin(transaction: LedgerTransaction, verdicts: Sequence[Verdict], cause: VerdictCause | None) -> list[Verdict]:
    """Open a demotion for each verdict that rejects a run which the table may hold, and return these verdicts.

    Such a run is the current one of a success, or an accepted one whose successor may not be loaded yet.
    """
    connection, rows = transaction.connection, read_verdict_rows(transaction, verdicts)
    rejecting = [verdict for verdict, row in zip(verdicts, rows, strict=True) if _is_new_rejection(verdict, row)]
    if not rejecting:
        return []
    current = {v.run for v, row in zip(verdicts, rows, strict=True) if row.current_run_id == v.run.run_id}
    runs = [encode_run(verdict.run) for verdict in rejecting]
    already_open = set(map(decode_run, READ_OPEN_DEMOTIONS.execute(connection, runs)))
    readable = set(map(decode_run, READABLE_RUNS.execute(connection, runs)))
    demoting = [verdict for verdict in rejecting if verdict.run in current | readable | already_open]
    if not demoting:
        return []
    DELETE_WITHDRAWALS.execute(connection, [encode_run(verdict.run) for verdict in demoting])
    _INSERT_DEMOTIONS.write(connection, (encode_demotion(verdict, transaction.at) for verdict in demoting))
    keys = {verdict.run.key for verdict in demoting}
    hidden = current | set(map(decode_run, READ_POINTERS.execute(connection, map(encode_key, keys))))
    transaction.withdraw_pointers({verdict.run.key for verdict in demoting if verdict.run in hidden})
    attempt_counts = {verdict.run: row.attempt_count or 0 for verdict, row in zip(verdicts, rows, strict=True)}
    for run, verdict in {verdict.run: verdict for verdict in demoting if verdict.run not in already_open}.items():
        reason = verdict.reason and asdict(verdict.reason)
        data = {"run_id": run.run_id, "error_message": verdict.error_message, "reason": reason}
        transaction.emit("DemotionBegun", run.key, attempt_counts[run] + 1, data)
    log_cause(transaction, cause, verdicts, rows)
    return demoting


def _finish(transaction: LedgerTransaction, results: Sequence[VerdictResult]) -> None:
    """Withdraw the pointers of demoted partitions, and close the demotions of the recorded rejections.

    The withdrawal covers verdicts that demote a run without an open demotion.
    """
    rejected = [result for result in results if result.verdict.outcome is Outcome.REJECTED]
    demoted = {result.state.key for result in rejected if result.effect is Effect.DEMOTED and not result.redelivered}
    if demoted:
        transaction.withdraw_pointers(demoted)
    if rejected:
        verdict_ids = (encode_verdict_id(result.verdict) for result in rejected)
        _DELETE_DEMOTIONS.execute(transaction.connection, verdict_ids)


def _is_new_rejection(verdict: Verdict, row: VerdictRow) -> bool:
    return verdict.outcome is Outcome.REJECTED and row.prior_outcome is None and row.status != Status.FAILED
