"""Closes the events of runs that Dagster finished or whose lease expired, and says which events a run writes.

A crashed process emits no last event, so open runs are compared with Dagster's. When daemon and worker are lost
together, only the expired lease shows that the run is over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import EventOrigin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.completed_runs import RunCompletionLog
from ads_pipeline.ledger.events.event_log import PLAN_VERSION
from ads_pipeline.orchestration.runs.step_processes import has_step_processes
from ads_pipeline.settings.environment import STEP_WAIT_VARIABLE

FINAL_STATUSES: Final = {
    dg.DagsterRunStatus.SUCCESS: RunStatus.COMPLETED,
    dg.DagsterRunStatus.FAILURE: RunStatus.FAILED,
    dg.DagsterRunStatus.CANCELED: RunStatus.CANCELLED,
}
LEASE_EXPIRED: Final = "the run did not renew its lease"
STEP_WAITED: Final = (
    f"no step of the run renewed its lease in time: their machine was lost, or a step waited longer to start than "
    f"{STEP_WAIT_VARIABLE} allows"
)
_RETRY_TAG: Final = "dagster/retry_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """A run that was closed. `unjudged` are partitions whose sealed runs it left without a verdict."""

    engine_run_id: str
    status: RunStatus
    unjudged: tuple[PartitionKey, ...]

    @property
    def problem(self) -> str | None:
        """The sealed runs without a verdict, for the log."""
        if not self.unjudged:
            return None
        left = f"left {len(self.unjudged)} sealed runs without a verdict. First: {self.unjudged[0]}"
        return f"run {self.engine_run_id} ended as {self.status} and {left}"


def build_event_origin(run: dg.DagsterRun) -> EventOrigin:
    """The origin of the events of a Dagster run. Its events carry the id of the run."""
    reference = {"job": run.job_name, "parent_run_id": run.parent_run_id, "root_run_id": run.root_run_id}
    return EventOrigin(
        engine_run_id=run.run_id,
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
    for engine_run_id in dict.fromkeys([*events.list_open_runs(), *sorted(expired)]):
        run, reason = instance.get_run_by_id(engine_run_id), None
        if run is None and engine_run_id in expired:
            origin = EventOrigin(engine_run_id=engine_run_id, plan_version=PLAN_VERSION)
            unjudged = events.complete_run(origin, RunStatus.FAILED, reason=LEASE_EXPIRED)
            yield CompletedRun(engine_run_id=engine_run_id, status=RunStatus.FAILED, unjudged=tuple(unjudged))
        if run is not None and not run.is_finished and engine_run_id in expired:
            reason = STEP_WAITED if has_step_processes(instance, engine_run_id) else LEASE_EXPIRED
            run = _report_lost_run(instance, run, reason)
        if run is not None and (closed := _close(events, run, reason)) is not None:
            yield closed


def close_if_ended(instance: dg.DagsterInstance, events: RunCompletionLog, engine_run_id: str) -> CompletedRun | None:
    """Close a run if Dagster has ended it, as `close_finished_runs` would do later. Otherwise None."""
    run = instance.get_run_by_id(engine_run_id)
    return _close(events, run) if run is not None else None


def _close(events: RunCompletionLog, run: dg.DagsterRun, reason: str | None = None) -> CompletedRun | None:
    status = FINAL_STATUSES.get(run.status)
    if status is None:
        return None
    reason = reason or f"Dagster reports the run as {run.status.value}"
    unjudged = events.complete_run(build_event_origin(run), status, reason=reason)
    return CompletedRun(engine_run_id=run.run_id, status=status, unjudged=tuple(unjudged))


def _report_lost_run(instance: dg.DagsterInstance, run: dg.DagsterRun, reason: str) -> dg.DagsterRun | None:
    """Report a lost run to Dagster, which would otherwise show it as started for ever.

    Dagster gets the report before the event log: after a crash in between, the next tick closes the run.
    """
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=reason)
    else:
        instance.report_run_failed(run, message=reason)
    return instance.get_run_by_id(run.run_id)
