"""Builds the sensor `run_completion`: it closes the events of runs that Dagster finished or whose lease expired.

It also fails runs that were created in Dagster and never queued.

A crashed process emits no last event, so each tick compares open runs with Dagster's.
When daemon and worker are lost together, only the expired lease shows that the run is over.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import LagLevel, RunStatus
from ads_pipeline.ledger.events.event_log import PLAN_VERSION
from ads_pipeline.ledger.events.run_completion import COMMAND_KILLED, RunCompletionLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.transactions import Clock
from ads_pipeline.orchestration.partitions import asset_keys
from ads_pipeline.orchestration.resources import SensorResources
from ads_pipeline.orchestration.sensors.earlier_runs import MAX_TIME_TO_QUEUE, was_never_queued

FINAL_STATUSES: Final = {
    dg.DagsterRunStatus.SUCCESS: RunStatus.COMPLETED,
    dg.DagsterRunStatus.FAILURE: RunStatus.FAILED,
    dg.DagsterRunStatus.CANCELED: RunStatus.CANCELLED,
}
LEASE_EXPIRED: Final = "the run did not renew its lease"
NEVER_QUEUED: Final = (
    f"the run was created and not queued within {MAX_TIME_TO_QUEUE // timedelta(minutes=1)} minutes: "
    "its launch failed, or the process that launched it was killed"
)
COMPLETION_INTERVAL_SECONDS: Final = 20  # until then, a dead run holds its partitions
_RETRY_TAG: Final = "dagster/retry_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """A run that was closed. `unjudged` are partitions whose sealed runs it left without a verdict."""

    run_id: str
    status: RunStatus
    unjudged: tuple[PartitionKey, ...]


def build_event_origin(run: dg.DagsterRun) -> EventOrigin:
    """The origin of the events of a Dagster run. Its events carry the id of the run."""
    reference = {"job": run.job_name, "parent_run_id": run.parent_run_id, "root_run_id": run.root_run_id}
    return EventOrigin(
        run_id=run.run_id,
        plan_version=PLAN_VERSION,
        engine_attempt_id=int(run.tags.get(_RETRY_TAG, "0")) + 1,
        adapter_version=f"dagster-{dg.__version__}",
        engine_run_ref={name: value for name, value in reference.items() if value},
    )


def close_finished_runs(instance: dg.DagsterInstance, events: RunCompletionLog) -> Iterator[CompletedRun]:
    """Close each open run that Dagster finished or whose lease has expired, and yield it.

    A run that Dagster does not know, such as one of an earlier instance, is closed when its lease has expired. One
    without a lease stays open: it may be a run of another engine.
    """
    expired = set(events.list_expired_runs())
    for run_id in dict.fromkeys([*events.list_open_runs(), *sorted(expired)]):
        run, reason = instance.get_run_by_id(run_id), None
        if run is None and run_id in expired:
            origin = EventOrigin(run_id=run_id, plan_version=PLAN_VERSION)
            unjudged = events.complete_run(origin, RunStatus.FAILED, reason=LEASE_EXPIRED)
            yield CompletedRun(run_id=run_id, status=RunStatus.FAILED, unjudged=tuple(unjudged))
        if run is not None and not run.is_finished and run_id in expired:
            run, reason = _report_lost_run(instance, run), LEASE_EXPIRED
        status = FINAL_STATUSES.get(run.status) if run else None
        if run is not None and status is not None:
            reason = reason or f"Dagster reports the run as {run.status.value}"
            unjudged = events.complete_run(build_event_origin(run), status, reason=reason)
            yield CompletedRun(run_id=run_id, status=status, unjudged=tuple(unjudged))


def _report_lost_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun | None:
    """Report a lost run to Dagster, which would otherwise show it as started for ever.

    Dagster gets the report before the event log: after a crash in between, the next tick closes the run.
    """
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=LEASE_EXPIRED)
    else:
        instance.report_run_failed(run, message=LEASE_EXPIRED)
    return instance.get_run_by_id(run.run_id)


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


def build_run_completion_sensor(query_names: Sequence[str], *, now: Clock) -> dg.SensorDefinition:
    @dg.sensor(
        minimum_interval_seconds=COMPLETION_INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description="Closes finished runs and killed commands in the event log, fails runs with an expired lease, "
        "and updates run snapshots.",
    )
    def run_completion(
        context: dg.SensorEvaluationContext, sensor_resources: dg.ResourceParam[SensorResources]
    ) -> dg.SensorResult:
        def report_lag(level: LagLevel, lag: timedelta) -> None:
            context.log.error("%s: run snapshots are %.1f s behind the events", level, lag.total_seconds())

        follower = Follower(sensor_resources.events)
        follower.catch_up(report_lag)
        for run_id in fail_unqueued_runs(context.instance, asset_keys(query_names), now()):
            context.log.warning("run %s was reported as failed: %s", run_id, NEVER_QUEUED)
        closed = list(close_finished_runs(context.instance, sensor_resources.events))
        for run_id in sensor_resources.events.close_silent_commands():
            context.log.warning("run %s was closed as failed: %s", run_id, COMMAND_KILLED)
        follower.catch_up()
        for run in closed:
            if run.unjudged:
                context.log.error(
                    "run %s ended as %s and left %d sealed runs without a verdict. First: %s",
                    run.run_id,
                    run.status,
                    len(run.unjudged),
                    run.unjudged[0],
                )
        return dg.SensorResult(skip_reason=_count_ended(len(closed)))

    return run_completion
