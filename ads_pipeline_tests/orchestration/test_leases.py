"""Leases of concurrent, crashed and suspended runs, and what becomes of their partitions."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa

from ads_pipeline.domain.days.materialization_status import RAW as RAW_STATUS
from ads_pipeline.domain.days.materialization_status import AttemptOutcome
from ads_pipeline.domain.errors import LeaseLost
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.sql.ledger_tables import leases
from ads_pipeline.ledger.sql.row_mapping import database_clock
from ads_pipeline.ledger.write_steps.leases import Lease
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import define_partitions
from ads_pipeline.orchestration.runs.ended_runs import LEASE_EXPIRED, build_event_origin
from ads_pipeline.orchestration.sensors.run_requests import build_run_requests
from ads_pipeline.pipeline.validation import Validation
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.ledger.test_database_constraints import read_all_tables
from ads_pipeline_tests.orchestration.builders import (
    RAW,
    WAREHOUSE,
    Location,
    dagster_keys,
    open_resources,
    request_partitions,
)
from ads_pipeline_tests.orchestration.sensors.ticks import create_run, tick
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    key,
    seal_invalid_run,
    seal_run,
    table_version_count,
    visible_runs,
)


@pytest.fixture
def other(location: Location) -> Iterator[Lease]:
    """The lease of another active run."""
    lease = Lease(location.deployment.ledger.engine, "elsewhere", duration=timedelta(hours=1))
    lease.open()
    yield lease
    lease.end()


@pytest.mark.invariant("O4")
def test_run_skips_partitions_held_by_another_run(
    location: Location, other: Lease, capfd: pytest.CaptureFixture[str]
) -> None:
    """A held partition is neither registered nor judged nor loaded, and the log names its holder. After the other run
    ends, the same run loads it."""
    location.add_customers(1, 2, 3)
    for customer in (1, 2, 3):
        seal_run(location.deployment, key(customer))
    other.claim([key(2)])
    assert location.run([key(1), key(3)]).success
    assert location.materialized_and_failed(RAW) == (dagster_keys(key(1), key(3)), set())
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(3)), set())
    assert set(location.check_results()) == dagster_keys(key(1), key(3))
    assert visible_runs(location.deployment) == {key(1): "r1", key(3): "r1"}
    ledger = location.deployment.ledger
    assert (ledger.runs.registered(key(2)), ledger.states.get(key(2)).attempt_count) == ([], 0)
    expires_at = ledger.leases.holders([key(2)])[key(2)].expires_at
    message = f"run elsewhere holds it, at least until {expires_at:%Y-%m-%d %H:%M:%S} UTC"
    logged = capfd.readouterr().err
    assert f"skipped 1 of 3 partitions because other runs hold them. First: {key(2)}, {message}" in logged
    assert "no sealed run" not in logged
    other.end()
    assert location.run([key(2)]).success
    assert visible_runs(location.deployment)[key(2)] == "r1"


@pytest.mark.invariant("O4")
def test_run_without_granted_partitions_changes_nothing(location: Location, other: Lease) -> None:
    """Whichever assets it runs."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    seal_run(location.deployment, key(1), "r2")
    other.claim([key(1)])
    before = location.deployment.ledger.states.get(key(1))
    for assets in ([RAW, WAREHOUSE], [WAREHOUSE], [RAW]):
        assert location.run([key(1)], assets).success
        assert location.deployment.ledger.states.get(key(1)) == before
    assert visible_runs(location.deployment) == {key(1): "r1"}


def test_reconciliation_skips_partitions_held_by_a_run(location: Location, other: Lease) -> None:
    """It claims and repairs only the other partition."""
    location.add_customers(1, 2)
    runs = [seal_run(location.deployment, key(1)), seal_run(location.deployment, key(2))]
    location.deployment.pipeline.validation.judge(runs)
    other.claim([key(2)])
    with open_resources(location, build_event_origin(create_run(location, key(1)))) as resources:
        reconciliation, now = resources.reconciliation(lambda: location.deployment.spark), datetime.now(UTC)
        (result,) = reconciliation.repair(resources.source_name, QUERY, now=now)
        assert [repair.key for repair in result.repairs] == [key(1)]
        holders = resources.ledger.leases.holders([key(1), key(2)])
        assert (holders[key(1)].engine_run_id, holders[key(2)].engine_run_id) == (
            resources.lease.engine_run_id,
            "elsewhere",
        )
    assert visible_runs(location.deployment) == {key(1): "r1"}


def lose_run(location: Location, *keys: PartitionKey) -> dg.DagsterRun:
    """Start a run in Dagster and abandon it with its lease, after it registered its runs."""
    lost = create_run(location, *keys)
    started = dg.DagsterEvent(event_type_value=dg.DagsterEventType.RUN_START.value, job_name=lost.job_name)
    location.instance.report_dagster_event(started, lost.run_id)
    with open_resources(location, build_event_origin(lost)) as resources:
        resources.claim(keys)
        resources.seals.register(resources.source.land(keys).runs)
        _abandon(resources.lease)
    return lost


def _abandon(lease: Lease) -> None:
    """Keep the lease open, as if the process were gone."""
    lease.end = lambda: None  # type: ignore[method-assign]


def expire(location: Location, run_id: str) -> None:
    """Let the lease expire now. The trigger that forbids shorter leases is dropped."""
    engine = location.deployment.ledger.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER leases_invalid_update")
        connection.execute(
            sa.update(leases).where(leases.c.engine_run_id == run_id).values(expires_at=sa.text("heartbeat_at"))
        )


@pytest.mark.invariant("O3", "P12")
@pytest.mark.parametrize("cancelling", [False, True])
def test_run_with_expired_lease_is_closed(
    location: Location, capfd: pytest.CaptureFixture[str], cancelling: bool
) -> None:
    """While the lease is valid the run stays open. Then it is closed in Dagster and in the event log, its sealed run
    counts as one attempt without a verdict, and its partitions can be requested again."""
    location.add_customers(1, 2)
    run = seal_run(location.deployment, key(1))
    lost = lose_run(location, key(1), key(2))
    if cancelling:
        location.instance.report_run_canceling(lost)
    tick(location, "run_completion")
    assert [*location.deployment.ledger.leases.holders([key(1)])] == [key(1)]
    assert requested(location) == []
    expire(location, lost.run_id)
    tick(location, "run_completion")
    assert f"left 1 sealed runs without a verdict. First: {run.key}" in capfd.readouterr().err
    known = location.instance.get_run_by_id(lost.run_id)
    assert known is not None
    expected = (
        (dg.DagsterRunStatus.CANCELED, RunStatus.CANCELLED)
        if cancelling
        else (dg.DagsterRunStatus.FAILURE, RunStatus.FAILED)
    )
    with open_part(EventReader, location.settings.database_url) as events:
        last = events.fetch(lost.run_id)[-1].event
        assert (known.status, events.get_current_snapshot(lost.run_id).status) == expected
        assert last.event_data == {"why": LEASE_EXPIRED}
        event_count = len(events.fetch(lost.run_id))
        tick(location, "run_completion")
        assert len(events.fetch(lost.run_id)) == event_count
    status = location.deployment.ledger.statuses.get_many(RAW_STATUS, [key(1)])[key(1)]
    assert status is not None
    outcome = AttemptOutcome.CANCELLED if cancelling else AttemptOutcome.FAILED
    assert (status.last_attempt_run_id, status.last_attempt_outcome) == (run.run_id, outcome)
    assert location.deployment.ledger.states.get(key(1)).attempt_count == 0
    assert len(requested(location)) == 1
    assert location.run([key(1)]).success


def requested(location: Location) -> list[Any]:
    """Return the run requests that a sensor would make now."""
    partitions = define_partitions(Names(), location.settings.google_apis.start_date)
    due = request_partitions({key(1): "r1"})
    with location.deployment.ledger.engine.begin() as connection:
        now = connection.execute(sa.select(database_clock(connection.dialect.name))).scalar_one()
    return build_run_requests(location.instance, partitions, due, now=now)


@pytest.mark.invariant("O3")
def test_lost_run_without_events_is_closed(location: Location) -> None:
    """An expired lease is enough to close a run in Dagster and in the event log."""
    location.add_customers(1)
    lost = create_run(location, key(1))
    lease = Lease(location.deployment.ledger.engine, lost.run_id, duration=timedelta(0))
    lease.open()
    tick(location, "run_completion")
    known = location.instance.get_run_by_id(lost.run_id)
    assert known is not None
    assert known.status is dg.DagsterRunStatus.FAILURE
    with open_part(EventReader, location.settings.database_url) as events:
        assert [each.event.event_type for each in events.fetch(lost.run_id)] == ["RunFailed"]


@pytest.mark.invariant("O3")
def test_later_step_of_a_run_with_expired_lease_is_refused(location: Location) -> None:
    """It does not rely on the claims of the earlier step. A partition that another run holds is asked for again."""
    location.add_customers(1)
    run = create_run(location, key(1))
    with open_resources(location, build_event_origin(run)) as resources:
        other = Lease(resources.ledger.engine, "elsewhere", duration=timedelta(hours=1))
        other.open()
        other.claim([key(2)])
        assert [*resources.claim([key(1), key(2)]).granted] == [key(1)]
        other.end()
        assert [*resources.claim([key(1), key(2)]).granted] == [key(1), key(2)]
        expire(location, run.run_id)
        with pytest.raises(LeaseLost):
            resources.claim([key(1), key(2)])


# A process that executes one run per line of input. The run suspends the process at its first call of a ledger
# method. Then the process prints how the steps failed, and "end". Spark starts once, because that takes long.
# While the process is suspended, no thread of it is inside a transaction: SQLite's only write lock would be held.
WORKER = """
import os, signal, sys, threading, warnings
import dagster as dg
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.state.load_recorder import Loads
from ads_pipeline.ledger.state.verdicts import Verdicts
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.runs.run_tags import range_tags
from ads_pipeline.settings.environment import read_settings

transact, transacting = database.transact, threading.RLock()

def transact_alone(*args, **kwargs):
    with transacting:
        return transact(*args, **kwargs)

def stop_at_first_call(kind, method):
    original = getattr(kind, method)

    def stop_first(ledger, *args, **kwargs):
        setattr(kind, method, original)
        with transacting:
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(ledger, *args, **kwargs)

    setattr(kind, method, stop_first)

database.transact = transact_alone
warnings.simplefilter("ignore")
for line in sys.stdin:
    home, method, query, partition = line.split()
    os.environ["ADS_PIPELINE_HOME"] = home
    stop_at_first_call(Verdicts if method == "record" else Loads, method)
    settings = read_settings({"ADS_PIPELINE_HOME": home, "ADS_PIPELINE_SPARK": "local[2]"})
    with dg.DagsterInstance.from_config(home) as instance:
        result = build_location(settings).resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance,
            asset_selection=Names().assets([query]),
            tags=range_tags(Names(), [query], partition, partition, why="test"),
            raise_on_error=False,
        )
    for event in result.all_events:
        if event.event_type is dg.DagsterEventType.STEP_FAILURE:
            print(event.step_failure_data.error.to_string())
    print("end", flush=True)
"""


@pytest.fixture(scope="module")
def worker() -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.invariant("O3", "W2")
@pytest.mark.parametrize("method", ["record", "publishable_runs", "publish"])
def test_suspended_worker_with_lost_lease_changes_nothing(
    location: Location, worker: "subprocess.Popen[str]", method: str
) -> None:
    """The worker is suspended before it records, commits or publishes. Its run is closed and another run loads newer
    data. After the worker resumes, the ledger refuses its writes: ledger, table and visible rows stay the same."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    print(location.deployment.home, method, QUERY, key(1).dagster_key, file=worker.stdin, flush=True)
    assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
    ledger = location.deployment.ledger
    run_id = ledger.leases.holders([key(1)])[key(1)].engine_run_id
    expire(location, run_id)
    tick(location, "run_completion")
    seal_run(location.deployment, key(1), "r2")
    assert location.run([key(1)]).success
    tick(location, "run_completion")
    before = read_all_tables(ledger.engine), table_version_count(location.deployment)
    worker.send_signal(signal.SIGCONT)
    refusals = "".join(iter(worker.stdout.readline, "end\n"))
    assert "LeaseLost" in refusals
    assert f"{key(1)}: run {run_id} may not write to it: run " in refusals
    assert (read_all_tables(ledger.engine), table_version_count(location.deployment)) == before
    assert visible_runs(location.deployment) == {key(1): "r2"}
    known = location.instance.get_run_by_id(run_id)
    assert known is not None
    assert known.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.invariant("O5")
def test_cancelled_run_keeps_its_recorded_verdicts(location: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verdicts recorded before the cancellation remain, visible rows do not change, and all leases are released."""
    location.add_customers(1, 2, 3, 4)
    seal_run(location.deployment, key(4))
    assert location.run([key(4)]).success
    for customer in (1, 3, 4):
        seal_run(location.deployment, key(customer), "r2")
    seal_invalid_run(location.deployment, key(2), "r2")
    record = Validation.record

    def cancelled_after_two(self: Validation, verdicts: Any) -> Any:
        some = [each for each in verdicts if each.run.key in (key(1), key(2))]
        record(self, some)
        (running,) = location.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
        location.instance.report_run_canceling(running)
        raise KeyboardInterrupt  # as Dagster raises for the signal

    with monkeypatch.context() as patch:
        patch.setattr(Validation, "record", cancelled_after_two)
        cancelled = location.instance.get_run_by_id(location.run([key(1), key(4)]).run_id)
    assert cancelled is not None
    assert cancelled.status is dg.DagsterRunStatus.CANCELED
    ledger = location.deployment.ledger
    before = ledger.states.get_many([key(n) for n in range(1, 5)])
    assert [(str(each.status), each.attempt_count) for each in before.values()] == [
        ("success", 1),
        ("failed", 1),
        ("pending", 0),
        ("success", 1),
    ]
    assert visible_runs(location.deployment) == {key(4): "r1"}
    assert ledger.leases.holders(before) == {}
    tick(location, "run_completion")
    assert ledger.states.get_many(before) == before
    location.run([key(1), key(4)])
    assert visible_runs(location.deployment) == {key(1): "r2", key(3): "r2", key(4): "r2"}
    assert [each.attempt_count for each in ledger.states.get_many(before).values()] == [1, 1, 1, 2]
