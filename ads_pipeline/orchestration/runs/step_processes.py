"""Finds out whether the steps of a run are processes of their own, and how long the lease has to wait for the next.

Such a run has no process that lives from its first step to its last, so no thread could renew its lease in between.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Final

import dagster as dg
import sqlalchemy as sa

_ENDS: Final = {
    dg.DagsterEventType.STEP_SUCCESS,
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.STEP_SKIPPED,
}


def has_step_processes(instance: dg.DagsterInstance, engine_run_id: str) -> bool:
    """Return whether the executor starts a process for each step. Such a process reports its start first."""
    return bool(instance.all_logs(engine_run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED))


def find_wait(
    instance: dg.DagsterInstance, run: dg.DagsterRun, leased_steps: Collection[str], step_wait: timedelta
) -> timedelta | None:
    """How long the lease of a run waits for its next step; None when no step that takes the lease is left.

    A process asks when its own step has ended. Steps of other authors may follow for hours, and need no lease.
    """
    with suppress(sa.exc.SQLAlchemyError, dg.DagsterError):  # an error here would hide how the step ended
        if not has_step_processes(instance, run.run_id) or not _find_left(instance, run, leased_steps):
            return None
    return step_wait


def _find_left(instance: dg.DagsterInstance, run: dg.DagsterRun, leased_steps: Collection[str]) -> set[str]:
    """The steps of the run that take the lease and have not ended."""
    planned = set(leased_steps)
    if run.execution_plan_snapshot_id is not None:
        planned &= set(instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id).step_keys_to_execute)
    return planned - {str(entry.step_key) for entry in instance.all_logs(run.run_id, of_type=_ENDS)}
