"""Runs that meet, die or wake up late: who is left what, and what becomes of the partitions."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from ads_pipeline.domain.freshness import RAW as RAW_STATUS
from ads_pipeline.domain.freshness import AttemptOutcome
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.control.leases import Lease
from ads_pipeline.ledger.control.tables import leases
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.orchestration.partitions import define_partitions
from ads_pipeline.orchestration.resources import open_run_resources as rooms_for
from ads_pipeline.orchestration.run_completion import LEASE_EXPIRED, event_origin
from ads_pipeline.orchestration.run_requests import RequestedPartitions, run_requests
from ads_pipeline.pipeline.judging import Validation
from ads_pipeline.pipeline.registration import register_runs
from ads_pipeline_tests.ledger.control.test_late_writes import until
from ads_pipeline_tests.ledger.test_database_constraints import everything
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, Location, dagster_keys, open_location
from ads_pipeline_tests.orchestration.test_assets import refusal
from ads_pipeline_tests.orchestration.test_sensors import created, tick
from ads_pipeline_tests.pipeline.builders import (
    QUERY,
    key,
    seal_invalid_run,
    seal_run,
    table_version_count,
    visible_runs,
)


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> Iterator[Location]:
    with open_location(tmp_path / "home", spark) as opened:
        yield opened


@pytest.fixture
def other(location: Location) -> Iterator[Lease]:
    """The lease of a run that is at work elsewhere."""
    lease = Lease(location.deployment.ledger._engine, "elsewhere", duration=timedelta(hours=1))
    lease.open()
    yield lease
    lease.end()


@pytest.mark.invariant("O4")
def test_a_run_leaves_alone_what_another_is_at_work_on(
    location: Location, other: Lease, capfd: pytest.CaptureFixture[str]
) -> None:
    """The partition in the middle is held: it is neither sealed in the ledger nor judged nor loaded, the failure says
    who holds it and until when, and its neighbours are loaded. Once it is free the same run over it succeeds."""
    location.add_customers(1, 2, 3)
    for customer in (1, 2, 3):
        seal_run(location.deployment, key(customer))
    other.claim([key(2)])
    result = location.run([key(1), key(3)])
    assert not result.success
    assert location.materialized_and_failed(RAW) == (dagster_keys(key(1), key(3)), dagster_keys(key(2)))
    assert location.materialized_and_failed(WAREHOUSE) == (dagster_keys(key(1), key(3)), dagster_keys(key(2)))
    assert set(location.check_results()) == dagster_keys(key(1), key(3))
    assert visible_runs(location.deployment) == {key(1): "r1", key(3): "r1"}
    ledger = location.deployment.ledger
    assert (ledger.runs(key(2)), ledger.state(key(2)).attempt_count) == ([], 0)
    told = (
        f"run elsewhere holds it, at least until {ledger.lease_holders([key(2)])[key(2)].until:%Y-%m-%d %H:%M:%S} UTC"
    )
    assert told in refusal(result)
    logged = capfd.readouterr().err
    assert f"skipped 1 of 3 partitions because other runs hold them. First: {key(2)}, {told}" in logged
    assert "no sealed run" not in logged
    other.end()
    assert location.run([key(2)]).success
    assert visible_runs(location.deployment)[key(2)] == "r1"


@pytest.mark.invariant("O4")
def test_a_run_of_which_all_is_held_does_nothing(location: Location, other: Lease) -> None:
    """Nothing is granted: the run fails with the reason, and changes nothing of what is there."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    assert location.run([key(1)]).success
    seal_run(location.deployment, key(1), "r2")
    other.claim([key(1)])
    before = location.deployment.ledger.state(key(1))
    for assets in ([RAW, WAREHOUSE], [WAREHOUSE], [RAW]):
        result = location.run([key(1)], assets)
        assert result.success == (WAREHOUSE not in assets)
        assert location.deployment.ledger.state(key(1)) == before
    assert visible_runs(location.deployment) == {key(1): "r1"}


def test_reconciliation_leaves_alone_what_a_run_is_at_work_on(location: Location, other: Lease) -> None:
    """Of two differences the one that nobody is at work on is mended, under a claim of its own."""
    location.add_customers(1, 2)
    runs = [seal_run(location.deployment, key(1)), seal_run(location.deployment, key(2))]
    location.deployment.pipeline.validation.judge(runs)
    other.claim([key(2)])
    with rooms_for(location.settings, event_origin(created(location, key(1)))) as rooms:
        done = rooms.reconciliation(location.deployment.spark).repair(source=rooms.source_name, query_name=QUERY)
        assert [repair.key for repair in done.repairs] == [key(1)]
        holders = rooms.ledger.lease_holders([key(1), key(2)])
        assert (holders[key(1)].run_id, holders[key(2)].run_id) == (rooms.lease.run_id, "elsewhere")
    assert visible_runs(location.deployment) == {key(1): "r1"}


def vanish(location: Location, *keys: PartitionKey) -> dg.DagsterRun:
    """A run that Dagster takes to be at work, and that died with all who could have told before it had judged."""
    dead = created(location, *keys)
    started = dg.DagsterEvent(event_type_value=dg.DagsterEventType.RUN_START.value, job_name=dead.job_name)
    location.instance.report_dagster_event(started, dead.run_id)
    with rooms_for(location.settings, event_origin(dead)) as rooms:
        rooms.claim(keys)
        register_runs(rooms.source.collect(keys), raw=rooms.raw, ledger=rooms.ledger)
        _mislay(rooms.lease)
    return dead


def _mislay(lease: Lease) -> None:
    """Nothing ends it: as if the process were gone."""
    lease.end = lambda: None  # type: ignore[method-assign]


def expire(location: Location, run_id: str) -> None:
    """Let the lease have run out a moment ago, past the rule that leases are not shortened."""
    engine = location.deployment.ledger._engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER leases_move")
        connection.execute(
            sa.update(leases).where(leases.c.run_id == run_id).values(expires_at=sa.text("heartbeat_at"))
        )


@pytest.mark.invariant("O3", "P12")
@pytest.mark.parametrize("cancelling", [False, True])
def test_a_run_of_which_nothing_is_heard_is_ended(
    location: Location, capfd: pytest.CaptureFixture[str], cancelling: bool
) -> None:
    """Dagster calls it at work, and while its lease holds it is left alone. Then it is over in Dagster and in the
    log, its sealed run counts once as tried, and its partitions may be asked for again."""
    location.add_customers(1, 2)
    run = seal_run(location.deployment, key(1))
    dead = vanish(location, key(1), key(2))
    if cancelling:
        location.instance.report_run_canceling(dead)
    tick(location, "run_completion")
    assert [*location.deployment.ledger.lease_holders([key(1)])] == [key(1)]
    assert requested(location) == []
    expire(location, dead.run_id)
    tick(location, "run_completion")
    assert f"left 1 sealed runs without a verdict. First: {run.key}" in capfd.readouterr().err
    known = location.instance.get_run_by_id(dead.run_id)
    assert known is not None
    ended = (
        (dg.DagsterRunStatus.CANCELED, RunStatus.CANCELLED)
        if cancelling
        else (dg.DagsterRunStatus.FAILURE, RunStatus.FAILED)
    )
    with EventReader.opened(location.settings.database_url) as events:
        last = events.fetch(dead.run_id)[-1].event
        assert (known.status, events.get_current_snapshot(dead.run_id).status) == ended
        assert last.event_data == {"why": LEASE_EXPIRED}
        told = len(events.fetch(dead.run_id))
        tick(location, "run_completion")
        assert len(events.fetch(dead.run_id)) == told
    tried = location.deployment.ledger.partition_statuses(RAW_STATUS, [key(1)])[key(1)]
    assert tried is not None
    outcome = AttemptOutcome.CANCELLED if cancelling else AttemptOutcome.FAILED
    assert (tried.last_attempt_run_id, tried.last_attempt_outcome) == (run.run_id, outcome)
    assert location.deployment.ledger.state(key(1)).attempt_count == 0
    assert len(requested(location)) == 1
    assert location.run([key(1)]).success


def requested(location: Location) -> list[Any]:
    """What would be asked of Dagster now."""
    partitions = define_partitions(location.settings.google_apis.start_date)
    due = RequestedPartitions(query_name=QUERY, assets=(RAW, WAREHOUSE), reasons={key(1): "r1"})
    with_now = location.deployment.ledger._context.now
    with location.deployment.ledger._engine.begin() as connection:
        return run_requests(location.instance, partitions, due, now=with_now(connection))


@pytest.mark.invariant("O3")
def test_a_run_that_died_before_it_told_of_anything_is_ended_too(location: Location) -> None:
    """All there is of it is a lease that has expired: Dagster and the log are told of its end."""
    location.add_customers(1)
    dead = created(location, key(1))
    lease = Lease(location.deployment.ledger._engine, dead.run_id, duration=timedelta(0))
    lease.open()
    tick(location, "run_completion")
    known = location.instance.get_run_by_id(dead.run_id)
    assert known is not None
    assert known.status is dg.DagsterRunStatus.FAILURE
    with EventReader.opened(location.settings.database_url) as events:
        assert [each.event.event_type for each in events.fetch(dead.run_id)] == ["RunFailed"]


# A run worker that stops itself when it first comes to a verb of the ledger, and says how its steps failed.
WORKER = """
import os, signal, sys, warnings
import dagster as dg
from ads_pipeline.definitions import build_definitions
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.orchestration.run_requests import range_tags
from ads_pipeline.orchestration.partitions import asset_keys
from ads_pipeline.settings import read_settings

home, verb, query, partition = sys.argv[1:]
work = getattr(Ledger, verb)

def stop_first(ledger, *words, **how):
    setattr(Ledger, verb, work)
    os.kill(os.getpid(), signal.SIGSTOP)
    return work(ledger, *words, **how)

setattr(Ledger, verb, stop_first)
warnings.simplefilter("ignore")
variables = {"HOME": home, "SPARK": "local[2]", "LEASE_SECONDS": "8"}
settings = read_settings({f"ADS_PIPELINE_{name}": value for name, value in variables.items()})
with dg.DagsterInstance.from_config(home) as instance:
    result = build_definitions(settings).resolve_implicit_global_asset_job_def().execute_in_process(
        instance=instance,
        asset_selection=asset_keys([query]),
        tags=range_tags(query, partition, partition),
        raise_on_error=False,
    )
for event in result.all_events:
    if event.event_type is dg.DagsterEventType.STEP_FAILURE:
        print(event.step_failure_data.error.to_string())
"""


@pytest.mark.invariant("O3", "W2")
@pytest.mark.parametrize("verb", ["record_verdicts", "publishable_runs", "publish"])
def test_a_run_worker_that_wakes_up_late_changes_nothing(location: Location, verb: str) -> None:
    """It is stopped just before its verdict, before its last look ahead of the commit, or before readers are pointed
    at what it committed. Its run is ended, another one loads a newer run; then it goes on, is refused, and neither
    ledger nor table nor what readers see is touched."""
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    words = [str(location.deployment.home), verb, QUERY, key(1).dagster_key]
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert os.WIFSTOPPED(os.waitpid(worker.pid, os.WUNTRACED)[1])
        ledger = location.deployment.ledger
        run_id = ledger.lease_holders([key(1)])[key(1)].run_id
        until(lambda: True if not ledger.lease_holders([key(1)]) else None)
        tick(location, "run_completion")
        seal_run(location.deployment, key(1), "r2")
        assert location.run([key(1)]).success
        tick(location, "run_completion")
        before = everything(ledger._engine), table_version_count(location.deployment)
        worker.send_signal(signal.SIGCONT)
        refusals = worker.communicate()[0].decode()
    finally:
        worker.kill()
    assert "LeaseLost" in refusals
    assert f"{key(1)}: run {run_id} may not write of it: run " in refusals
    assert (everything(ledger._engine), table_version_count(location.deployment)) == before
    assert visible_runs(location.deployment) == {key(1): "r2"}
    known = location.instance.get_run_by_id(run_id)
    assert known is not None
    assert known.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.invariant("O5")
def test_a_run_that_is_cancelled_half_way_leaves_what_is_finished(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled between the verdicts of its first partitions and those of its last: the verdicts stand, one each,
    what was loaded before is served as before, nothing else changes, and everything is free for the next run."""
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
        raise KeyboardInterrupt  # which is what the signal makes of it

    with monkeypatch.context() as patch:
        patch.setattr(Validation, "record", cancelled_after_two)
        cancelled = location.instance.get_run_by_id(location.run([key(1), key(4)]).run_id)
    assert cancelled is not None
    assert cancelled.status is dg.DagsterRunStatus.CANCELED
    ledger = location.deployment.ledger
    before = ledger.states([key(n) for n in range(1, 5)])
    assert [(str(each.status), each.attempt_count) for each in before.values()] == [
        ("success", 1),
        ("failed", 1),
        ("pending", 0),
        ("success", 1),
    ]
    assert visible_runs(location.deployment) == {key(4): "r1"}
    assert ledger.lease_holders(before) == {}
    tick(location, "run_completion")
    assert ledger.states(before) == before
    location.run([key(1), key(4)])
    assert visible_runs(location.deployment) == {key(1): "r2", key(3): "r2", key(4): "r2"}
    assert [each.attempt_count for each in ledger.states(before).values()] == [1, 1, 1, 2]
