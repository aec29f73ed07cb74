"""Records verdicts, control acts and publications; each change and what it follows from commit together.

The lock of a partition is its state row. Every verb takes the rows it needs in key order, decides by `transitions`
while it holds them, and writes sets: one partition or thousands cost the same number of statements. Every verb may be
repeated with the same words and then changes nothing. A run that holds a lease writes only of what it has claimed.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW, WAREHOUSE, AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Effect, Outcome, PartitionState, RegisteredRun, Status, Verdict
from ads_pipeline.errors import LedgerError, RunChanged, VerdictsRefused, printable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.action_execution import is_logged, log
from ads_pipeline.ledger.control.control_actions import ControlActions, in_order
from ads_pipeline.ledger.row_mapping import (
    demotion_fields,
    key_fields,
    key_in,
    pointer_fields,
    registered_of,
    run_fields,
    run_in,
    run_name,
    state_of,
    verdict_fields,
)
from ads_pipeline.ledger.state.verdict_recorder import VerdictRecorder
from ads_pipeline.ledger.status.partition_status import AttemptFinish, place_fields
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.ledger.values import Publication, PublishResult, RunRegistration, VerdictCause, VerdictResult

T = TypeVar("T")


class Ledger(ControlActions):
    """Read and write access to one ledger."""

    def register(self, landings: Sequence[RunRegistration]) -> list[RegisteredRun]:
        """Tell the ledger of sealed runs: each gets its partition's next ordinal, once, and a pending row if none.

        RunChanged names the runs that are already known by other facts; then nothing is registered.
        """
        return self._transact(lambda connection: self._register(connection, landings))

    def insert_pending(self, keys: Iterable[PartitionKey]) -> int:
        """Make the absent rows explicit; what is recorded already is not touched. How many were made."""
        wanted = in_order(keys)
        return self._transact(
            lambda connection: self._writing.insert_pending(connection, wanted, self._writing.now(connection))
        )

    def record_verdict(self, verdict: Verdict) -> VerdictResult:
        """Record one verdict, or raise the one reason it was refused for."""
        try:
            return self.record_verdicts([verdict])[0]
        except VerdictsRefused as refused:
            raise refused.refusals[0] from None

    def record_verdicts(
        self, verdicts: Sequence[Verdict], *, overruling: VerdictCause | None = None
    ) -> list[VerdictResult]:
        """Record verdicts in the order given, in one transaction; with the act of the operator whose they are.

        One that cannot stand does not hold up the others: they are recorded, and then VerdictsRefused is raised.
        """
        heard = self._transact(lambda connection: self._judge(connection, verdicts, overruling))
        refusals = tuple(answer for answer in heard if isinstance(answer, LedgerError))
        recorded = [answer for answer in heard if isinstance(answer, VerdictResult)]
        if refusals:
            raise VerdictsRefused(tuple(recorded), refusals)
        return recorded

    def begin_demotions(
        self, verdicts: Sequence[Verdict], *, overruling: VerdictCause | None = None
    ) -> list[Verdict]:
        """Hide what these verdicts reject of what readers get, and keep those verdicts until they are recorded.

        Which of them are demotions. Their rows are to be removed from the warehouse before they are recorded.
        """
        return self._transact(lambda connection: self._begin_demotions(connection, verdicts, overruling))

    def publish(self, publications: Sequence[Publication]) -> PublishResult:
        """Point readers at runs that the warehouse holds, if the ledger still says so; add their load records."""
        return self._transact(lambda connection: self._publish(connection, publications))

    def publishable(self, wanted: Iterable[Run]) -> set[Run]:
        """The same, and for a run with a lease LeaseLost when they are not its own: its commit is about to follow."""
        asked = list(wanted)
        if self._writing.lease is not None:
            self._transact(lambda connection: self._writing.guard(connection, {run.key for run in asked}))
        return super().publishable(asked)

    def record_failed_loads(self, problems: Mapping[Run, str]) -> None:
        """Record that accepted runs could not be loaded, one a partition, and why. It changes no state."""
        self._transact(lambda connection: self._fail_loads(connection, problems))

    def _register(self, connection: sa.Connection, landings: Sequence[RunRegistration]) -> list[RegisteredRun]:
        now = self._writing.now(connection)
        keys = in_order(landing.run.key for landing in landings)
        self._writing.insert_pending(connection, keys, now)
        self._writing.lock(connection, keys)
        self._writing.guard(connection, keys)
        asked = [
            key_fields(landing.run.key) | {"place": place, "run_id": landing.run.run_id}
            for place, landing in enumerate(landings)
        ]
        rows = self._sql.read_for_registering.run(connection, asked)
        known: dict[Run, RegisteredRun] = {}
        newest: dict[PartitionKey, int] = {}
        fresh: list[RegisteredRun] = []
        changed: list[str] = []
        for landing, row in zip(landings, rows, strict=True):
            run, key = landing.run, landing.run.key
            if row.run_id is not None:
                known[run] = registered_of(row)
            elif run not in known:
                newest[key] = newest.get(key, row.newest_ordinal or 0) + 1
                known[run] = _registered(landing, newest[key])
                fresh.append(known[run])
            if known[run] != _registered(landing, known[run].ordinal):
                changed.append(str(run))
        if changed:
            raise RunChanged(tuple(dict.fromkeys(changed)))
        self._sql.insert_runs.run(connection, (run_fields(run, now) for run in fresh))
        self._writing.tell(connection, [self._sealed(run, instant_text(now)) for run in fresh], now)
        return [known[landing.run] for landing in landings]

    def _judge(
        self, connection: sa.Connection, verdicts: Sequence[Verdict], overruling: VerdictCause | None
    ) -> list[VerdictResult | LedgerError]:
        hearing = VerdictRecorder(self._writing.clock, own=self._writing.own, statuses=self._writing.statuses)
        answers: list[VerdictResult | LedgerError] = []
        rows = self._read_for_judging(connection, verdicts)
        for verdict, row in zip(verdicts, rows, strict=True):
            try:
                answers.append(hearing.record(verdict, row))
            except LedgerError as error:
                answers.append(error)
        if hearing.partitions:
            written = [statement.run(connection, hearing.rows).rowcount for statement in self._sql.record_verdicts]
            if written[-1] < hearing.partitions:
                raise database.Overtaken("a status was written without the lock of its partition's state")
            self._log_overruling(connection, overruling, verdicts, rows)
        self._hide_rejected(connection, [answer for answer in answers if isinstance(answer, VerdictResult)])
        return answers

    def _hide_rejected(self, connection: sa.Connection, recorded: Sequence[VerdictResult]) -> None:
        """A demotion takes the pointer along in its own transaction, also when nobody has begun it."""
        rejected = [each for each in recorded if each.verdict.outcome is Outcome.REJECTED]
        demoted = {each.state.key for each in rejected if each.effect is Effect.DEMOTED and not each.redelivered}
        if demoted:
            self._writing.withdraw_pointers(connection, demoted)
        if rejected:
            self._sql.end_demotions.run(connection, (verdict_fields(each.verdict) for each in rejected))

    def _log_overruling(
        self,
        connection: sa.Connection,
        overruling: VerdictCause | None,
        verdicts: Iterable[Verdict],
        rows: Sequence[sa.Row[Any]],
    ) -> None:
        """Once, with the first transaction of the act that changes something."""
        if overruling is None or is_logged(self._writing, connection, overruling.act, overruling.order):
            return
        found = zip(verdicts, rows, strict=True)
        states = {verdict.run.key: state_of(row, verdict.run.key) for verdict, row in found}
        now = self._writing.now(connection)
        log(self._writing, connection, overruling.act, overruling.order, list(states.values()), states, now)

    def _begin_demotions(
        self, connection: sa.Connection, verdicts: Sequence[Verdict], overruling: VerdictCause | None
    ) -> list[Verdict]:
        rows = self._read_for_judging(connection, verdicts)
        demoting = [
            verdict
            for verdict, row in zip(verdicts, rows, strict=True)
            if verdict.outcome is Outcome.REJECTED
            and row.prior_outcome is None
            and row.status != Status.FAILED
            and row.current_run_id == verdict.run.run_id
        ]
        if demoting:
            now = self._writing.now(connection)
            begun = set(map(run_in, self._sql.demoting_of.run(connection, (run_name(each.run) for each in demoting))))
            begun_at = {"begun_at": instant_text(now)}
            self._sql.insert_demotions.run(connection, (demotion_fields(each) | begun_at for each in demoting))
            self._writing.withdraw_pointers(connection, {each.run.key for each in demoting})
            attempts = {verdict.run: row.attempt_count for verdict, row in zip(verdicts, rows, strict=True)}
            fresh = {each.run: each for each in demoting if each.run not in begun}
            events = [self._demoting(verdict, attempts[run] + 1, instant_text(now)) for run, verdict in fresh.items()]
            self._writing.tell(connection, events, now)
            self._log_overruling(connection, overruling, verdicts, rows)
        return demoting

    def _read_for_judging(self, connection: sa.Connection, verdicts: Sequence[Verdict]) -> Sequence[sa.Row[Any]]:
        place = self._writing.statuses.place
        asked = [
            verdict_fields(verdict) | place_fields(place(RAW, verdict.run.key)) | {"place": number}
            for number, verdict in enumerate(verdicts)
        ]
        rows = self._sql.read_for_judging.run(connection, asked).all()
        if any(row.attempt_count and row.last_attempt_no is None for row in rows):
            # Another transaction committed while this statement waited for its lock: what it wrote beside the state
            # row is not in the statement's view. Now that the lock is ours a second look sees everything.
            rows = self._sql.read_for_judging.run(connection, asked).all()
        self._writing.guard(connection, {verdict.run.key for verdict in verdicts})
        return rows

    def _publish(self, connection: sa.Connection, publications: Sequence[Publication]) -> PublishResult:
        now = self._writing.now(connection)
        keys = in_order(publication.run.key for publication in publications)
        states = self._writing.lock(connection, keys)
        self._writing.guard(connection, keys)
        shown = {
            key_in(row): row.run_id
            for row in self._pointers_of.run(connection, map(key_fields, keys))
            if row.availability == "published"
        }
        asked = [run_name(publication.run) for publication in publications]
        demoting = set(map(run_in, self._sql.demoting_of.run(connection, asked)))
        published: list[Run] = []
        outdated: list[Run] = []
        moved: dict[PartitionKey, dict[str, Any]] = {}
        for publication in publications:
            run, state = publication.run, states.get(publication.run.key)
            if state is None or run in demoting or not _is_authority(run, state):
                outdated.append(run)
                continue
            published.append(run)
            if shown.get(run.key) != run.run_id:
                moved[run.key] = pointer_fields(publication, state)
        self._point(connection, moved, states, now)
        return PublishResult(published=tuple(published), outdated=tuple(outdated))

    def _point(
        self,
        connection: sa.Connection,
        moved: Mapping[PartitionKey, dict[str, Any]],
        states: Mapping[PartitionKey, PartitionState],
        now: datetime,
    ) -> None:
        at = instant_text(now)
        self._sql.put_pointers.run(connection, (row | {"changed_at": at} for row in moved.values()))
        self._sql.insert_load_records.run(connection, (row | {"loaded_at": at} for row in moved.values()))
        loads = [
            AttemptFinish(
                key=key,
                run_id=row["run_id"],
                outcome=AttemptOutcome.SUCCEEDED,
                code_version=row["schema_version"],
                after=states[key].updated_at,
            )
            for key, row in moved.items()
        ]
        told = {
            key: {name: row[name] for name in ("run_id", "schema_version", "record_count", "table_version")}
            for key, row in moved.items()
        }
        self._finish_loads(connection, "PartitionLoaded", loads, told, now)

    def _finish_loads(
        self,
        connection: sa.Connection,
        event_type: str,
        loads: Sequence[AttemptFinish],
        told: Mapping[PartitionKey, Mapping[str, Any]],
        now: datetime,
    ) -> None:
        """Every attempt at a load is a finish of the warehouse's asset, and numbered as such."""
        numbers = self._writing.statuses.finish(connection, WAREHOUSE, loads, now)
        at = instant_text(now)
        events = [
            self._writing.own.fields(event_type, str(key), number, told[key], at=at)
            for key, number in numbers.items()
        ]
        self._writing.tell(connection, events, now)

    def _fail_loads(self, connection: sa.Connection, problems: Mapping[Run, str]) -> None:
        now = self._writing.now(connection)
        keys = {run.key for run in problems}
        self._writing.lock(connection, keys)
        self._writing.guard(connection, keys)
        failed = [
            AttemptFinish(key=run.key, run_id=run.run_id, outcome=AttemptOutcome.FAILED) for run in sorted(problems)
        ]
        told = {
            run.key: {"run_id": run.run_id, "error_message": printable(problem)} for run, problem in problems.items()
        }
        self._finish_loads(connection, "LoadFailed", failed, told, now)

    def _sealed(self, run: RegisteredRun, at: str) -> dict[str, Any]:
        told = {"run_id": run.run.run_id, "schema_version": run.schema_version, "record_count": run.record_count}
        return self._writing.own.fields("RawSealed", str(run.run.key), run.ordinal, told, at=at)

    def _demoting(self, verdict: Verdict, attempt: int, at: str) -> dict[str, Any]:
        told = {"run_id": verdict.run.run_id, "error_message": verdict.error_message}
        return self._writing.own.fields("DemotionBegun", str(verdict.run.key), attempt, told, at=at)


def _is_authority(run: Run, state: PartitionState) -> bool:
    return state.status is Status.SUCCESS and state.current_run_id == run.run_id


def _registered(landing: RunRegistration, ordinal: int) -> RegisteredRun:
    return RegisteredRun(
        run=landing.run,
        ordinal=ordinal,
        schema_version=landing.schema_version,
        record_count=landing.record_count,
        payload_sha256=landing.payload_sha256,
    )
