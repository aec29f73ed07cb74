"""Tells the log of events which of its runs are Dagster's, and how those ended that have.

A run that died tells nothing any more, so what is open in our log is looked up among Dagster's runs, again and again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import dagster as dg

from ads_pipeline.ledger.closing import RunLog
from ads_pipeline.ledger.event_log import PLAN_VERSION
from ads_pipeline.partition import PartitionKey
from ads_pipeline.run_events import Origin
from ads_pipeline.run_snapshots import RunStatus

ENDINGS: Final = {
    dg.DagsterRunStatus.SUCCESS: RunStatus.COMPLETED,
    dg.DagsterRunStatus.FAILURE: RunStatus.FAILED,
    dg.DagsterRunStatus.CANCELED: RunStatus.CANCELLED,
}
_RETRY: Final = "dagster/retry_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
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


def end_runs(instance: dg.DagsterInstance, events: RunLog) -> Iterator[Ended]:
    """End each run of our log that Dagster knows to have ended. What is no run of Dagster's is left alone."""
    for run_id in events.unended():
        run = instance.get_run_by_id(run_id)
        ended = ENDINGS.get(run.status) if run else None
        if run is not None and ended is not None:
            left = events.end(origin_of(run), ended, why=f"the run ended as {run.status.value}")
            yield Ended(run_id=run_id, status=ended, left=tuple(left))
