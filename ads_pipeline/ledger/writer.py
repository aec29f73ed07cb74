"""Records verdicts, control acts and publications; each change and what it follows from commit together.

The lock of a partition is its state row. Every verb takes the rows it needs in key order, decides by `transitions`
while it holds them, and writes sets: one partition or thousands cost the same number of statements. Every verb may be
repeated with the same words and then changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from ads_pipeline.errors import ActRepeated, IllegalMove, LedgerError, RunChanged, VerdictsRefused, printable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.hearing import Hearing
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.records import Acted, Landing, Order, Publication, Published, Recorded
from ads_pipeline.ledger.rows import (
    demotion_fields,
    key_fields,
    key_in,
    pointer_fields,
    registered_of,
    run_fields,
    run_in,
    run_name,
    state_fields,
    state_of,
    verdict_fields,
)
from ads_pipeline.ledger.statements import Statements
from ads_pipeline.ledger.tables import instant_text
from ads_pipeline.partition import PartitionKey, Run
from ads_pipeline.transitions import (
    Act,
    Effect,
    Outcome,
    PartitionState,
    RegisteredRun,
    Status,
    Verdict,
    carry_out,
)

T = TypeVar("T")
Clock = Callable[[], datetime]


class Ledger(LedgerReader):
    """Read and write access to one ledger. A `clock` replaces the database's own, for those who choose the time."""

    def __init__(self, engine: sa.Engine, *, clock: Clock | None = None) -> None:
        super().__init__(engine)
        self._sql = Statements(engine.dialect.name)
        self._clock = clock

    @classmethod
    @contextmanager
    def opened(cls, url: str, *, clock: Clock | None = None) -> Iterator[Self]:
        with database.opened(url) as engine:
            yield cls(engine, clock=clock)

    def register(self, landings: Sequence[Landing]) -> list[RegisteredRun]:
        """Tell the ledger of sealed runs: each gets its partition's next ordinal, once, and a pending row if none.

        RunChanged names the runs that are already known by other facts; then nothing is registered.
        """
        return self._transact(lambda connection: self._register(connection, landings))

    def insert_pending(self, keys: Iterable[PartitionKey]) -> int:
        """Make the absent rows explicit; what is recorded already is not touched. How many were made."""
        wanted = _sorted(keys)
        return self._transact(lambda connection: self._insert_pending(connection, wanted, self._now(connection)))

    def record_verdict(self, verdict: Verdict) -> Recorded:
        """Record one verdict, or raise the one reason it was refused for."""
        try:
            return self.record_verdicts([verdict])[0]
        except VerdictsRefused as refused:
            raise refused.refusals[0] from None

    def record_verdicts(self, verdicts: Sequence[Verdict]) -> list[Recorded]:
        """Record verdicts in the order given, in one transaction.

        One that cannot stand does not hold up the others: they are recorded, and then VerdictsRefused is raised.
        """
        heard = self._transact(lambda connection: self._judge(connection, verdicts))
        refusals = tuple(answer for answer in heard if isinstance(answer, LedgerError))
        recorded = [answer for answer in heard if isinstance(answer, Recorded)]
        if refusals:
            raise VerdictsRefused(tuple(recorded), refusals)
        return recorded

    def begin_demotions(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Hide what these verdicts reject of what readers get, and keep those verdicts until they are recorded.

        Which of them are demotions. Their rows are to be removed from the warehouse before they are recorded.
        """
        return self._transact(lambda connection: self._begin_demotions(connection, verdicts))

    def carry_out(self, act: Act, keys: Iterable[PartitionKey], order: Order) -> Acted:
        """Carry out a control act on each partition it is legal for, and log it in the same transaction."""
        return self._transact(lambda connection: self._carry_out(connection, act, _sorted(keys), order))

    def publish(self, publications: Sequence[Publication]) -> Published:
        """Point readers at runs that the warehouse holds, if the ledger still says so; add their load records."""
        return self._transact(lambda connection: self._publish(connection, publications))

    def _transact(self, work: Callable[[sa.Connection], T]) -> T:
        return database.transact(self._engine, work)

    def _now(self, connection: sa.Connection) -> datetime:
        return self._clock() if self._clock else connection.scalars(self._sql.read_clock).one()

    def _lock(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionState]:
        rows = self._sql.lock_states.run(connection, map(key_fields, keys))
        return {state.key: state for state in map(state_of, rows)}

    def _insert_pending(self, connection: sa.Connection, keys: list[PartitionKey], now: datetime) -> int:
        fresh = {"status": Status.PENDING, "updated_at": instant_text(now)}
        return self._sql.insert_pending.run(connection, (key_fields(key) | fresh for key in keys)).rowcount

    def _register(self, connection: sa.Connection, landings: Sequence[Landing]) -> list[RegisteredRun]:
        now = self._now(connection)
        keys = _sorted(landing.run.key for landing in landings)
        self._insert_pending(connection, keys, now)
        self._lock(connection, keys)
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
        return [known[landing.run] for landing in landings]

    def _judge(self, connection: sa.Connection, verdicts: Sequence[Verdict]) -> list[Recorded | LedgerError]:
        hearing = Hearing(self._clock)
        answers: list[Recorded | LedgerError] = []
        for verdict, row in zip(verdicts, self._read_for_judging(connection, verdicts), strict=True):
            try:
                answers.append(hearing.hear(verdict, row))
            except LedgerError as error:
                answers.append(error)
        if hearing.attempt_rows:
            for statement in self._sql.record_attempts:
                statement.run(connection, hearing.attempt_rows)
        self._hide_rejected(connection, [answer for answer in answers if isinstance(answer, Recorded)])
        return answers

    def _hide_rejected(self, connection: sa.Connection, recorded: Sequence[Recorded]) -> None:
        """A demotion takes the pointer along in its own transaction, also when nobody has begun it."""
        rejected = [each for each in recorded if each.verdict.outcome is Outcome.REJECTED]
        demoted = {each.state.key for each in rejected if each.effect is Effect.DEMOTED and not each.redelivered}
        if demoted:
            self._withdraw_pointers(connection, demoted)
        if rejected:
            self._sql.end_demotions.run(connection, (verdict_fields(each.verdict) for each in rejected))

    def _begin_demotions(self, connection: sa.Connection, verdicts: Sequence[Verdict]) -> list[Verdict]:
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
            begun_at = {"begun_at": instant_text(self._now(connection))}
            self._sql.insert_demotions.run(connection, (demotion_fields(each) | begun_at for each in demoting))
            self._withdraw_pointers(connection, {each.run.key for each in demoting})
        return demoting

    def _read_for_judging(self, connection: sa.Connection, verdicts: Sequence[Verdict]) -> Sequence[sa.Row[Any]]:
        asked = [
            key_fields(verdict.run.key)
            | {"place": place, "run_id": verdict.run.run_id, "validation_id": verdict.validation_id}
            for place, verdict in enumerate(verdicts)
        ]
        rows = self._sql.read_for_judging.run(connection, asked).all()
        if any(row.attempt_count and row.last_attempt_no is None for row in rows):
            # Another transaction committed while this statement waited for its lock: what it wrote beside the state
            # row is not in the statement's view. Now that the lock is ours a second look sees everything.
            rows = self._sql.read_for_judging.run(connection, asked).all()
        return rows

    def _carry_out(self, connection: sa.Connection, act: Act, keys: list[PartitionKey], order: Order) -> Acted:
        now = self._now(connection)
        before = self._lock(connection, keys)
        if self._is_done(connection, act, order):
            return self._done_before(connection, order, keys, before)
        acted = _decide(act, [before.get(key) or PartitionState.absent(key) for key in keys], now)
        self._log(connection, act, order, acted, before, now)
        present = [state for state in acted.changed if state.key in before]
        absent = [state.key for state in acted.changed if state.key not in before]
        self._sql.update_states.run(connection, map(state_fields, present))
        self._insert_pending(connection, absent, now)
        if act is Act.WITHDRAW:
            self._withdraw_pointers(connection, [state.key for state in acted.changed])
        return acted

    def _log(
        self,
        connection: sa.Connection,
        act: Act,
        order: Order,
        acted: Acted,
        before: Mapping[PartitionKey, PartitionState],
        now: datetime,
    ) -> None:
        words = {
            "act_id": order.act_id,
            "act": act.name.lower(),
            "operator": printable(order.operator),
            "command": printable(order.command),
            "filters": printable(order.filters),
            "reason": printable(order.reason),
            "partitions_changed": len(acted.changed),
            "acted_at": now,
        }
        connection.execute(self._sql.insert_act, words)
        rows = (
            key_fields(state.key)
            | {"act_id": order.act_id, "status_before": before[state.key].status if state.key in before else None}
            for state in acted.changed
        )
        self._sql.insert_acted.run(connection, rows)

    def _is_done(self, connection: sa.Connection, act: Act, order: Order) -> bool:
        done = connection.execute(self._sql.read_act, {"act_id": order.act_id}).one_or_none()
        if done is not None and (done.act, done.operator) != (act.name.lower(), printable(order.operator)):
            raise ActRepeated(order.act_id)
        return done is not None

    def _done_before(
        self,
        connection: sa.Connection,
        order: Order,
        keys: list[PartitionKey],
        states: Mapping[PartitionKey, PartitionState],
    ) -> Acted:
        """The answer to an act that is sent again, as when its first answer was lost."""
        acted = set(map(key_in, connection.execute(self._sql.read_acted, {"act_id": order.act_id})))
        return Acted(
            changed=tuple(states[key] for key in keys if key in acted),
            unchanged=tuple(key for key in keys if key not in acted),
            refused=(),
        )

    def _publish(self, connection: sa.Connection, publications: Sequence[Publication]) -> Published:
        now = instant_text(self._now(connection))
        keys = _sorted(publication.run.key for publication in publications)
        states = self._lock(connection, keys)
        shown = {
            key_in(row): row.run_id
            for row in self._pointers_of.run(connection, map(key_fields, keys))
            if row.availability == "published"
        }
        asked = [run_name(publication.run) for publication in publications]
        demoting = set(map(run_in, self._sql.demoting_of.run(connection, asked)))
        published: list[Run] = []
        outdated: list[Run] = []
        moved: list[dict[str, Any]] = []
        for publication in publications:
            run, state = publication.run, states.get(publication.run.key)
            if state is None or run in demoting or not _is_authority(run, state):
                outdated.append(run)
                continue
            published.append(run)
            if shown.get(run.key) != run.run_id:
                moved.append(pointer_fields(publication, state))
        self._sql.put_pointers.run(connection, (row | {"changed_at": now} for row in moved))
        self._sql.insert_load_records.run(connection, (row | {"loaded_at": now} for row in moved))
        return Published(published=tuple(published), outdated=tuple(outdated))

    def _withdraw_pointers(self, connection: sa.Connection, keys: Iterable[PartitionKey]) -> None:
        """The caller holds the partitions' locks."""
        now = instant_text(self._now(connection))
        self._sql.withdraw_pointers.run(connection, (key_fields(key) | {"changed_at": now} for key in keys))


def _sorted(keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Each key once, in the order in which every verb takes its locks."""
    return sorted(set(keys))


def _is_authority(run: Run, state: PartitionState) -> bool:
    return state.status is Status.SUCCESS and state.current_run_id == run.run_id


def _decide(act: Act, states: Iterable[PartitionState], now: datetime) -> Acted:
    changed: list[PartitionState] = []
    unchanged: list[PartitionKey] = []
    refused: list[IllegalMove] = []
    for before in states:
        try:
            after = carry_out(before, act, now=now)
        except IllegalMove as error:
            refused.append(error)
        else:
            if after is before:
                unchanged.append(before.key)
            else:
                changed.append(after)
    return Acted(changed=tuple(changed), unchanged=tuple(unchanged), refused=tuple(refused))


def _registered(landing: Landing, ordinal: int) -> RegisteredRun:
    return RegisteredRun(
        run=landing.run,
        ordinal=ordinal,
        schema_version=landing.schema_version,
        record_count=landing.record_count,
        payload_sha256=landing.payload_sha256,
    )
