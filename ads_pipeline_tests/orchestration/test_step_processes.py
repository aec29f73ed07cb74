"""Runs whose steps are processes of their own: their lease, their claims, and what a killed process leaves."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core import events as dagster_events
from dagster._utils.env import environ
from pyspark.sql import SparkSession

from ads_pipeline.domain.errors import LeaseLost
from ads_pipeline.domain.fetching.fetch_results import FailedFetch, SkippedFetch
from ads_pipeline.domain.partition import Run
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.ledger.sql.ledger_tables import leases
from ads_pipeline.orchestration.runs.ended_runs import STEP_WAITED, build_event_origin, close_if_ended
from ads_pipeline.orchestration.runs.run_tags import range_tags
from ads_pipeline.orchestration.runs.step_processes import find_wait, has_step_processes
from ads_pipeline_tests.ledger.builders import open_part
from ads_pipeline_tests.orchestration.builders import Location, open_location, open_resources
from ads_pipeline_tests.orchestration.sensors.ticks import create_run, tick
from ads_pipeline_tests.orchestration.step_process_job import STOP, build_job
from ads_pipeline_tests.orchestration.test_leases import expire
from ads_pipeline_tests.pipeline.builders import FACTS, QUERY, key, seal_run, visible_runs
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.spark.servers import connect_server

OTHER_QUERY = "ad_group_daily"
STEP_WAIT = timedelta(minutes=10)
RAW_STEP, VALID_STEP, WAREHOUSE_STEP = (
    "raw__campaign_daily",
    "raw__campaign_daily_valid",
    "warehouse__campaign_daily",
)
STEPS = {RAW_STEP, VALID_STEP, WAREHOUSE_STEP}
EVENTS: Any = dagster_events
EVENT_DATA = {
    dg.DagsterEventType.STEP_WORKER_STARTED: EVENTS.EngineEventData(),
    dg.DagsterEventType.STEP_SUCCESS: EVENTS.StepSuccessData(duration_ms=1.0),
    dg.DagsterEventType.STEP_START: None,
    dg.DagsterEventType.STEP_FAILURE: EVENTS.StepFailureData(error=None, user_failure_data=None),
}


def report_step(location: Location, run: dg.DagsterRun, kind: dg.DagsterEventType, step: str) -> None:
    """Store what Dagster stores of a step that is a process of its own."""
    event = dg.DagsterEvent(
        event_type_value=kind.value, job_name=run.job_name, step_key=step, event_specific_data=EVENT_DATA[kind]
    )
    location.instance.report_dagster_event(event, run.run_id)


def start_steps(location: Location, run: dg.DagsterRun, *steps: str) -> None:
    for step in steps:
        report_step(location, run, dg.DagsterEventType.STEP_WORKER_STARTED, step)


def succeed(location: Location, run: dg.DagsterRun, *steps: str) -> None:
    for step in steps:
        report_step(location, run, dg.DagsterEventType.STEP_SUCCESS, step)


def start_run(location: Location, run: dg.DagsterRun) -> None:
    started = dg.DagsterEvent(event_type_value=dg.DagsterEventType.RUN_START.value, job_name=run.job_name)
    location.instance.report_dagster_event(started, run.run_id)


@pytest.fixture
def run(location: Location) -> dg.DagsterRun:
    """A started run over one partition."""
    location.add_customers(1)
    created = create_run(location, key(1))
    start_run(location, created)
    return created


@pytest.mark.invariant("O3")
def test_lease_waits_for_steps_that_are_left(location: Location, run: dg.DagsterRun) -> None:
    """It ends with the process of all steps, and with the last step that takes it, whatever other steps follow."""

    def find() -> timedelta | None:
        return find_wait(location.instance, run, STEPS, STEP_WAIT)

    assert run.execution_plan_snapshot_id is not None
    planned = set(location.instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).step_keys_to_execute)
    assert planned >= STEPS
    assert (has_step_processes(location.instance, run.run_id), find()) == (False, None)
    start_steps(location, run, RAW_STEP)
    assert (has_step_processes(location.instance, run.run_id), find()) == (True, STEP_WAIT)
    succeed(location, run, RAW_STEP, VALID_STEP)
    assert find() == STEP_WAIT
    report_step(location, run, dg.DagsterEventType.STEP_START, WAREHOUSE_STEP)
    assert find() == STEP_WAIT
    report_step(location, run, dg.DagsterEventType.STEP_FAILURE, WAREHOUSE_STEP)
    assert find() is None
    assert find_wait(location.instance, run, planned, STEP_WAIT) == STEP_WAIT
    assert find_wait(location.instance, run, {*STEPS, "not_in_this_run"}, STEP_WAIT) is None


@pytest.mark.invariant("O3")
def test_lease_waits_while_dagsters_database_does_not_answer(
    location: Location, run: dg.DagsterRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows then whether steps are left."""
    monkeypatch.setattr(location.instance.event_log_storage, "get_logs_for_run", _fail)
    assert find_wait(location.instance, run, STEPS, STEP_WAIT) == STEP_WAIT


def _fail(*_args: object, **_kwargs: object) -> None:
    raise sa.exc.OperationalError("SELECT 1", {}, Exception("no connection"))


@pytest.mark.invariant("O3", "O4")
@pytest.mark.parametrize("ended", [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, None])
def test_claim_takes_over_from_runs_that_dagster_has_ended(
    location: Location, run: dg.DagsterRun, ended: dg.DagsterRunStatus | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The next run waits neither for the sensor nor for the lease. A run that has not ended keeps its partitions."""
    sealed = seal_run(location.deployment, key(1))
    with open_resources(location, build_event_origin(run), find_wait=lambda: STEP_WAIT) as first:
        first.claim([key(1)])
        first.seals.register(first.source.land([key(1)]).runs)
    ledger = location.deployment.ledger
    assert ledger.leases.holders([key(1)])[key(1)].expires_at > datetime.now(UTC) + STEP_WAIT / 2
    if ended is dg.DagsterRunStatus.SUCCESS:
        event = dg.DagsterEvent(event_type_value=dg.DagsterEventType.RUN_SUCCESS.value, job_name=run.job_name)
        location.instance.report_dagster_event(event, run.run_id)
    elif ended is dg.DagsterRunStatus.FAILURE:
        location.instance.report_run_failed(run)
    after = create_run(location, key(1))
    with open_resources(
        location, build_event_origin(after), close_if_ended=lambda *given: close_if_ended(location.instance, *given)
    ) as second:
        granted, held = second.claim([key(1)]).granted, second.claim([key(1)]).held
        message = f"run {run.run_id} ended as {{}} and left 1 sealed runs without a verdict. First: {sealed.key}"
        if ended is None:
            assert (dict(granted), held[key(1)].engine_run_id) == ({}, run.run_id)
        else:
            status = "COMPLETED" if ended is dg.DagsterRunStatus.SUCCESS else "FAILED"
            assert (dict(granted), dict(held)) == ({key(1): 2}, {})
            assert message.format(status) in caplog.messages
            with pytest.raises(LeaseLost), open_resources(location, build_event_origin(run)):
                pass
    assert tick(location, "run_completion").skip_reason


@pytest.mark.invariant("O3")
def test_run_whose_next_step_never_starts_is_closed(location: Location, run: dg.DagsterRun) -> None:
    """Its machine was lost between two steps. Dagster shows the run as failed, and names the setting."""
    start_steps(location, run, RAW_STEP)
    with open_resources(location, build_event_origin(run), find_wait=lambda: STEP_WAIT) as opened:
        opened.claim([key(1)])
    tick(location, "run_completion")
    assert [*location.deployment.ledger.leases.holders([key(1)])] == [key(1)]
    expire(location, run.run_id)
    tick(location, "run_completion")
    closed = location.instance.get_run_by_id(run.run_id)
    assert closed is not None
    assert closed.status is dg.DagsterRunStatus.FAILURE
    failures = location.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_FAILURE)
    assert [each.message for each in failures] == [STEP_WAITED]
    with open_part(EventReader, location.settings.database_url) as events:
        assert events.fetch(run.run_id)[-1].event.event_data == {"why": STEP_WAITED}
    assert location.deployment.ledger.leases.holders([key(1)]) == {}


def test_process_of_a_later_step_knows_what_was_not_fetched(location: Location, run: dg.DagsterRun) -> None:
    """Failed and skipped fetches of this run are read from the ledger, and those of other runs are not."""
    failed, skipped = FailedFetch(key=key(1), error_class="quota", error_message="out", failure_id="f1"), key(2)
    other = create_run(location, key(1))
    with open_resources(location, build_event_origin(other)) as earlier:
        earlier.claim([key(3)])
        earlier.record_skipped([SkippedFetch(key=key(3), reason="closed")])
    with open_resources(location, build_event_origin(run), find_wait=lambda: STEP_WAIT) as first:
        first.claim([key(1), skipped, key(4)])
        first.ledger.failed_fetches.record([failed], location.settings.retry_policy)
        first.record_skipped([SkippedFetch(key=skipped, reason="closed")])
    with open_resources(location, build_event_origin(run)) as second:
        assert second.find_not_fetched() == {key(1), skipped}
        assert dict(second.claim([key(1), key(4)]).granted) == {key(1): 1, key(4): 1}
    with open_part(EventReader, location.settings.database_url) as events:
        head = events.get_head(run.run_id)
        types = [each.event.event_type for each in events.fetch(run.run_id) if each.event.step_id is None]
    assert head is not None
    assert (head.payload_conflicts, types) == (0, ["RunStarted"])


@pytest.fixture
def served_location(
    tmp_path: Path, spark: SparkSession, spark_server: str
) -> Iterator[tuple[Location, Mapping[str, str]]]:
    """A location whose processes use one Spark server, and their environment."""
    home = tmp_path / "home"
    variables = {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": spark_server}
    with open_location(home, spark) as location, environ(variables):
        yield location, variables


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("spark")) as (address, _servers):
        yield address


def read(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def execute(location: Location, queries: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Execute a run over one partition, each step in a process. Gives its id, and how its steps ended."""
    day = key(1).dagster_key
    result = dg.execute_job(
        dg.reconstructable(build_job),
        instance=location.instance,
        asset_selection=location.names.assets(queries),
        tags=range_tags(location.names, queries, day, day, why="test"),
    )
    ends = [event for event in result.all_events if event.is_step_success or event.is_step_failure]
    return result.run_id, {str(event.step_key): event.event_type_value for event in ends}


@pytest.mark.invariant("O3", "O4", "W6")
@pytest.mark.timeout(1100)
def test_killed_process_of_a_step_costs_only_its_query(
    served_location: tuple[Location, Mapping[str, str]],
) -> None:
    """The other query of the run is judged and loaded. Until Dagster has ended the run, another run is refused its
    partition; the next run after that takes and loads it at once, and its last step ends its lease."""
    location, _ = served_location
    other = key(1, query_name=OTHER_QUERY)
    location.add_customers(1)
    seal_run(location.deployment, key(1))
    location.deployment.raw.land(Run(key=other, run_id="r1"), [], FACTS)
    stop = location.deployment.home / STOP
    stop.write_text(QUERY)
    ledger = location.deployment.ledger
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(execute, location, [QUERY, OTHER_QUERY])

        def wait(find: Callable[[], Any]) -> Any:
            return wait_for(find, is_alive=lambda: not running.done(), describe=lambda: str(running.result()))

        pid = wait(lambda: read(stop.with_suffix(".pid")))
        wait(lambda: ledger.publications.pointers([other]))
        meanwhile = create_run(location, key(1))
        with open_resources(
            location, build_event_origin(meanwhile), close_if_ended=lambda *a: close_if_ended(location.instance, *a)
        ) as resources:
            holder = resources.claim([key(1)]).held[key(1)].engine_run_id
        os.kill(int(pid), signal.SIGKILL)
        lost, ends = running.result()
    assert (holder, ends[RAW_STEP], VALID_STEP in ends) == (lost, "STEP_FAILURE", False)
    assert ends[f"warehouse__{OTHER_QUERY}"] == "STEP_SUCCESS"
    known = location.instance.get_run_by_id(lost)
    assert known is not None
    assert known.status is dg.DagsterRunStatus.FAILURE
    assert ledger.leases.holders([key(1)])[key(1)].engine_run_id == lost
    stop.unlink()
    again, ends = execute(location, [QUERY])
    assert set(ends.values()) == {"STEP_SUCCESS"}
    assert ends.keys() >= STEPS
    assert visible_runs(location.deployment) == {key(1): "r1"}
    assert ledger.leases.holders([key(1), other]) == {}
    with ledger.engine.connect() as connection:
        ended = {row.engine_run_id: row.ended_at for row in connection.execute(leases.select())}
    assert ended[again] is not None
    with open_part(EventReader, location.settings.database_url) as events:
        head = events.get_head(again)
    assert head is not None
    assert head.payload_conflicts == 0
