"""Builds the sensor `run_completion`: it closes the events of runs that Dagster finished or whose lease expired.

It also fails runs that were created in Dagster and never queued.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.run_snapshots import LagLevel
from ads_pipeline.ledger.events.completed_runs import COMMAND_KILLED
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.write_steps.transactions import Clock
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.resources import SENSOR_RESOURCES
from ads_pipeline.orchestration.runs.ended_runs import close_finished_runs
from ads_pipeline.orchestration.sensors.earlier_runs import MAX_TIME_TO_QUEUE, was_never_queued

NEVER_QUEUED: Final = (
    f"the run was created and not queued within {MAX_TIME_TO_QUEUE // timedelta(minutes=1)} minutes: "
    "its launch failed, or the process that launched it was killed"
)
COMPLETION_INTERVAL_SECONDS: Final = 20  # until then, a dead run holds its partitions


def fail_unqueued_runs(instance: dg.DagsterInstance, assets: Collection[dg.AssetKey], now: datetime) -> list[str]:
    """Report runs of these assets that were never queued as failed, and return their ids. Dagster never ends them."""
    created = dg.RunsFilter(statuses=[dg.DagsterRunStatus.NOT_STARTED])
    failed = []
    for record in instance.get_run_records(filters=created):
        run = record.dagster_run
        checked = {check.asset_key for check in run.asset_check_selection or ()}
        if was_never_queued(record, now) and not checked.union(run.asset_selection or ()).isdisjoint(assets):
            instance.report_run_failed(run, message=NEVER_QUEUED)
            failed.append(run.run_id)
    return failed


def _count_ended(number: int) -> str:
    if number == 0:
        return "No run ended."
    return f"{number:,} {'run' if number == 1 else 'runs'} ended."


def build_run_completion_sensor(names: Names, query_names: Sequence[str], *, now: Clock) -> dg.SensorDefinition:
    @dg.sensor(
        name=names.name("run_completion"),
        required_resource_keys=names.require(SENSOR_RESOURCES),
        minimum_interval_seconds=COMPLETION_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Closes finished runs and killed commands in the event log, fails runs with an expired lease, "
        "and updates run snapshots.",
    )
    def run_completion(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        sensor_resources = names.find(context, SENSOR_RESOURCES)

        def report_lag(level: LagLevel, lag: timedelta) -> None:
            context.log.error("%s: run snapshots are %.1f s behind the events", level, lag.total_seconds())

        follower = Follower(sensor_resources.events)
        follower.catch_up(report_lag)
        for engine_run_id in fail_unqueued_runs(context.instance, names.assets(query_names), now()):
            context.log.warning("run %s was reported as failed: %s", engine_run_id, NEVER_QUEUED)
        closed = list(close_finished_runs(context.instance, sensor_resources.events))
        for engine_run_id in sensor_resources.events.close_silent_commands():
            context.log.warning("run %s was closed as failed: %s", engine_run_id, COMMAND_KILLED)
        follower.catch_up()
        for run in closed:
            if run.problem is not None:
                context.log.error("%s", run.problem)
        return dg.SensorResult(skip_reason=_count_ended(len(closed)))

    return run_completion
