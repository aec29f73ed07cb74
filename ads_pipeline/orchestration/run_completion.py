"""Tells the log of events which of its runs are Dagster's, and how those ended that have.

A run that died tells nothing any more, so what is open in our log is looked up among Dagster's runs, again and again.
Where everything died at once Dagster knows nothing either: then the lease tells.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.run_events import Origin
from ads_pipeline.domain.run_snapshots import RunStatus
from ads_pipeline.ledger.events.event_log import PLAN_VERSION
from ads_pipeline.ledger.events.run_completion import RunCompletionLog

ENDINGS: Final = {
    dg.DagsterRunStatus.SUCCESS: RunStatus.COMPLETED,
    dg.DagsterRunStatus.FAILURE: RunStatus.FAILED,
    dg.DagsterRunStatus.CANCELED: RunStatus.CANCELLED,
}
SILENT: Final = "nothing was heard of the run for as long as its lease lasts"
_RETRY: Final = "dagster/retry_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedRun:
    """A run that was found to have ended, and the partitions whose sealed runs it left without a verdict."""

    run_id: str
    status: RunStatus
    left: tuple[PartitionKey, ...]


def origin_of(run: dg.DagsterRun) -> Origin:
    """The origin of what happens in a run of Dagster: its id is the run of all its events."""
    told = {"job": run.job_name, "parent_run_id": run.parent_run_id, "root_run_id": run.root_run_id}
    return Origin(
        run_id=run.run_id,
        plan_version=PLAN_VERSION,
        engine_attempt_id=int(run.tags.get(_RETRY, "0")) + 1,
        adapter_version=f"dagster-{dg.__version__}",
        engine_run_ref={name: value for name, value in told.items() if value},
    )


def end_runs(instance: dg.DagsterInstance, events: RunCompletionLog) -> Iterator[CompletedRun]:
    """End each run of our log that Dagster knows to have ended, or that let its lease expire.

    What is no run of Dagster's is left alone.
    """
    silent = set(events.overdue())
    for run_id in dict.fromkeys([*events.unended(), *sorted(silent)]):
        run, why = instance.get_run_by_id(run_id), None
        if run is not None and not run.is_finished and run_id in silent:
            run, why = _given_up(instance, run), SILENT
        ended = ENDINGS.get(run.status) if run else None
        if run is not None and ended is not None:
            left = events.end(origin_of(run), ended, why=why or f"the run ended as {run.status.value}")
            yield CompletedRun(run_id=run_id, status=ended, left=tuple(left))


def _given_up(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRun | None:
    """Tell Dagster of a run that died with all who could have told: it would take it to be at work for ever.

    Dagster is told first. Whoever dies before the log is told as well leaves a run that ended, which is found again.
    """
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run, message=SILENT)
    else:
        instance.report_run_failed(run, message=SILENT)
    return instance.get_run_by_id(run.run_id)
