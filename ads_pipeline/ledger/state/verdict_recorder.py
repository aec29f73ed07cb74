"""Hears verdicts against rows that are locked, and keeps what is to be written for them.

It runs no statement. `writer` reads the rows, hands them in with the verdicts, and writes what has gathered here.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import (
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Verdict,
    VerdictEffect,
    rule_on,
)
from ads_pipeline.errors import UnknownRun, UnsoundAcceptance, VerdictConflict
from ads_pipeline.ledger.events.event_rows import EventEncoder, event_text
from ads_pipeline.ledger.row_mapping import key_fields, state_of
from ads_pipeline.ledger.state.verdict_statements import EVENTS, STATE
from ads_pipeline.ledger.status.partition_status import (
    MATERIALIZING,
    Statuses,
    next_instant,
    place_fields,
    values_text,
    version_at,
)
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import VerdictResult


@dataclass(frozen=True, slots=True, kw_only=True)
class _Standing:
    """Where a partition stands between two verdicts, the ordinals this rests on, and its status's version.

    `made` is what the call's own verdicts made of it last: run, code version and time.
    """

    state: PartitionState
    current_ordinal: int | None
    message_ordinal: int | None
    version: str | None
    made: dict[str, str | None]


class VerdictRecorder:
    """One transaction's verdicts. A later verdict of a partition sees what an earlier one made of it."""

    def __init__(self, clock: Callable[[], datetime] | None, *, own: EventEncoder, statuses: Statuses) -> None:
        self._clock, self._own, self._statuses = clock, own, statuses
        self._standing: dict[PartitionKey, _Standing] = {}
        self._heard: dict[tuple[Run, str], VerdictResult] = {}
        self._last_row: dict[PartitionKey, dict[str, Any]] = {}
        self._now: datetime | None = None
        self.rows: list[dict[str, Any]] = []  # what is to be written, one a verdict

    @property
    def partitions(self) -> int:
        """How many partitions were judged anew."""
        return len(self._last_row)

    def record(self, verdict: Verdict, row: sa.Row[Any]) -> VerdictResult:
        """The verdict as recorded, now or before; a LedgerError when it cannot stand."""
        if row.ordinal is None:
            raise UnknownRun(str(verdict.run))
        standing = self._standing.get(verdict.run.key) or _Standing(
            state=state_of(row, verdict.run.key),
            current_ordinal=row.current_ordinal,
            message_ordinal=row.message_ordinal,
            version=row.row_version,
            made={},
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
        check_sound(verdict, registered)
        self._now = self._clock() if self._clock else row.now
        ruling = rule_on(
            standing.state,
            verdict,
            registered=registered,
            current_ordinal=standing.current_ordinal,
            message_ordinal=standing.message_ordinal,
            now=next_instant(standing.version, self._now),
        )
        return self._record(verdict, registered, ruling, standing)

    def _earlier(self, verdict: Verdict, row: sa.Row[Any], state: PartitionState) -> VerdictResult | None:
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
        return VerdictResult(verdict=verdict, attempt_no=attempt_no, effect=effect, redelivered=True, state=state)

    def _record(
        self, verdict: Verdict, registered: RegisteredRun, ruling: VerdictEffect, before: _Standing
    ) -> VerdictResult:
        state = ruling.state
        recorded = VerdictResult(
            verdict=verdict, attempt_no=state.attempt_count, effect=ruling.effect, redelivered=False, state=state
        )
        at = judged_at(state)
        place = self._statuses.place(RAW, state.key)
        after = _Standing(
            state=state,
            current_ordinal=registered.ordinal if ruling.effect is Effect.PROMOTED else before.current_ordinal,
            message_ordinal=ruling.message_ordinal,
            version=version_at(at, place),
            made=_made(registered, at) if ruling.effect in MATERIALIZING else before.made,
        )
        self._standing[state.key] = after
        self._heard[verdict.run, verdict.validation_id] = recorded
        row = _attempt_fields(recorded, registered.ordinal, after, instant_text(at))
        self._keep(row | after.made | place_fields(place) | self._event(recorded), state.key)
        return recorded

    def _event(self, recorded: VerdictResult) -> dict[str, Any]:
        step_id, attempt_no = str(recorded.state.key), recorded.attempt_no
        return {
            "step_id": step_id,
            "event_id": str(uuid.uuid4()),
            "event_key": self._own.key(EVENTS[recorded.verdict.outcome], step_id, attempt_no),
            "event_data": _event_data(recorded),
        }

    def _keep(self, row: dict[str, Any], key: PartitionKey) -> None:
        """Only a partition's last attempt in the transaction says what its state and status become."""
        earlier = self._last_row.get(key)
        if earlier is not None:
            earlier["is_last"] = False
        if self._now is not None and not self.rows:  # what all rows share is said once
            row |= self._own.same | {"appended_at": instant_text(self._now)}
        row["place"] = len(self.rows) + 1
        self._last_row[key] = row
        self.rows.append(row)
        self.rows[0]["number"] = len(self.rows)


def _made(registered: RegisteredRun, at: datetime) -> dict[str, str | None]:
    return {
        "made_run_id": registered.run.run_id,
        "made_code_version": registered.schema_version,
        "made_at": instant_text(at),
    }


def judged_at(state: PartitionState) -> datetime:
    """When the verdict that led to this state was recorded."""
    if state.updated_at is None:
        raise ValueError(f"{state.key}: an absent state was never judged")
    return state.updated_at


def check_sound(verdict: Verdict, registered: RegisteredRun) -> None:
    """UnsoundAcceptance where a run's own seal contradicts what is said of it."""
    if verdict.outcome is Outcome.REJECTED:
        return
    if registered.record_count is None:
        raise UnsoundAcceptance(str(verdict.run), "it was registered with a damaged seal")
    if verdict.rows_read != registered.record_count:
        problem = f"{verdict.rows_read} rows were read, its seal says {registered.record_count}"
        raise UnsoundAcceptance(str(verdict.run), problem)


def _attempt_fields(recorded: VerdictResult, ordinal: int, after: _Standing, at: str) -> dict[str, Any]:
    verdict, state, key = recorded.verdict, after.state, after.state.key
    return key_fields(key) | {
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
        "judged_at": at,
        "current_ordinal": after.current_ordinal,
        "message_ordinal": after.message_ordinal,
        f"{STATE}status": state.status,
        f"{STATE}current_run_id": state.current_run_id,
        f"{STATE}schema_version": state.schema_version,
        f"{STATE}record_count": state.record_count,
        f"{STATE}error_message": state.error_message,
        "is_last": True,
        "partition_values": values_text(key),
        "row_version": after.version,
    }


def _event_data(recorded: VerdictResult) -> str:
    """Canonical JSON; of an acceptance, of which there are thousands in a call, it is spelled out."""
    verdict = recorded.verdict
    if verdict.outcome is Outcome.ACCEPTED and not verdict.validation_id:
        run_id, effect = verdict.run.run_id, recorded.effect.value  # names that need no escaping
        return f'{{"effect":"{effect}","rows_read":{verdict.rows_read},"run_id":"{run_id}"}}'
    told = {
        "effect": recorded.effect,
        "run_id": verdict.run.run_id,
        "validation_id": verdict.validation_id or None,
        "rows_read": verdict.rows_read,
        "rows_failed": verdict.rows_failed,
        "error_class": verdict.error_class,
        "error_message": verdict.error_message,
    }
    return event_text({name: value for name, value in told.items() if value is not None})
