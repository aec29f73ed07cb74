"""A scripted history of a ledger, with at least one event of every kind."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from ads_pipeline.domain.errors import LedgerError
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    action_request,
    key,
    publish_runs,
    rejection,
    run,
    sealed_runs,
)

HOUR, MOMENT = timedelta(hours=1), timedelta(microseconds=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation on one partition. The clock moves by `clock_change` before it."""

    operation: str
    partition_no: int
    run_no: int = 1
    clock_change: timedelta = timedelta()
    validation_id: str = ""
    action: Action = Action.ENQUEUE


def apply_history(ledger: Ledger, clock: FakeClock, history: Iterable[Step]) -> None:
    """Apply the steps in order. A refused step changes nothing and is skipped."""
    for number, step in enumerate(history):
        clock.tick(step.clock_change)
        with suppress(LedgerError):
            OPERATIONS[step.operation](ledger, step, run(_partition(step.partition_no), f"r{step.run_no}"), number)


def _partition(partition_no: int) -> PartitionKey:
    return key(str(1 + partition_no))


def _reject(ledger: Ledger, step: Step, run: Run, _number: int) -> None:
    """Begin a demotion where the run has authority, like the pipeline, then record the rejection."""
    verdict = rejection(run, validation_id=step.validation_id)
    ledger.verdicts.begin_demotions([verdict])
    ledger.verdicts.record([verdict])


Operation = Callable[[Ledger, Step, Run, int], object]
OPERATIONS: Mapping[str, Operation] = {
    "register": lambda ledger, _step, run, _number: ledger.registrations.register(sealed_runs(run)),
    "register damaged": lambda ledger, _step, run, _number: ledger.registrations.register([run]),
    "accept": lambda ledger, step, run, _number: ledger.verdicts.record([acceptance(run, step.validation_id)]),
    "reject": _reject,
    "begin demotion": lambda ledger, step, run, _number: ledger.verdicts.begin_demotions(
        [rejection(run, validation_id=step.validation_id)]
    ),
    "execute": lambda ledger, step, run, number: ledger.actions.execute(
        step.action, [run.key], action_request(f"action-{number}")
    ),
    "publish": lambda ledger, _step, run, _number: publish_runs(ledger, run),
    "fail to load": lambda ledger, _step, run, _number: ledger.loads.record_failed({run: "no room"}),
    "insert pending": lambda ledger, _step, run, _number: ledger.registrations.insert_pending([run.key]),
}

# The clock goes back before some of the control actions.
SCRIPTED_HISTORY = (
    Step(operation="register", partition_no=0),
    Step(operation="accept", partition_no=0),
    Step(operation="accept", partition_no=0),  # redelivered
    Step(operation="publish", partition_no=0),
    Step(operation="accept", partition_no=0, validation_id="v2"),  # confirmed
    Step(operation="register", partition_no=0, run_no=2),
    Step(operation="reject", partition_no=0, run_no=2),  # set aside
    Step(operation="execute", partition_no=0, clock_change=-HOUR, action=Action.REPROCESS),
    Step(operation="reject", partition_no=0, validation_id="v3"),  # demoted
    Step(operation="execute", partition_no=0, clock_change=-HOUR, action=Action.MARK_TERMINAL),
    Step(operation="execute", partition_no=0, action=Action.CLEAR_TERMINAL),
    Step(operation="execute", partition_no=0, action=Action.REQUEUE),
    Step(operation="accept", partition_no=0, run_no=2, validation_id="v4"),  # promoted by a new validation
    Step(operation="accept", partition_no=0, validation_id="v4"),  # superseded
    Step(operation="publish", partition_no=0, run_no=2),
    Step(operation="execute", partition_no=0, run_no=2, clock_change=-HOUR, action=Action.WITHDRAW),
    Step(operation="execute", partition_no=1),
    Step(operation="register damaged", partition_no=1),
    Step(operation="reject", partition_no=1),  # failed
    Step(operation="fail to load", partition_no=1),
    Step(operation="execute", partition_no=1, action=Action.MARK_TERMINAL),
    Step(operation="insert pending", partition_no=2, clock_change=MOMENT),
    Step(operation="register", partition_no=3, clock_change=MOMENT),
    Step(operation="execute", partition_no=4, clock_change=MOMENT),
    Step(operation="register", partition_no=5, clock_change=MOMENT),
    Step(operation="accept", partition_no=5, clock_change=MOMENT),
    Step(operation="publish", partition_no=5, clock_change=MOMENT),
    Step(operation="begin demotion", partition_no=5, clock_change=MOMENT, validation_id="v2"),
    Step(operation="execute", partition_no=5, clock_change=MOMENT, action=Action.REPROCESS),
)
