"""Runs of a real `dagster dev` start in the standby process of the code server, and end as they always do."""

import os
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ads_pipeline_tests.engine.test_engine import descendants, exists
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
    pytest.mark.timeout(900),
]
LOCATION = """
import time
from pathlib import Path

import dagster as dg
from ads_pipeline.orchestration.run_processes.code_servers import load_runs_ahead

FILE = Path(__file__).with_name("version")
VERSION = FILE.read_text()
load_runs_ahead([FILE])


@dg.op(config_schema={"seconds": int})
def wait(context: dg.OpExecutionContext) -> None:
    context.log.info(f"version {VERSION}")
    time.sleep(context.op_config["seconds"])


@dg.job(executor_def=dg.in_process_executor)
def waiting():
    wait()


defs = dg.Definitions(jobs=[waiting])
"""
SETTINGS = """
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
"""
LAUNCH = """
mutation($config: RunConfigData) {
  launchRun(executionParams: {
    selector: {repositoryName: "__repository__", repositoryLocationName: "location", jobName: "waiting"}
    runConfigData: $config
  }) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
LONG = 600  # seconds
TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
STARTED = "Started process for run (pid: "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    directory = tmp_path_factory.mktemp("location")
    (directory / "location.py").write_text(textwrap.dedent(LOCATION))
    (directory / "version").write_text("first")
    (directory / "workspace.yaml").write_text("load_from:\n  - python_module: {module_name: location}\n")
    (directory / "dagster.yaml").write_text(SETTINGS)
    with dagster_server(directory / "home", {}, directory=directory) as running:
        yield running


def launch(server: DagsterServer, seconds: int = 0) -> str:
    config = {"ops": {"wait": {"config": {"seconds": seconds}}}}
    launched = server.query(LAUNCH, config=config)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    return str(launched["run"]["runId"])


def find_pid(server: DagsterServer, run_id: str) -> int:
    """The process that executes a run, once its step works: Dagster can lose a request to terminate it before."""
    server.wait_for(lambda: server.find_messages(run_id, "version "))
    message = server.find_message(run_id, STARTED)
    return int(message.removeprefix(STARTED).partition(")")[0])


def find_waiting(server: DagsterServer) -> set[int]:
    """The processes that multiprocessing has started."""
    return {pid for pid, command in descendants(server.process.pid).items() if "spawn_main" in command}


def launch_in_standby(server: DagsterServer) -> tuple[str, int]:
    """A long run in a process that was there before. Runs that were launched before it was ready are terminated."""

    def attempt() -> tuple[str, int] | None:
        waiting = find_waiting(server)
        run_id = launch(server, LONG)
        pid = find_pid(server, run_id)
        if pid in waiting:
            return run_id, pid
        terminate(server, run_id)
        return None

    return server.wait_for(attempt)


def terminate(server: DagsterServer, run_id: str) -> None:
    server.query(TERMINATE, id=run_id)
    wait_for_status(server, run_id, "CANCELED")


def wait_for_status(server: DagsterServer, run_id: str, status: str) -> None:
    server.wait_for(lambda: server.run_status(run_id) == status)


def test_terminated_run_ends_with_its_process(server: DagsterServer) -> None:
    """The next run has a process of its own meanwhile, and is not touched."""
    run_id, pid = launch_in_standby(server)
    next_run = launch(server, LONG)
    next_pid = find_pid(server, next_run)
    assert next_pid != pid
    terminate(server, run_id)
    server.wait_for(lambda: not exists(pid))
    assert server.run_status(next_run) == "STARTED"
    assert exists(next_pid)
    terminate(server, next_run)


def test_killed_process_fails_its_run(server: DagsterServer) -> None:
    """Dagster notices the death of a standby process as that of any process of a run."""
    run_id, pid = launch_in_standby(server)
    os.kill(pid, signal.SIGKILL)
    wait_for_status(server, run_id, "FAILURE")
    assert server.find_messages(run_id, "[DagsterApiServer] Run execution process for")


def test_changed_file_is_used_by_the_next_run(server: DagsterServer) -> None:
    """The code location was not reloaded, and the standby process had the old file. The next one has the new file."""
    server.wait_for(lambda: find_waiting(server))
    (server.log.parents[1] / "version").write_text("second")
    run_id = launch(server, 0)
    wait_for_status(server, run_id, "SUCCESS")
    assert server.find_messages(run_id, "version ") == ["version second"]
    run_id, _pid = launch_in_standby(server)
    assert server.wait_for(lambda: server.find_messages(run_id, "version ")) == ["version second"]
    terminate(server, run_id)


def test_killed_code_server_leaves_no_standby_process(server: DagsterServer) -> None:
    """No run can start in a process whose definitions are those of another code server."""
    waiting = server.wait_for(lambda: find_waiting(server))
    for pid, command in descendants(server.process.pid).items():
        if "api grpc" in command:
            os.kill(pid, signal.SIGKILL)
    server.wait_for(lambda: not any(map(exists, waiting)))
