"""Records verdicts: reads and locks the states, decides each effect, and writes all rows together.

The statements are in `verdict_statements`, the rules in `domain.transitions`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW
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
from ads_pipeline.errors import PartitionRefused, UnknownRun, UnsoundAcceptance, VerdictConflict
from ads_pipeline.ledger.control.audit_log import is_logged, log_action
from ads_pipeline.ledger.database import ConcurrentWrite
from ads_pipeline.ledger.row_mapping import decode_figures, decode_state, encode_attempt, encode_verdict_id
from ads_pipeline.ledger.state.verdict_statements import READ_VERDICT_ROWS, RECORD_ON_POSTGRES, RECORD_ON_SQLITE
from ads_pipeline.ledger.status.partition_status import (
    ATTEMPT_OUTCOMES,
    MATERIALIZING_EFFECTS,
    encode_asset_partition,
    encode_partition_values,
    make_row_version,
    next_write_instant,
)
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.transactions import LedgerTransaction
from ads_pipeline.ledger.values import VerdictCause, VerdictResult

EVENT_TYPES: Final[Mapping[Outcome, str]] = {
    Outcome.ACCEPTED: "VerdictAccepted",
    Outcome.REJECTED: "VerdictRejected",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedPartition:
    """What the next verdict on a locked partition depends on.

    `materialization` holds the columns of the last materialization in this transaction, or nothing. `figures` are
    those of the run that last got authority.
    """

    state: PartitionState
    current_ordinal: int | None
    message_ordinal: int | None
    row_version: str | None
    materialization: dict[str, str | None]
    figures: Figures | None


class VerdictRecorder:
    """Records the verdicts of one transaction. Each verdict sees the effects of the earlier ones."""

    def __init__(self, transaction: LedgerTransaction) -> None:
        self._transaction, self._writer = transaction, transaction.writer
        self._partitions: dict[PartitionKey, _LockedPartition] = {}
        self._results: dict[tuple[Run, str], VerdictResult] = {}
        self._last_rows: dict[PartitionKey, dict[str, Any]] = {}
        self._rows: list[dict[str, Any]] = []
        self._now: datetime | None = None

    def record(
        self, verdicts: Sequence[Verdict], cause: VerdictCause | None
    ) -> list[VerdictResult | PartitionRefused]:
        """Record verdicts in the given order. For a refused verdict, the result is its error."""
        locked_rows = read_verdict_rows(self._transaction, verdicts)
        results: list[VerdictResult | PartitionRefused] = []
        for verdict, locked_row in zip(verdicts, locked_rows, strict=True):
            try:
                results.append(self._record(verdict, locked_row))
            except PartitionRefused as error:
                results.append(error)
        if self._rows:
            self._write_rows()
            log_cause(self._transaction, cause, verdicts, locked_rows)
        return results

    def _record(self, verdict: Verdict, locked_row: sa.Row[Any]) -> VerdictResult:
        if locked_row.ordinal is None:
            raise UnknownRun(str(verdict.run))
        partition = self._partitions.get(verdict.run.key) or _LockedPartition(
            state=decode_state(locked_row, verdict.run.key),
            current_ordinal=locked_row.current_ordinal,
            message_ordinal=locked_row.message_ordinal,
            row_version=locked_row.row_version,
            materialization={},
            figures=_read_figures(locked_row),
        )
        earlier = self._earlier_result(verdict, locked_row, partition.state)
        if earlier is not None:
            return earlier
        registered = RegisteredRun(
            run=verdict.run,
            ordinal=locked_row.ordinal,
            schema_version=locked_row.run_schema_version,
            record_count=locked_row.run_record_count,
        )
        require_sound_seal(verdict, registered)
        self._now = self._writer.clock() if self._writer.clock else locked_row.now
        effect = apply_verdict(
            partition.state,
            verdict,
            registered=registered,
            current_ordinal=partition.current_ordinal,
            message_ordinal=partition.message_ordinal,
            now=next_write_instant(partition.row_version, self._now),
        )
        return self._collect(verdict, registered, effect, partition)

    def _earlier_result(
        self, verdict: Verdict, locked_row: sa.Row[Any], state: PartitionState
    ) -> VerdictResult | None:
        """Return the result of an earlier delivery of this verdict, or None.

        Raises VerdictConflict when the earlier verdict had the other outcome.
        """
        earlier = self._results.get((verdict.run, verdict.validation_id))
        if earlier is not None:
            outcome, effect, attempt_no = earlier.verdict.outcome, earlier.effect, earlier.attempt_no
        elif locked_row.prior_outcome is not None:
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
        asset_partition = self._writer.statuses.asset_partition(RAW, state.key)
        materializes, promotes = effect.effect in MATERIALIZING_EFFECTS, effect.effect is Effect.PROMOTED
        figures = _verdict_figures(verdict) if promotes else before.figures
        after = _LockedPartition(
            state=state,
            current_ordinal=registered.ordinal if promotes else before.current_ordinal,
            message_ordinal=effect.message_ordinal,
            row_version=make_row_version(judged_at, asset_partition),
            materialization=_materialization(registered, judged_at) if materializes else before.materialization,
            figures=figures,
        )
        self._partitions[state.key] = after
        self._results[verdict.run, verdict.validation_id] = result
        at, event_type = instant_text(judged_at), EVENT_TYPES[verdict.outcome]
        row = _attempt_columns(result, registered.ordinal, after, at)
        row |= after.materialization | encode_asset_partition(asset_partition)
        row |= self._writer.event_encoder.encode(
            event_type, str(state.key), result.attempt_no, _event_data(result), emitted_at=at
        )
        self._add_row(row, state.key)
        if before.figures is not None and figures is not None and before.figures.is_restated_by(figures):
            data = {"before": before.figures.fields, "after": figures.fields}
            self._transaction.emit("PartitionRestated", state.key, result.attempt_no, data)
        return result

    def _add_row(self, row: dict[str, Any], key: PartitionKey) -> None:
        """Add a row. State and status are written from the last row of each partition only."""
        earlier = self._last_rows.get(key)
        if earlier is not None:
            earlier["is_last"] = False
        if self._now is not None and not self._rows:  # only the first row carries what all rows share
            origin = self._writer.event_encoder.origin_columns
            row |= {f"origin_{name}": value for name, value in origin.items()}
            row["appended_at"] = instant_text(self._now)
        row["position"] = len(self._rows) + 1
        self._last_rows[key] = row
        self._rows.append(row)
        self._rows[0]["event_count"] = len(self._rows)

    def _write_rows(self) -> None:
        connection = self._transaction.connection
        statements = RECORD_ON_SQLITE if connection.dialect.name == "sqlite" else RECORD_ON_POSTGRES
        written = [statement.execute(connection, self._rows).rowcount for statement in statements]
        if written[-1] < len(self._last_rows):
            raise ConcurrentWrite("a status was written without the lock of its partition's state")


def read_verdict_rows(transaction: LedgerTransaction, verdicts: Sequence[Verdict]) -> Sequence[sa.Row[Any]]:
    """Lock the state of each verdict's partition, and return one row per verdict with all that decides its effect."""
    connection, make_asset_partition = transaction.connection, transaction.writer.statuses.asset_partition
    requested = [
        encode_verdict_id(verdict)
        | encode_asset_partition(make_asset_partition(RAW, verdict.run.key))
        | {"position": position}
        for position, verdict in enumerate(verdicts)
    ]
    rows = READ_VERDICT_ROWS.execute(connection, requested).all()
    if any(row.attempt_count and row.last_attempt_no is None for row in rows):
        # Another transaction committed while this statement waited for the lock. The statement sees the new state row
        # without the attempt that was committed with it. A second read, under the lock, sees both.
        rows = READ_VERDICT_ROWS.execute(connection, requested).all()
    transaction.check_lease({verdict.run.key for verdict in verdicts})
    return rows


def log_cause(
    transaction: LedgerTransaction,
    cause: VerdictCause | None,
    verdicts: Sequence[Verdict],
    rows: Sequence[sa.Row[Any]],
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


def _read_figures(row: sa.Row[Any]) -> Figures | None:
    """The figures of the run that had authority last, or None."""
    return None if row.promoted_run_id is None else decode_figures(row, row.promoted_run_id)


def _verdict_figures(verdict: Verdict) -> Figures:
    return Figures(run_id=verdict.run.run_id, rows=verdict.rows_read or 0, measures=verdict.measures)


def _materialization(registered: RegisteredRun, at: datetime) -> dict[str, str | None]:
    return {
        "materialization_run_id": registered.run.run_id,
        "materialization_code_version": registered.schema_version,
        "materialization_at": instant_text(at),
    }


def _attempt_columns(result: VerdictResult, ordinal: int, after: _LockedPartition, judged_at: str) -> dict[str, Any]:
    state = after.state
    return encode_attempt(result.verdict) | {
        "attempt_no": result.attempt_no,
        "ordinal": ordinal,
        "effect": result.effect,
        "judged_at": judged_at,
        "attempt_outcome": ATTEMPT_OUTCOMES[result.verdict.outcome],
        "current_ordinal": after.current_ordinal,
        "message_ordinal": after.message_ordinal,
        "state_status": state.status,
        "state_current_run_id": state.current_run_id,
        "state_schema_version": state.schema_version,
        "state_record_count": state.record_count,
        "state_error_message": state.error_message,
        "is_last": True,
        "partition_values": encode_partition_values(state.key),
        "row_version": after.row_version,
    }


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
