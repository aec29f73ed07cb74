"""Runs of a real `dagster dev` with an engine: they are terminated, killed, and of another code location."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ads_pipeline.orchestration.run_launcher import PROCESS_TAG, EngineRunLauncher, describe_process
from ads_pipeline_tests.orchestration.dagster_server import DagsterServer, dagster_server
from ads_pipeline_tests.spark.engine.test_engine import exists

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
    pytest.mark.timeout(900),
]
NAME, OTHER = "served_location", "other_served_location"
LOCATION = """
import time

import dagster as dg


@dg.op(config_schema={"seconds": int})
def wait(context: dg.OpExecutionContext) -> None:
    context.log.info("working")
    time.sleep(context.op_config["seconds"])


@dg.job(executor_def=dg.in_process_executor)
def waiting():
    wait()


defs = dg.Definitions(jobs=[waiting])
"""
SETTINGS = f"""
run_launcher: {{module: {EngineRunLauncher.__module__}, class: {EngineRunLauncher.__name__}}}
run_monitoring: {{enabled: true, poll_interval_seconds: 1}}
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config: {{dequeue_interval_seconds: 1}}
"""
LAUNCH = """
mutation($location: String!, $config: RunConfigData) {
  launchRun(executionParams: {
    selector: {repositoryName: "__repository__", repositoryLocationName: $location, jobName: "waiting"}
    runConfigData: $config
  }) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } }
}"""
LONG = 600  # seconds
TERMINATE = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
STARTED = "Started process for run (pid: "


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterServer]:
    directory = tmp_path_factory.mktemp("locations")
    for name in (NAME, OTHER):
        (directory / f"{name}.py").write_text(LOCATION)
    modules = "".join(f"  - python_module: {{module_name: {name}}}\n" for name in (NAME, OTHER))
    (directory / "workspace.yaml").write_text(f"load_from:\n{modules}")
    (directory / "dagster.yaml").write_text(SETTINGS)
    with dagster_server(directory / "home", {}, directory=directory, engine=True, module=NAME) as running:
        yield running


def launch(server: DagsterServer, location: str) -> tuple[str, int]:
    """A long run and its process, once its step works."""
    config = {"ops": {"wait": {"config": {"seconds": LONG}}}}
    launched = server.query(LAUNCH, location=location, config=config)["launchRun"]
    assert launched["__typename"] == "LaunchRunSuccess", launched
    run_id = str(launched["run"]["runId"])
    server.wait_for(lambda: server.find_messages(run_id, "working"))
    message = server.find_message(run_id, STARTED)
    return run_id, int(message.removeprefix(STARTED).partition(")")[0])


def wait_for_status(server: DagsterServer, run_id: str, status: str) -> None:
    server.wait_for(lambda: server.run_status(run_id) == status)


def test_runs_of_two_locations_end_with_their_processes(server: DagsterServer) -> None:
    """The engine executes those of its location, and Dagster's code server the others.

    A terminated run is canceled. A killed one fails, with the signal in its log, and the others go on.
    """
    other, other_pid = launch(server, OTHER)
    terminated, terminated_pid = launch(server, NAME)
    killed, killed_pid = launch(server, NAME)
    tags = server.run_tags()
    assert [tags[run_id].get(PROCESS_TAG) for run_id in (other, terminated, killed)] == [
        None,
        describe_process(terminated, terminated_pid),
        describe_process(killed, killed_pid),
    ]
    server.query(TERMINATE, id=terminated)
    os.kill(killed_pid, signal.SIGKILL)
    wait_for_status(server, terminated, "CANCELED")
    wait_for_status(server, killed, "FAILURE")
    message = "Detected run worker status FAILED: 'its process "
    assert server.find_message(killed, message).startswith(f"{message}{killed_pid} was killed by SIGKILL'")
    server.wait_for(lambda: not exists(terminated_pid))
    assert server.run_status(other) == "STARTED"
    server.query(TERMINATE, id=other)
    wait_for_status(server, other, "CANCELED")
    server.wait_for(lambda: not exists(other_pid))
