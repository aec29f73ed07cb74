"""Random histories on SQLite, on Postgres and in the oracle at once: after every step all three say the same."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action, Outcome, PartitionState, Verdict
from ads_pipeline.errors import UnsoundAcceptance, VerdictConflict
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import ActionResult, RunRegistration
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import SealFacts
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import FakeClock, action_request, key
from ads_pipeline_tests.ledger.reference_model import Judged, OraclePartition

PARTITIONS = 3
ROWS = 2
FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 3, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)
_customers = itertools.count(1)
partitions = st.integers(0, PARTITIONS - 1)
validations = st.sampled_from(["", "", "", "v2", "v3"])


class LedgerMachine(RuleBasedStateMachine):
    """Runs land in raw, are registered, judged, judged again and overruled; operators act; the clock jumps."""

    ledgers: tuple[Ledger, Ledger]
    raw: RawRuns
    clock: FakeClock

    def __init__(self) -> None:
        super().__init__()
        self.keys = [key(str(next(_customers))) for _ in range(PARTITIONS)]
        self.oracles = [OraclePartition() for _ in self.keys]
        self.runs: list[list[Run]] = [[] for _ in self.keys]
        self.damaged: set[Run] = set()
        self.seen: dict[PartitionKey, PartitionState] = {}

    @rule(jump=st.integers(-5000, 5000))
    def time_passes(self, jump: int) -> None:
        self.clock.tick(timedelta(seconds=jump))

    @rule(place=partitions, sound=st.sampled_from([True, True, True, False]))
    def run_lands(self, place: int, sound: bool) -> None:
        run = Run(key=self.keys[place], run_id=f"r{len(self.runs[place])}")
        self.runs[place].append(run)
        landing = RunRegistration(run=run)
        if sound:
            seal = self.raw.land(run, ({"row": n} for n in range(ROWS)), FACTS)
            landing = RunRegistration(
                run=run,
                schema_version=seal.facts.schema_version,
                record_count=seal.record_count,
                payload_sha256=seal.payload_sha256,
            )
        else:
            self.damaged.add(run)
        ordinals = {ledger.register([landing])[0].ordinal for ledger in self.ledgers}
        assert ordinals == {len(self.runs[place])}
        self.oracles[place].known = True

    @precondition(lambda self: any(self.runs))
    @rule(data=st.data(), good=st.booleans(), validation=validations)
    def verdict_arrives(self, data: st.DataObject, good: bool, validation: str) -> None:
        place = data.draw(st.sampled_from([n for n, runs in enumerate(self.runs) if runs]))
        ordinal = data.draw(st.integers(1, len(self.runs[place])))
        run = self.runs[place][ordinal - 1]
        if good and run in self.damaged and (ordinal, validation) not in self.oracles[place].heard:
            for ledger in self.ledgers:
                with pytest.raises(UnsoundAcceptance):
                    ledger.record_verdict(_verdict(run, good, validation))
            return
        message = None if good else f"{run.run_id} {validation}"
        answer = self.oracles[place].judge(Judged(ordinal, good, message), validation)
        for ledger in self.ledgers:
            if answer == "conflict":
                with pytest.raises(VerdictConflict):
                    ledger.record_verdict(_verdict(run, good, validation))
            else:
                recorded = ledger.record_verdict(_verdict(run, good, validation))
                assert recorded.redelivered == (answer == "known")

    @rule(place=partitions, act=st.sampled_from([Action.REQUEUE, Action.WITHDRAW, Action.ENQUEUE, Action.REPROCESS]))
    def control_actions(self, place: int, act: Action) -> None:
        verbs: dict[Action, Callable[[], str]] = {
            Action.REQUEUE: self.oracles[place].requeue,
            Action.WITHDRAW: self.oracles[place].withdraw,
            Action.ENQUEUE: self.oracles[place].enqueue,
            Action.REPROCESS: self.oracles[place].reprocess,
        }
        expected = verbs[act]()
        action_id = f"{self.keys[place].customer_id}-{next(_customers)}"
        for ledger in self.ledgers:
            acted = ledger.execute(act, [self.keys[place]], action_request(action_id))
            assert _answer(acted) == expected

    @invariant()
    def all_three_agree(self) -> None:
        on_sqlite, on_postgres = (ledger.states(self.keys) for ledger in self.ledgers)
        assert on_sqlite == on_postgres
        for partition, oracle, runs in zip(self.keys, self.oracles, self.runs, strict=True):
            state = on_sqlite[partition]
            assert (state.updated_at is not None) == oracle.known
            assert state.status == oracle.status
            assert state.current_run_id == (None if oracle.current is None else runs[oracle.current - 1].run_id)
            assert state.error_message == oracle.message
            assert state.attempt_count == oracle.attempts

    @invariant()
    def rows_only_move_forward(self) -> None:
        for partition, state in self.ledgers[0].states(self.keys).items():
            before = self.seen.get(partition)
            if before is not None and before != state and before.updated_at and state.updated_at:
                assert state.updated_at > before.updated_at
                assert state.attempt_count >= before.attempt_count
            self.seen[partition] = state

    @invariant()
    def the_current_run_is_sealed(self) -> None:
        for state in self.ledgers[0].states(self.keys).values():
            if state.current_run_id is not None:
                seal = self.raw.verify(Run(key=state.key, run_id=state.current_run_id))
                assert (state.schema_version, state.record_count) == (seal.facts.schema_version, seal.record_count)

    @invariant()
    def attempts_tell_the_same_story(self) -> None:
        on_sqlite, on_postgres = ([ledger.attempts(partition) for partition in self.keys] for ledger in self.ledgers)
        assert on_sqlite == on_postgres
        assert [len(attempts) for attempts in on_sqlite] == [oracle.attempts for oracle in self.oracles]


def _verdict(run: Run, good: bool, validation: str) -> Verdict:
    if good:
        return Verdict(run=run, outcome=Outcome.ACCEPTED, validation_id=validation, rows_read=ROWS)
    return Verdict(
        run=run,
        outcome=Outcome.REJECTED,
        validation_id=validation,
        error_class="row_contract",
        error_message=f"{run.run_id} {validation}",
    )


def _answer(acted: ActionResult) -> str:
    return "changed" if acted.changed else "refused" if acted.refused else "unchanged"


@pytest.fixture
def machine(sqlite_url: str, postgres_url: str) -> Iterator[type[LedgerMachine]]:
    clock = FakeClock()
    with (
        tempfile.TemporaryDirectory() as home,
        Ledger.opened(sqlite_url, clock=clock) as on_sqlite,
        Ledger.opened(postgres_url, clock=clock) as on_postgres,
    ):
        shared: dict[str, Any] = {
            "ledgers": (on_sqlite, on_postgres),
            "raw": RawRuns(Path(home) / "raw"),
            "clock": clock,
        }
        yield type("SharedLedgerMachine", (LedgerMachine,), shared)


@pytest.mark.invariant("S1", "S4", "S5", "S6", "S8", "S9", "S10", "S11", "S19", "S22")
def test_any_history_gives_the_same_ledger_everywhere(machine: type[LedgerMachine]) -> None:
    """No history of landings, verdicts, redeliveries and acts brings database, other database and oracle apart."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
