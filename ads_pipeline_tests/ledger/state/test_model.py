"""Random histories on SQLite, Postgres and a reference model, whose states must be equal after every step."""

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

from ads_pipeline.domain.errors import UnsoundAcceptance, VerdictConflict
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun, SealFacts
from ads_pipeline.domain.transitions import Action, PartitionState, Verdict
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql.ledger_values import ActionResult
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    FakeClock,
    acceptance,
    action_request,
    key,
    record_verdict,
    rejection,
)
from ads_pipeline_tests.ledger.reference_model import ReferencePartition, ReferenceVerdict

PARTITIONS = 3
FACTS = SealFacts(
    extracted_at=datetime(2026, 2, 3, tzinfo=UTC), schema_version="1", api_version="v26", query_hash="0" * 64
)
_customers = itertools.count(10**9)  # of one length: texts have the order of their numbers in every example
partition_numbers = st.integers(0, PARTITIONS - 1)
validation_ids = st.sampled_from(["", "", "", "v2", "v3"])
actions = st.sampled_from([Action.REQUEUE, Action.WITHDRAW, Action.ENQUEUE, Action.REPROCESS])


class LedgerMachine(RuleBasedStateMachine):
    """Lands, registers and judges runs, executes control actions, and moves the clock in both directions."""

    ledgers: tuple[Ledger, Ledger]
    raw: RawRuns
    clock: FakeClock

    def __init__(self) -> None:
        super().__init__()
        self.keys = [key(str(next(_customers))) for _ in range(PARTITIONS)]
        self.models = [ReferencePartition() for _ in self.keys]
        self.runs: list[list[Run]] = [[] for _ in self.keys]
        self.damaged: set[Run] = set()
        self.last_states: dict[PartitionKey, PartitionState] = {}

    @rule(seconds=st.integers(-5000, 5000))
    def move_clock(self, seconds: int) -> None:
        self.clock.tick(timedelta(seconds=seconds))

    @rule(number=partition_numbers, has_sound_seal=st.sampled_from([True, True, True, False]))
    def register_run(self, number: int, has_sound_seal: bool) -> None:
        run = Run(key=self.keys[number], run_id=f"r{len(self.runs[number])}")
        self.runs[number].append(run)
        registration: SealedRun | Run = run
        if has_sound_seal:
            registration = self.raw.land(run, ({"row": n} for n in range(ROWS)), FACTS)
        else:
            self.damaged.add(run)
        ordinals = {ledger.registrations.register([registration])[0].ordinal for ledger in self.ledgers}
        assert ordinals == {len(self.runs[number])}
        self.models[number].recorded = True

    @precondition(lambda self: any(self.runs))
    @rule(data=st.data(), accepted=st.booleans(), validation_id=validation_ids)
    def record_verdict(self, data: st.DataObject, accepted: bool, validation_id: str) -> None:
        number = data.draw(st.sampled_from([n for n, runs in enumerate(self.runs) if runs]))
        ordinal = data.draw(st.integers(1, len(self.runs[number])))
        run = self.runs[number][ordinal - 1]
        verdict = _verdict(run, accepted, validation_id)
        is_new = (ordinal, validation_id) not in self.models[number].verdicts
        if accepted and run in self.damaged and is_new:
            for ledger in self.ledgers:
                with pytest.raises(UnsoundAcceptance):
                    record_verdict(ledger, verdict)
            return
        expected = self.models[number].record(
            ReferenceVerdict(ordinal, accepted, verdict.error_message), validation_id
        )
        for ledger in self.ledgers:
            if expected == "conflict":
                with pytest.raises(VerdictConflict):
                    record_verdict(ledger, verdict)
            else:
                assert record_verdict(ledger, verdict).redelivered == (expected == "redelivered")

    @rule(number=partition_numbers, action=actions)
    def execute_action(self, number: int, action: Action) -> None:
        model = self.models[number]
        methods: dict[Action, Callable[[], str]] = {
            Action.REQUEUE: model.requeue,
            Action.WITHDRAW: model.withdraw,
            Action.ENQUEUE: model.enqueue,
            Action.REPROCESS: model.reprocess,
        }
        expected = methods[action]()
        request = action_request(f"{self.keys[number].customer_id}-{next(_customers)}")
        for ledger in self.ledgers:
            assert _describe(ledger.actions.execute(action, [self.keys[number]], request)) == expected

    @invariant()
    def states_equal_the_model(self) -> None:
        on_sqlite, on_postgres = (ledger.states.get_many(self.keys) for ledger in self.ledgers)
        assert on_sqlite == on_postgres
        for partition, model, runs in zip(self.keys, self.models, self.runs, strict=True):
            state, current = on_sqlite[partition], model.current_ordinal
            assert (state.updated_at is not None) == model.recorded
            assert state.status == model.status
            assert state.current_run_id == (None if current is None else runs[current - 1].run_id)
            assert state.error_message == model.message
            assert state.attempt_count == model.attempt_count

    @invariant()
    def updated_at_and_attempt_count_only_grow(self) -> None:
        for partition, state in self.ledgers[0].states.get_many(self.keys).items():
            before = self.last_states.get(partition)
            if before is not None and before != state and before.updated_at and state.updated_at:
                assert state.updated_at > before.updated_at
                assert state.attempt_count >= before.attempt_count
            self.last_states[partition] = state

    @invariant()
    def current_run_matches_its_seal(self) -> None:
        for state in self.ledgers[0].states.get_many(self.keys).values():
            if state.current_run_id is not None:
                seal = self.raw.verify(Run(key=state.key, run_id=state.current_run_id))
                assert (state.schema_version, state.record_count) == (seal.facts.schema_version, seal.record_count)

    @invariant()
    def attempts_are_equal(self) -> None:
        on_sqlite, on_postgres = ([ledger.runs.attempts(key) for key in self.keys] for ledger in self.ledgers)
        assert on_sqlite == on_postgres
        assert [len(attempts) for attempts in on_sqlite] == [model.attempt_count for model in self.models]


def _verdict(run: Run, accepted: bool, validation_id: str) -> Verdict:
    if accepted:
        return acceptance(run, validation_id)
    return rejection(run, f"again {validation_id}", validation_id=validation_id)


def _describe(result: ActionResult) -> str:
    return "changed" if result.changed else "refused" if result.refused else "unchanged"


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
def test_random_histories_match_the_reference_model(machine: type[LedgerMachine]) -> None:
    """SQLite, Postgres and the model agree after every registration, verdict, redelivery and control action."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples(40),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
