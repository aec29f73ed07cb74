"""The launcher that `dagster.yaml` names: the engine executes the runs of this code location.

Without an engine, and for runs of other code locations, it does what Dagster's default launcher does. Only the launch
needs the engine. The file of a run says which process executes it, also when the engine has ended since.
"""

import os
from pathlib import Path
from typing import Any, Final

import dagster as dg

from ads_pipeline.orchestration.event_storage import dagster_private
from ads_pipeline.settings.environment import find_home
from ads_pipeline.spark.engine.run_files import RunFiles, RunProcess, run_files
from ads_pipeline.spark.engine.start_requests import RunRequest, describe_environment, request_run
from ads_pipeline.spark.engine_address import Answer, describe_silence, engine_link

PROCESS_TAG: Final = "ads_pipeline/process"  # of a run that the engine executes


class EngineRunLauncher(dg.DefaultRunLauncher):
    """Lets the engine of this deployment execute runs, in a process that has loaded everything before."""

    def launch_run(self, context: Any) -> None:
        """Launch a run. The engine executes it, or Dagster's code server does."""
        run, instance = context.dagster_run, dagster_private.instance_of(self)
        request = _build_request(run, instance) if instance and engine_link(_home()).is_symlink() else None
        if instance is None or request is None:
            super().launch_run(context)
            return
        answer = _ask_engine(request)
        if answer.pid:
            instance.add_run_tags(run.run_id, {PROCESS_TAG: describe_process(run.run_id, answer.pid)})
            return
        if answer.problem:
            instance.report_engine_event(f"The run loads its code itself: {answer.problem}.", run, cls=type(self))
        super().launch_run(context)

    def terminate(self, run_id: str) -> bool:
        """Interrupt the process of a run. True when it was alive, or when its run is closed because it was not."""
        instance = dagster_private.instance_of(self)
        run = instance.get_run_by_id(run_id) if instance else None
        process = _files().find(run_id)
        if instance is None or run is None or run.is_finished or process is None:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call] # Dagster's own
        instance.report_run_canceling(run)
        if not process.is_here:
            problem = f"The process of the run is on another machine. End it there: kill -INT {process.pid}."
            instance.report_engine_event(problem, run, cls=type(self))
            return False
        if not _files().interrupt(run_id):
            instance.report_run_canceled(run, f"The run is canceled: {process.describe_end()}.")
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        return dagster_private.has(["CheckRunHealthResult", "WorkerStatus"])

    def check_run_worker_health(self, run: dg.DagsterRun) -> Any:
        """Tell Dagster whether the process of a run lives. It ends every run whose answer is not RUNNING or SUCCESS.

        So the answer is RUNNING for a run of the default launcher, whose code server reports a death itself, and for
        a process on another machine, whose run is ended when its lease expires.
        """
        ended = _find_ended(run.run_id)
        if ended is None:
            return dagster_private.CheckRunHealthResult(dagster_private.WorkerStatus.RUNNING)
        return dagster_private.CheckRunHealthResult(dagster_private.WorkerStatus.FAILED, ended.describe_end())

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str | None:  # noqa: ARG002 - Dagster's signature
        """Describe the end of a run's process, which Dagster adds when a run has not started in time."""
        ended = _find_ended(run.run_id)
        return ended.describe_end() if ended and run.status == dg.DagsterRunStatus.STARTING else None


def describe_process(run_id: str, pid: int) -> str:
    """The value of the tag. It names the run, because a retry has the tags of the run before it."""
    return f"{pid} of run {run_id[:8]}"


def _ask_engine(request: RunRequest) -> Answer:
    """Let the engine execute the run. An answer without a process is final: no process takes the run any more."""
    try:
        answer = request_run(_home(), request)
    except OSError as error:
        answer = Answer(problem=describe_silence(error))
    if answer.problem is None or _files().give_up(request.engine_run_id):
        return answer
    process = _files().find(request.engine_run_id)  # that took the run, although the engine has not said so
    return Answer(pid=process.pid) if process else answer


def _build_request(run: dg.DagsterRun, instance: dg.DagsterInstance) -> RunRequest | None:
    """The facts that the engine needs about a run; None for a run that it cannot execute."""
    origin = run.job_code_origin
    module = getattr(origin.repository_origin.code_pointer, "module", None) if origin else None
    if origin is None or module is None or not dagster_private.has(["ExecuteRunArgs"]):
        return None
    command = dagster_private.ExecuteRunArgs(
        job_origin=origin, run_id=run.run_id, instance_ref=instance.get_ref()
    ).get_command_args()
    return RunRequest(
        engine_run_id=run.run_id,
        module=module,
        executable=origin.repository_origin.executable_path,
        arguments=tuple(command[command.index("api") :]),
        environment=describe_environment(os.environ),
    )


def _find_ended(run_id: str) -> RunProcess | None:
    """The process of a run, if it has ended without a word. Its end is noted a moment later."""
    process = _files().find(run_id)
    if process is None or not process.is_here or _files().is_alive(run_id):
        return None
    return _files().await_exit(run_id) or process


def _files() -> RunFiles:
    return run_files(_home())


def _home() -> Path:
    return find_home(os.environ)
