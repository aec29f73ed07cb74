"""Random histories of a ledger, told as plain steps: what is registered, judged, ordered, loaded; and the time."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.errors import LedgerError
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.builders import (
    FakeClock,
    acceptance,
    action_request,
    damaged_runs,
    key,
    publish_runs,
    rejection,
    run,
    sealed_runs,
)

PLACES = 2
ACTS = (
    Action.REQUEUE,
    Action.WITHDRAW,
    Action.ENQUEUE,
    Action.REPROCESS,
    Action.MARK_TERMINAL,
    Action.CLEAR_TERMINAL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happens: to which partition, with which run, and how far the clock jumps before it."""

    what: str
    place: int
    run: int
    jump: int
    validation: str = ""
    act: Action = Action.REQUEUE

    def take(self, ledger: Ledger, clock: FakeClock, number: int) -> None:
        """What cannot happen then is refused, and changes nothing."""
        clock.tick(timedelta(microseconds=self.jump))
        with suppress(LedgerError):
            VERBS[self.what](ledger, self, run(partition(self.place), f"r{self.run}"), number)


Verb = Callable[[Ledger, Step, Run, int], object]


def _reject(ledger: Ledger, step: Step, named: Run, _number: int) -> None:
    """As the pipeline does: what it takes from readers is hidden first."""
    verdict = rejection(named, validation_id=step.validation)
    ledger.begin_demotions([verdict])
    ledger.record_verdicts([verdict])


VERBS: Mapping[str, Verb] = {
    "land": lambda ledger, _step, named, _number: ledger.register(sealed_runs(named)),
    "land damaged": lambda ledger, _step, named, _number: ledger.register(damaged_runs(named)),
    "accept": lambda ledger, step, named, _number: ledger.record_verdicts([acceptance(named, step.validation)]),
    "reject": _reject,
    "find bad": lambda ledger, step, named, _number: ledger.begin_demotions(
        [rejection(named, validation_id=step.validation)]
    ),
    "act": lambda ledger, step, named, number: ledger.execute(step.act, [named.key], action_request(f"act-{number}")),
    "load": lambda ledger, _step, named, _number: publish_runs(ledger, named),
    "fail to load": lambda ledger, _step, named, _number: ledger.record_failed_loads({named: "no room"}),
    "ask for": lambda ledger, _step, named, _number: ledger.insert_pending([named.key]),
}
OFTEN = ("land", "accept", "act")
WHAT = (*OFTEN, *OFTEN, *VERBS)
steps = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(WHAT),
        place=st.integers(0, PLACES - 1),
        run=st.integers(1, 2),
        jump=st.sampled_from([-5_000_000, -1, 0, 0, 1, 1_000, 60_000_000]),
        validation=st.sampled_from(["", "", "v2"]),
        act=st.sampled_from(ACTS),
    ),
    min_size=10,
    max_size=60,
)


def partition(place: int) -> PartitionKey:
    return key(str(1 + place))


def apply_history(ledger: Ledger, clock: FakeClock, history: list[Step], *, apart: int = 0) -> None:
    """Take the steps; histories that are lived apart share neither partitions nor acts."""
    for number, step in enumerate(history):
        replace(step, place=step.place + apart * PLACES).take(ledger, clock, number + apart * 1_000)


# One of everything, in an order in which all of it can happen: the clock goes back before each act.
SCRIPTED_HISTORY = [
    Step(what=what, place=place, run=number, jump=jump, validation=validation, act=act)
    for what, place, number, jump, validation, act in (
        ("land", 0, 1, 0, "", Action.ENQUEUE),
        ("accept", 0, 1, 0, "", Action.ENQUEUE),
        ("accept", 0, 1, 0, "", Action.ENQUEUE),  # redelivered
        ("load", 0, 1, 0, "", Action.ENQUEUE),
        ("accept", 0, 1, 0, "v2", Action.ENQUEUE),  # confirmed
        ("land", 0, 2, 0, "", Action.ENQUEUE),
        ("reject", 0, 2, 0, "", Action.ENQUEUE),  # set aside
        ("act", 0, 1, -3_600_000_000, "", Action.REPROCESS),
        ("reject", 0, 1, 0, "v3", Action.ENQUEUE),  # demoted
        ("act", 0, 1, -3_600_000_000, "", Action.MARK_TERMINAL),
        ("act", 0, 1, 0, "", Action.CLEAR_TERMINAL),
        ("act", 0, 1, 0, "", Action.REQUEUE),
        ("accept", 0, 2, 0, "v4", Action.ENQUEUE),  # promoted by a new validation
        ("accept", 0, 1, 0, "v4", Action.ENQUEUE),  # superseded
        ("load", 0, 2, 0, "", Action.ENQUEUE),
        ("act", 0, 2, -3_600_000_000, "", Action.WITHDRAW),
        ("act", 1, 1, 0, "", Action.ENQUEUE),
        ("land damaged", 1, 1, 0, "", Action.ENQUEUE),
        ("reject", 1, 1, 0, "", Action.ENQUEUE),  # failed
        ("fail to load", 1, 1, 0, "", Action.ENQUEUE),
        ("act", 1, 1, 0, "", Action.MARK_TERMINAL),
        ("ask for", 2, 1, 5, "", Action.ENQUEUE),
        ("land", 3, 1, 5, "", Action.ENQUEUE),
        ("act", 4, 1, 5, "", Action.ENQUEUE),
        ("land", 5, 1, 5, "", Action.ENQUEUE),
        ("accept", 5, 1, 5, "", Action.ENQUEUE),
        ("load", 5, 1, 5, "", Action.ENQUEUE),
        ("find bad", 5, 1, 5, "v2", Action.ENQUEUE),
        ("act", 5, 1, 5, "", Action.REPROCESS),
    )
]
