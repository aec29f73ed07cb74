"""Records verdicts: reads and locks the states, decides each effect, and writes all rows together.

The statements are in `verdict_statements`, the rules in `domain.transitions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import RAW, PartitionStatus
from ads_pipeline.domain.errors import PartitionRefused, UnknownRun, UnsoundAcceptance, VerdictConflict
from ads_pipeline.domain.measures import Figures
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import (
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Verdict,
    VerdictEffect,
    apply_verdict,
)
from ads_pipeline.ledger.sql.ledger_tables import instant_text
from ads_pipeline.ledger.sql.ledger_values import VerdictCause, VerdictResult
from ads_pipeline.ledger.sql.row_mapping import (
    decode_figures,
    decode_state,
    encode_key,
    encode_state,
    encode_verdict_id,
)
from ads_pipeline.ledger.sql.statements import Call, Values
from ads_pipeline.ledger.state.verdict_statements import INSERT_ATTEMPTS, READ_VERDICT_ROWS, VerdictRow
from ads_pipeline.ledger.write_steps.audit_log import is_logged, log_action
from ads_pipeline.ledger.write_steps.partition_status import (
    ATTEMPT_OUTCOMES,
    MATERIALIZING_EFFECTS,
    next_write_instant,
)
from ads_pipeline.ledger.write_steps.transactions import UPDATE_STATES, LedgerTransaction

EVENT_TYPES: Final[Mapping[Outcome, str]] = {
    Outcome.ACCEPTED: "VerdictAccepted",
    Outcome.REJECTED: "VerdictRejected",
}


class _LockedPartition(NamedTuple):
    """The facts that decide the next verdict on a locked partition.

    `figures` are those of the run that last got authority.
    """

    state: PartitionState
    current_ordinal: int | None
    message_ordinal: int | None
    status: PartitionStatus | None
    figures: Figures | None


class VerdictRecorder:
    """Records the verdicts of one transaction. Each verdict sees the effects of the earlier ones."""

    def __init__(self, transaction: LedgerTransaction) -> None:
        self._transaction, self._writer = transaction, transaction.writer
        self._partitions: dict[PartitionKey, _LockedPartition] = {}
        self._results: dict[tuple[Run, str], VerdictResult] = {}
        self._attempts: list[Values] = []
        self._read_at: datetime | None = None  # the database's time under the locks

    def record(
        self, verdicts: Sequence[Verdict], cause: VerdictCause | None
    ) -> list[VerdictResult | PartitionRefused]:
        """Record verdicts in the given order. For a refused verdict, the result is its error."""
        locked_rows = read_verdict_rows(self._transaction, verdicts)
        self._read_at = max((row.now for row in locked_rows), default=None)
        results: list[VerdictResult | PartitionRefused] = []
        for verdict, locked_row in zip(verdicts, locked_rows, strict=True):
            try:
                results.append(self._record(verdict, locked_row))
            except PartitionRefused as error:
                results.append(error)
        if self._attempts:
            self._write_last()
            log_cause(self._transaction, cause, verdicts, locked_rows)
        return results

    def _record(self, verdict: Verdict, locked_row: VerdictRow) -> VerdictResult:
        if locked_row.ordinal is None:
            raise UnknownRun(str(verdict.run))
        judged = self._partitions.get(verdict.run.key)  # by an earlier verdict of this transaction
        partition = judged or self._decode_partition(locked_row, verdict.run.key)
        repeated = None if judged is None else self._results.get((verdict.run, verdict.validation_id))
        earlier = self._earlier_result(verdict, locked_row, repeated, partition.state)
        if earlier is not None:
            return earlier
        registered = RegisteredRun(
            run=verdict.run,
            ordinal=locked_row.ordinal,
            schema_version=locked_row.run_schema_version,
            record_count=locked_row.run_record_count,
        )
        require_sound_seal(verdict, registered)
        now = self._writer.clock() if self._writer.clock else self._read_at or locked_row.now
        self._transaction.date_by(now)
        effect = apply_verdict(
            partition.state,
            verdict,
            registered=registered,
            current_ordinal=partition.current_ordinal,
            message_ordinal=partition.message_ordinal,
            now=next_write_instant(partition.status.row_version if partition.status else None, now),
        )
        return self._collect(verdict, registered, effect, partition)

    def _decode_partition(self, row: VerdictRow, key: PartitionKey) -> _LockedPartition:
        return _LockedPartition(
            state=decode_state(row, key),
            current_ordinal=row.current_ordinal,
            message_ordinal=row.message_ordinal,
            status=self._writer.statuses.decode(row.folded, RAW, key),
            figures=_read_figures(row),
        )

    def _earlier_result(
        self, verdict: Verdict, locked_row: VerdictRow, earlier: VerdictResult | None, state: PartitionState
    ) -> VerdictResult | None:
        """Return the result of an earlier delivery of this verdict, in this transaction or before it, or None.

        Raises VerdictConflict when the earlier verdict had the other outcome.
        """
        if earlier is not None:
            outcome, effect, attempt_no = earlier.verdict.outcome, earlier.effect, earlier.attempt_no
        elif locked_row.prior_outcome and locked_row.prior_effect and locked_row.prior_attempt_no:
            outcome, effect = Outcome(locked_row.prior_outcome), Effect(locked_row.prior_effect)
            attempt_no = locked_row.prior_attempt_no
        else:
            return None
        if outcome is not verdict.outcome:
            raise VerdictConflict(str(verdict.run), outcome, verdict.outcome)
        return VerdictResult(verdict=verdict, attempt_no=attempt_no, effect=effect, redelivered=True, state=state)

    def _collect(
        self, verdict: Verdict, registered: RegisteredRun, effect: VerdictEffect, before: _LockedPartition
    ) -> VerdictResult:
        """Add the row that records this verdict, and remember the partition's new state."""
        state, judged_at = effect.state, _judged_at(effect.state)
        result = VerdictResult(
            verdict=verdict, attempt_no=state.attempt_count, effect=effect.effect, redelivered=False, state=state
        )
        promotes, at = effect.effect is Effect.PROMOTED, instant_text(judged_at)
        status = self._writer.statuses.fold(
            before.status,
            RAW,
            state.key,
            run_id=registered.run.run_id,
            at=judged_at,
            outcome=ATTEMPT_OUTCOMES[verdict.outcome],
            code_version=registered.schema_version if effect.effect in MATERIALIZING_EFFECTS else None,
        )
        figures = _verdict_figures(verdict) if promotes else before.figures
        after = _LockedPartition(
            state=state,
            current_ordinal=registered.ordinal if promotes else before.current_ordinal,
            message_ordinal=effect.message_ordinal,
            status=status,
            figures=figures,
        )
        self._partitions[state.key] = after
        self._results[verdict.run, verdict.validation_id] = result
        self._attempts.append(_encode_attempt(result, registered.ordinal, after, at))
        event_type = EVENT_TYPES[verdict.outcome]
        self._transaction.emit(event_type, state.key, result.attempt_no, _event_data(result), at=at)
        if before.figures is not None and figures is not None and before.figures.is_restated_by(figures):
            data = {"before": before.figures.fields, "after": figures.fields}
            self._transaction.emit("PartitionRestated", state.key, result.attempt_no, data)
        return result

    def _write_last(self) -> None:
        """Write all attempts, and the last state and status of each partition."""
        states = [encode_state(judged.state) for judged in self._partitions.values()]
        statuses = [judged.status for judged in self._partitions.values() if judged.status is not None]
        self._transaction.write_last([Call(INSERT_ATTEMPTS, self._attempts), Call(UPDATE_STATES, states)], statuses)


def read_verdict_rows(transaction: LedgerTransaction, verdicts: Sequence[Verdict]) -> Sequence[VerdictRow]:
    """Lock the state of each verdict's partition, and return one row per verdict with all that decides its effect."""
    connection, asset_partition = transaction.connection, transaction.writer.statuses.asset_partition
    requested = [
        (*encode_verdict_id(verdict), *asset_partition(RAW, verdict.run.key), position)
        for position, verdict in enumerate(verdicts)
    ]
    rows = _read_rows(connection, requested)
    if any(row.attempt_count and row.last_attempt_no is None for row in rows):
        # Another transaction committed while this statement waited for the lock. The statement sees the new state row
        # without the attempt that was committed with it. A second read, under the lock, sees both.
        rows = _read_rows(connection, requested)
    transaction.check_lease({verdict.run.key for verdict in verdicts})
    return rows


def _read_rows(connection: sa.Connection, requested: Sequence[Values]) -> list[VerdictRow]:
    rows, facts = READ_VERDICT_ROWS.execute(connection, requested).all(), len(VerdictRow._fields) - 1
    return [VerdictRow._make((*row[:facts], row[facts:])) for row in rows]


def log_cause(
    transaction: LedgerTransaction,
    cause: VerdictCause | None,
    verdicts: Sequence[Verdict],
    rows: Sequence[VerdictRow],
) -> None:
    """Log the operator's action that caused these verdicts, unless an earlier transaction has logged it."""
    if cause is None or is_logged(transaction, cause.action, cause.request):
        return
    states = {
        verdict.run.key: decode_state(row, verdict.run.key) for verdict, row in zip(verdicts, rows, strict=True)
    }
    log_action(transaction, cause.action, cause.request, list(states.values()), states)


def require_sound_seal(verdict: Verdict, registered: RegisteredRun) -> None:
    """Raise UnsoundAcceptance when an acceptance contradicts the seal that the run was registered with."""
    if verdict.outcome is Outcome.REJECTED:
        return
    if registered.record_count is None:
        raise UnsoundAcceptance(str(verdict.run), "it was registered with a damaged seal")
    if verdict.rows_read != registered.record_count:
        problem = f"{verdict.rows_read} rows were read, but its seal counts {registered.record_count}"
        raise UnsoundAcceptance(str(verdict.run), problem)


def _judged_at(state: PartitionState) -> datetime:
    if state.updated_at is None:
        raise ValueError(f"{state.key}: an absent state has no verdict")
    return state.updated_at


def _read_figures(row: VerdictRow) -> Figures | None:
    """The figures of the run that had authority last, or None."""
    return None if row.promoted_run_id is None else decode_figures(row, row.promoted_run_id)


def _verdict_figures(verdict: Verdict) -> Figures:
    return Figures(run_id=verdict.run.run_id, rows=verdict.rows_read or 0, measures=verdict.measures)


def _encode_attempt(result: VerdictResult, ordinal: int, after: _LockedPartition, judged_at: str) -> Values:
    """The row of `attempts`."""
    verdict, measures = result.verdict, result.verdict.measures
    return (
        *encode_key(result.state.key),
        result.attempt_no,
        verdict.run.run_id,
        verdict.validation_id,
        ordinal,
        str(verdict.outcome),
        str(result.effect),
        verdict.error_class,
        verdict.reason and verdict.reason.json,
        verdict.rows_read,
        verdict.rows_failed,
        verdict.payload_bytes,
        verdict.payload_sha256,
        judged_at,
        after.current_ordinal,
        after.message_ordinal,
        measures.cost_micros,
        measures.conversions,
        measures.conversions_value,
    )


def _event_data(result: VerdictResult) -> dict[str, Any]:
    verdict = result.verdict
    data = {
        "effect": result.effect,
        "run_id": verdict.run.run_id,
        "validation_id": verdict.validation_id or None,
        "rows_read": verdict.rows_read,
        "rows_failed": verdict.rows_failed,
        "error_class": verdict.error_class,
        "error_message": verdict.error_message,
        "reason": verdict.reason and asdict(verdict.reason),
    }
    return {name: value for name, value in data.items() if value is not None}
