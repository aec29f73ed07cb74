"""Hears verdicts against rows that are locked, and keeps what is to be written for them.

It runs no statement. `writer` reads the rows, hands them in with the verdicts, and writes what has gathered here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ads_pipeline.errors import UnknownRun, UnsoundAcceptance, VerdictConflict
from ads_pipeline.ledger.records import Recorded
from ads_pipeline.ledger.rows import key_fields, state_of
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.transitions import Effect, Outcome, PartitionState, RegisteredRun, Ruling, Verdict, rule_on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """Where a partition stands between two verdicts, and the ordinals this rests on."""

    state: PartitionState
    current_ordinal: int | None
    message_ordinal: int | None


class Hearing:
    """One transaction's verdicts. A later verdict of a partition sees what an earlier one made of it."""

    def __init__(self, clock: Callable[[], datetime] | None) -> None:
        self._clock = clock
        self._standing: dict[PartitionKey, _Standing] = {}
        self._heard: dict[tuple[Run, str], Recorded] = {}
        self._last_row: dict[PartitionKey, dict[str, Any]] = {}
        self.attempt_rows: list[dict[str, Any]] = []

    def hear(self, verdict: Verdict, row: sa.Row[Any]) -> Recorded:
        """The verdict as recorded, now or before; a LedgerError when it cannot stand."""
        if row.ordinal is None:
            raise UnknownRun(str(verdict.run))
        standing = self._standing.get(verdict.run.key) or _Standing(
            state=state_of(row, verdict.run.key),
            current_ordinal=row.current_ordinal,
            message_ordinal=row.message_ordinal,
        )
        earlier = self._earlier(verdict, row, standing.state)
        if earlier is not None:
            return earlier
        registered = RegisteredRun(
            run=verdict.run,
            ordinal=row.ordinal,
            schema_version=row.run_schema_version,
            record_count=row.run_record_count,
        )
        _check_sound(verdict, registered)
        ruling = rule_on(
            standing.state,
            verdict,
            registered=registered,
            current_ordinal=standing.current_ordinal,
            message_ordinal=standing.message_ordinal,
            now=self._clock() if self._clock else row.now,
        )
        return self._record(verdict, registered.ordinal, ruling, standing)

    def _earlier(self, verdict: Verdict, row: sa.Row[Any], state: PartitionState) -> Recorded | None:
        """The same verdict as it was recorded before; a run does not change, so a different one is refused."""
        earlier = self._heard.get((verdict.run, verdict.validation_id))
        if earlier is not None:
            outcome, effect, attempt_no = earlier.verdict.outcome, earlier.effect, earlier.attempt_no
        elif row.prior_outcome is not None:
            outcome, effect = Outcome(row.prior_outcome), Effect(row.prior_effect)
            attempt_no = row.prior_attempt_no
        else:
            return None
        if outcome is not verdict.outcome:
            raise VerdictConflict(str(verdict.run), outcome, verdict.outcome)
        return Recorded(verdict=verdict, attempt_no=attempt_no, effect=effect, redelivered=True, state=state)

    def _record(self, verdict: Verdict, ordinal: int, ruling: Ruling, before: _Standing) -> Recorded:
        promoted = ruling.effect is Effect.PROMOTED
        after = _Standing(
            state=ruling.state,
            current_ordinal=ordinal if promoted else before.current_ordinal,
            message_ordinal=ruling.message_ordinal,
        )
        recorded = Recorded(
            verdict=verdict,
            attempt_no=ruling.state.attempt_count,
            effect=ruling.effect,
            redelivered=False,
            state=ruling.state,
        )
        self._standing[verdict.run.key] = after
        self._heard[verdict.run, verdict.validation_id] = recorded
        self._keep(_attempt_fields(recorded, ordinal, after), verdict.run.key)
        return recorded

    def _keep(self, row: dict[str, Any], key: PartitionKey) -> None:
        """Only a partition's last attempt in the transaction says what its state becomes."""
        earlier = self._last_row.get(key)
        if earlier is not None:
            earlier["is_last"] = False
        self._last_row[key] = row
        self.attempt_rows.append(row)


def _check_sound(verdict: Verdict, registered: RegisteredRun) -> None:
    if verdict.outcome is Outcome.REJECTED:
        return
    if registered.record_count is None:
        raise UnsoundAcceptance(str(verdict.run), "it was registered with a damaged seal")
    if verdict.rows_read != registered.record_count:
        problem = f"{verdict.rows_read} rows were read, its seal says {registered.record_count}"
        raise UnsoundAcceptance(str(verdict.run), problem)


def _attempt_fields(recorded: Recorded, ordinal: int, after: _Standing) -> dict[str, Any]:
    verdict, state = recorded.verdict, after.state
    return key_fields(state.key) | {
        "attempt_no": recorded.attempt_no,
        "run_id": verdict.run.run_id,
        "validation_id": verdict.validation_id,
        "ordinal": ordinal,
        "outcome": verdict.outcome,
        "effect": recorded.effect,
        "error_class": verdict.error_class,
        "error_message": verdict.error_message,
        "rows_read": verdict.rows_read,
        "rows_failed": verdict.rows_failed,
        "judged_at": state.updated_at and instant_text(state.updated_at),
        "current_ordinal": after.current_ordinal,
        "message_ordinal": after.message_ordinal,
        "state_status": state.status,
        "state_current_run_id": state.current_run_id,
        "state_schema_version": state.schema_version,
        "state_record_count": state.record_count,
        "state_error_message": state.error_message,
        "is_last": True,
    }
