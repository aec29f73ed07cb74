"""What the ledger tells of its own changes: each once, under its origin's run, and committed with the change."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.freshness import RAW, WAREHOUSE, AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin, LoggedEvent
from ads_pipeline.domain.run_snapshots import RunStatus, StepStatus
from ads_pipeline.domain.transitions import Action
from ads_pipeline.errors import LedgerRefused, RunChanged, VerdictsRefused
from ads_pipeline.ledger.events.event_log import PLAN_VERSION, EventLog
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import ActionResult, Publication
from ads_pipeline_tests.ledger.builders import (
    ROWS,
    FakeClock,
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    registered_runs,
    rejection,
    run,
    sealed_runs,
)
from ads_pipeline_tests.ledger.events.builders import stored_steps
from ads_pipeline_tests.ledger.state.test_crashes import lose_one_commit
from ads_pipeline_tests.ledger.test_database_constraints import everything

K: Final = key()
R1: Final = run(K, "r1")
ORIGIN: Final = EventOrigin(
    run_id="dagster-run-1",
    plan_version="plan-1",
    engine_attempt_id=2,
    adapter_version="dagster-1",
    engine_run_ref={"job": "daily"},
)


def told(ledger: Ledger, *, after: int = 0) -> list[LoggedEvent]:
    return EventReader(ledger._engine).fetch(ledger.origin.run_id, after_seq=after)


def heard(ledger: Ledger, *, after: int = 0) -> list[tuple[str, str, int | None]]:
    """Type, step and attempt of what was told since a place, of which the step is always one."""
    return [
        (each.event.event_type, str(each.event.step_id), each.event.logical_attempt_id)
        for each in told(ledger, after=after)
    ]


def silent(ledger: Ledger, act: Callable[[], object]) -> None:
    """The act tells nothing, in whatever run."""
    before = everything(ledger._engine)
    act()
    after = everything(ledger._engine)
    assert [after[table] for table in ("run_events", "run_head")] == [
        before[table] for table in ("run_events", "run_head")
    ]


# Each verb.


def test_sealed_runs_are_told_by_their_ordinal(ledger: Ledger) -> None:
    """Each run that is registered is told once; those that are known, or refused, are not."""
    first, second, other = run(K, "r1"), run(K, "r2"), run(key("2"), "r1")
    ledger.register(sealed_runs(first, other))
    ledger.register(sealed_runs(first, second, second, other))
    assert heard(ledger) == [
        ("RawSealed", str(K), 1),
        ("RawSealed", str(key("2")), 1),
        ("RawSealed", str(K), 2),
    ]
    assert told(ledger)[2].event.event_data == {"run_id": "r2", "schema_version": "1", "record_count": ROWS}

    def change() -> None:
        with pytest.raises(RunChanged):
            ledger.register(sealed_runs(run(K, "r3"), first, schema_version="9"))

    silent(ledger, change)
    silent(ledger, lambda: ledger.register(sealed_runs(first, other)))
    silent(ledger, lambda: ledger.insert_pending([key("3")]))


def test_verdicts_are_told_by_their_attempt(url: str, ledger: Ledger) -> None:
    """Each recorded verdict is told with its effect; heard again, by whomever, it is not."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    verdicts = [acceptance(first), rejection(second, "torn"), acceptance(first, "v2")]
    ledger.record_verdicts(verdicts)
    assert heard(ledger, after=2) == [
        ("VerdictAccepted", str(K), 1),
        ("VerdictRejected", str(K), 2),
        ("VerdictAccepted", str(K), 3),
    ]
    assert [each.event.event_data["effect"] for each in told(ledger, after=2)] == [
        "promoted",
        "set_aside",
        "confirmed",
    ]
    assert told(ledger)[3].event.event_data == {
        "run_id": "r2",
        "effect": "set_aside",
        "rows_read": ROWS,
        "rows_failed": 1,
        "error_class": "row_contract",
        "error_message": "torn",
    }
    silent(ledger, lambda: ledger.record_verdicts(verdicts))
    with Ledger.opened(url, origin=ORIGIN) as another:
        silent(another, lambda: another.record_verdicts(verdicts[::-1]))


def test_of_verdicts_that_are_refused_nothing_is_told(ledger: Ledger) -> None:
    """Beside one that cannot stand, the others are recorded and told."""
    (first,) = registered_runs(ledger, K, "r1")
    with pytest.raises(VerdictsRefused):
        ledger.record_verdicts([acceptance(run(key("9"), "unknown")), acceptance(first), rejection(first)])
    assert heard(ledger, after=1) == [("VerdictAccepted", str(K), 1)]


def test_a_demotion_is_told_when_it_begins_and_when_it_is_recorded(ledger: Ledger) -> None:
    """Begun again, within a call or later, it is not told again; each by the attempt that it is going to be."""
    accepted_runs(ledger, [K])
    verdict = rejection(R1, validation_id="v2")
    ledger.begin_demotions([verdict, verdict])
    silent(ledger, lambda: ledger.begin_demotions([verdict]))
    ledger.record_verdict(verdict)
    silent(ledger, lambda: ledger.begin_demotions([verdict]))
    assert heard(ledger, after=2) == [("DemotionBegun", str(K), 2), ("VerdictRejected", str(K), 2)]
    assert told(ledger)[2].event.event_data == {"run_id": "r1", "error_message": "r1 is bad"}


def test_loads_are_told_by_their_number(ledger: Ledger) -> None:
    """Every load that failed is told, and the one that succeeded once; published again, or too late, it is not."""
    accepted_runs(ledger, [K, key("2")])
    other = run(key("2"), "r1")
    ledger.record_failed_loads({R1: "disk\nfull", other: "disk full"})
    ledger.record_failed_loads({R1: "disk full"})
    assert ledger.publish([Publication(run=R1, table_version=7)]).published == (R1,)
    assert heard(ledger, after=4) == [
        ("LoadFailed", str(K), 1),
        ("LoadFailed", str(key("2")), 1),
        ("LoadFailed", str(K), 2),
        ("PartitionLoaded", str(K), 3),
    ]
    events = [each.event.event_data for each in told(ledger, after=4)]
    assert events[0] == {"run_id": "r1", "error_message": r"disk\nfull"}
    assert events[3] == {"run_id": "r1", "schema_version": "1", "record_count": ROWS, "table_version": 7}
    silent(ledger, lambda: ledger.publish([Publication(run=R1, table_version=8)]))
    silent(ledger, lambda: ledger.publish([Publication(run=run(K, "unknown"), table_version=8)]))
    silent(ledger, lambda: ledger.record_failed_loads({}))


@pytest.mark.parametrize(
    ("act", "event_type"),
    [
        (Action.ENQUEUE, "PartitionEnqueued"),
        (Action.REQUEUE, "PartitionRequeued"),
        (Action.WITHDRAW, "PartitionWithdrawn"),
        (Action.REPROCESS, "ReprocessRequested"),
    ],
    ids=str,
)
def test_acts_are_told_of_each_partition_they_changed(ledger: Ledger, act: Action, event_type: str) -> None:
    """With who and why, caused by the act, by the attempt that it asks for; sent again it is not told again."""
    accepted_runs(ledger, [key("1")])
    (failed,) = registered_runs(ledger, key("2"), "r1")
    ledger.record_verdict(rejection(failed))
    before = len(told(ledger))
    partitions = [key("1"), key("2"), key("3")]
    acted = ledger.execute(act, partitions, action_request("act-7", reason="wrong\taccount"))
    assert acted.changed
    assert heard(ledger, after=before) == [
        (event_type, str(state.key), state.attempt_count + 1) for state in acted.changed
    ]
    for each in told(ledger, after=before):
        assert each.event.caused_by_signal_id == "act-7"
        assert each.event.event_data == {"operator": "ada", "reason": r"wrong\taccount"}
    silent(ledger, lambda: ledger.execute(act, partitions, action_request("act-7")))
    silent(ledger, lambda: ledger.execute(act, partitions, action_request("act-8")))


def test_a_request_that_is_open_is_not_told_again(ledger: Ledger) -> None:
    """Asking twice for a success to be made again is one request, until a verdict answers it."""
    accepted_runs(ledger, [K])
    ledger.execute(Action.REPROCESS, [K], action_request("act-1"))
    silent(ledger, lambda: ledger.execute(Action.REPROCESS, [K], action_request("act-2")))
    (bad,) = registered_runs(ledger, K, "r2")
    ledger.record_verdict(rejection(bad))
    assert ledger.execute(Action.REPROCESS, [K], action_request("act-3")).changed


# All of them.


def live_through_everything(ledger: Ledger) -> list[str]:
    """Makes every change that is told, of one partition and another; the types in their order."""
    registered_runs(ledger, K, "r1")
    ledger.record_verdict(acceptance(R1))
    ledger.record_failed_loads({R1: "x" * 3_000})
    ledger.publish([Publication(run=R1, table_version=0)])
    ledger.begin_demotions([rejection(R1, "ungültig", validation_id="v2")])
    ledger.record_verdict(rejection(R1, "ungültig", validation_id="v2"))
    ledger.execute(Action.REQUEUE, [K], action_request("act-1"))
    ledger.execute(Action.ENQUEUE, [key("2")], action_request("act-2"))
    ledger.record_verdict(acceptance(R1, "v3"))
    ledger.execute(Action.WITHDRAW, [K], action_request("act-3"))
    return [
        "RawSealed",
        "VerdictAccepted",
        "LoadFailed",
        "PartitionLoaded",
        "DemotionBegun",
        "VerdictRejected",
        "PartitionRequeued",
        "PartitionEnqueued",
        "VerdictAccepted",
        "PartitionWithdrawn",
    ]


@pytest.mark.invariant("E16", "E18")
def test_what_the_ledger_tells_are_events_like_any_others(url: str, backdoor: sa.Engine) -> None:
    """Under the origin's run, plan and engine, keyed by the five parts, with the one text for each payload."""
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        types = live_through_everything(ledger)
        logged = told(ledger)
    assert [each.event.event_type for each in logged] == types
    assert [each.run_seq for each in logged] == list(range(1, len(types) + 1))
    texts = {row.run_seq: (row.event_data, row.engine_run_ref) for row in everything(backdoor)["run_events"]}
    for each in logged:
        event = each.event
        assert (event.run_id, event.plan_version, event.engine_attempt_id) == ("dagster-run-1", "plan-1", 2)
        assert (event.adapter_version, event.engine_run_ref) == ("dagster-1", {"job": "daily"})
        assert event.step_id in {str(K), str(key("2"))}
        assert each.idempotency_key == event.idempotency_key
        assert texts[each.run_seq] == (event.payload, event.engine_run_json)


def test_a_snapshot_of_the_ledgers_run_tells_how_far_its_partitions_are(url: str) -> None:
    """Each partition is a step, whose status is what last came of it, and no event of the ledger is inconsistent."""
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        live_through_everything(ledger)
        accepted_runs(ledger, [key("3")])
        registered_runs(ledger, key("4"), "r1")
    with EventLog.opened(url) as log:
        Follower(log).catch_up()
        snapshot = log.get_snapshot(ORIGIN.run_id)
        assert snapshot == log.project_snapshot(ORIGIN.run_id)
        assert (snapshot.status, snapshot.inconsistencies) == (RunStatus.RUNNING, 0)
        assert stored_steps(log, ORIGIN.run_id) == {
            str(K): StepStatus.SUCCEEDED,
            str(key("3")): StepStatus.SUCCEEDED,
            str(key("4")): StepStatus.RUNNING,
        }


def test_events_are_dated_with_their_change(timed_ledger: Ledger, clock: FakeClock) -> None:
    """The ledger's clock dates both, and what it emitted is when the verdict was recorded."""
    (first,) = registered_runs(timed_ledger, K, "r1")
    clock.tick()
    timed_ledger.record_verdict(acceptance(first))
    (event,) = told(timed_ledger, after=1)
    judged_at = timed_ledger.attempts(K)[0].judged_at
    assert event.persisted_at == judged_at == clock.now
    assert event.event.emitted_at == "2026-03-01T00:00:01.000000Z"


def test_a_change_that_cannot_be_told_does_not_happen(url: str, backdoor: sa.Engine) -> None:
    """Where the origin's run follows another plan, or was retired, the log refuses, and every verb with it."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [K])
        registered_runs(ledger, K, "r2")
    with EventLog.opened(url) as log:
        log.append(EventOrigin(run_id="other-plan", plan_version="p1").make_event("RunStarted", at=FakeClock()()))
        log.append(EventOrigin(run_id="retired", plan_version="p2").make_event("RunFailed", at=FakeClock()()))
        Follower(log).catch_up()
        log.retire("retired")
    before = everything(backdoor)
    for run_id in ("other-plan", "retired"):
        with Ledger.opened(url, origin=EventOrigin(run_id=run_id, plan_version="p2")) as ledger:
            for change in (
                lambda ledger: ledger.register(sealed_runs(run(K, "r3"))),
                lambda ledger: ledger.record_verdict(acceptance(run(K, "r2"))),
                lambda ledger: ledger.begin_demotions([rejection(R1, validation_id="v2")]),
                lambda ledger: ledger.publish([Publication(run=R1, table_version=0)]),
                lambda ledger: ledger.record_failed_loads({R1: "disk full"}),
                lambda ledger: ledger.carry_out(Action.WITHDRAW, [K], action_request()),
            ):
                with pytest.raises(LedgerRefused):
                    change(ledger)  # type: ignore[no-untyped-call]
    assert everything(backdoor) == before


@pytest.mark.invariant("E4")
def test_a_change_whose_answer_was_lost_is_told_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit took place but its answer was lost: each verb is tried again by itself, and tells nothing more."""
    for number, act in enumerate(ACTS.values()):
        act.prepare(ledger)
        before = len(told(ledger))
        with monkeypatch.context() as patch:
            losses = lose_one_commit(ledger._engine, patch)
            act.carry_out(ledger)
        assert losses == ["lost"], number
        assert len(told(ledger)) == before + len(PARTITIONS)
    check_agreement(ledger._engine)


# The run of a ledger that was opened for nobody's.


def test_a_ledger_of_its_own_run_ends_it(url: str) -> None:
    """Without an origin, what was told belongs to a run of its own, which is complete when the block ends."""
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [K])
        run_id = ledger.origin.run_id
    with Ledger.opened(url) as other:
        assert other.origin.run_id != run_id
    with EventReader.opened(url) as reader:
        assert [each.event.event_type for each in reader.fetch(run_id)] == [
            "RawSealed",
            "VerdictAccepted",
            "RunCompleted",
        ]
        assert {each.event.plan_version for each in reader.fetch(run_id)} == {PLAN_VERSION}
        assert reader.project_snapshot(run_id).status is RunStatus.COMPLETED
        assert [head.run_id for head, _snapshot in reader.list_newest_runs()] == [run_id]


def test_a_block_that_raises_fails_its_run(url: str) -> None:
    """What was told before stands, the run has failed, and the block's own failure is what is raised."""
    opened: list[Ledger] = []

    def fail() -> None:
        with Ledger.opened(url) as ledger:
            opened.append(ledger)
            accepted_runs(ledger, [K])
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail()
    with EventReader.opened(url) as reader:
        snapshot = reader.project_snapshot(opened[0].origin.run_id)
    assert (snapshot.status, snapshot.last_event_seq) == (RunStatus.FAILED, 3)


def test_where_nothing_was_done_nothing_is_told(url: str, backdoor: sa.Engine) -> None:
    """A block that only read, or did what was done already, leaves no run, whether it ends or raises."""
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        accepted_runs(ledger, [K])
    before = everything(backdoor)

    def fail() -> None:
        with Ledger.opened(url) as ledger:
            accepted_runs(ledger, [K])
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    with Ledger.opened(url) as ledger:
        assert ledger.state(K).attempt_count == 1
        accepted_runs(ledger, [K])
    assert everything(backdoor) == before


def test_a_run_of_somebody_else_is_not_ended(url: str) -> None:
    """With an origin given, whoever started that run ends it, also when the block raises."""

    def fail() -> None:
        with Ledger.opened(url, origin=ORIGIN) as ledger:
            accepted_runs(ledger, [K])
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        accepted_runs(ledger, [key("2")])
        assert [each.event.event_type for each in told(ledger)] == ["RawSealed", "VerdictAccepted"] * 2


# Dying on the way.

PARTITIONS: Final = keys(3)
RUNS: Final = tuple(run(partition, "r1") for partition in PARTITIONS)


class Telling:
    """A change of all partitions that is told of each of them, and what must be there before it."""

    def __init__(self, prepare: Callable[[Ledger], object], carry_out: Callable[[Ledger], object]) -> None:
        self.prepare, self.carry_out = prepare, carry_out


def _accept_all(ledger: Ledger) -> object:
    return ledger.record_verdicts([acceptance(each) for each in RUNS])


def _withdraw(ledger: Ledger) -> ActionResult:
    return ledger.execute(Action.WITHDRAW, PARTITIONS, action_request("act-1"))


def _publish(ledger: Ledger) -> object:
    return ledger.publish([Publication(run=each, table_version=3) for each in RUNS])


ACTS: Final[Mapping[str, Telling]] = {
    "record_verdicts": Telling(lambda ledger: ledger.register(sealed_runs(*RUNS)), _accept_all),
    "publish": Telling(lambda ledger: accepted_runs(ledger, PARTITIONS), _publish),
    "execute": Telling(lambda ledger: (accepted_runs(ledger, PARTITIONS), _publish(ledger)), _withdraw),
}

# Does it, and kills itself at the n-th moment: before each statement, before the commit, and at the end.
DYING = """
import os, signal, sys
import sqlalchemy as sa
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline_tests.ledger.events.test_ledger_events import ACTS, ORIGIN

url, act, moments = sys.argv[1], sys.argv[2], int(sys.argv[3])
def moment(*_):
    global moments
    moments -= 1
    if moments == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with Ledger.opened(url, origin=ORIGIN) as ledger:
    for name in ("before_cursor_execute", "commit"):
        sa.event.listen(ledger._engine, name, moment)
    ACTS[act].carry_out(ledger)
    print("acknowledged", flush=True)
    moment()
"""


@pytest.mark.invariant("S21")
@pytest.mark.parametrize("act", ACTS)
def test_a_crash_leaves_change_and_events_or_neither(url: str, backdoor: sa.Engine, act: str) -> None:
    """Killed at any moment, events, states, attempts, statuses and finishes agree: all of the call, or none of it."""
    with Ledger.opened(url) as ledger:
        ACTS[act].prepare(ledger)
    untouched, moment = everything(backdoor), 0
    while True:
        moment += 1
        died, acknowledged = _die_at(url, act, moment)
        found = everything(backdoor)
        if found != untouched:
            break
        assert died
        assert not acknowledged
    assert moment >= 4, "the call was hardly interrupted"
    assert died, "the last moment is the one after the commit"
    check_agreement(backdoor)
    with Ledger.opened(url, origin=ORIGIN) as ledger:
        assert len(told(ledger)) == len(PARTITIONS)
        ACTS[act].carry_out(ledger)
    assert everything(backdoor) == found


def _die_at(url: str, act: str, moment: int) -> tuple[bool, bool]:
    child = subprocess.run(
        [sys.executable, "-c", DYING, url, act, str(moment)], capture_output=True, text=True, check=False, timeout=60
    )
    assert child.returncode in (0, -9), child.stderr
    return child.returncode == -9, "acknowledged" in child.stdout


def check_agreement(engine: sa.Engine) -> None:
    """What was told is what the other tables hold: no more, no less."""
    tables = everything(engine)

    def events(*types: str) -> list[tuple[str, int]]:
        rows = [row for row in tables["run_events"] if row.event_type in types]
        return sorted((row.step_id, row.logical_attempt_id) for row in rows)

    def rows(table: str) -> list[tuple[str, Any]]:
        return [(str(_key_of(row)), row) for row in tables[table]]

    assert events("RawSealed") == sorted((step, row.ordinal) for step, row in rows("runs"))
    attempts = sorted((step, row.attempt_no) for step, row in rows("attempts"))
    assert events("VerdictAccepted", "VerdictRejected") == attempts
    assert {step: row.attempt_count for step, row in rows("partition_state")} == dict(attempts)
    finishes = [step for step, row in rows("finished_attempts") if row.asset == WAREHOUSE]
    assert [step for step, _number in events("PartitionLoaded", "LoadFailed")] == sorted(finishes)
    assert len(tables["load_records"]) == len(events("PartitionLoaded"))
    acted = [step for step, _row in rows("control_action_partitions")]
    assert [step for step, _number in events("PartitionWithdrawn", "PartitionRequeued")] == sorted(acted)
    heads = {row.run_id: row.last_seq for row in tables["run_head"]}
    assert heads == {run_id: len([row for row in tables["run_events"] if row.run_id == run_id]) for run_id in heads}
    ledger = Ledger(engine)
    for asset, known in ((RAW, {step for step, _row in rows("attempts")}), (WAREHOUSE, set(finishes))):
        for partition, status in ledger.partition_statuses(asset, PARTITIONS).items():
            assert (status is not None) == (str(partition) in known)
            assert status is None or status.last_attempt_outcome is AttemptOutcome.SUCCEEDED


def _key_of(row: Any) -> PartitionKey:
    return PartitionKey(
        source=row.source, customer_id=row.customer_id, query_name=row.query_name, logical_date=row.logical_date
    )
