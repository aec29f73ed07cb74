"""Runs that the engine executes end as those of Dagster's own launcher, with the shipped `dagster.yaml`."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from ads_pipeline.orchestration.event_storage.dagster_private import WorkerStatus
from ads_pipeline.orchestration.run_launcher import PROCESS_TAG
from ads_pipeline.settings.environment import VARIABLES
from ads_pipeline.spark.engine.run_files import RunFiles, run_files
from ads_pipeline.spark.engine_address import MODULE, UNTIL_STDIN_CLOSES, engine_link, is_running
from ads_pipeline_tests.polling import wait_for
from ads_pipeline_tests.processes import ROOT
from ads_pipeline_tests.spark.engine.test_engine import descendants, exists

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc"),
    pytest.mark.timeout(900),
]
NAME, OTHER = "launched_location", "other_location"
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
LONG = 600  # seconds
NEEDS_WORKSPACE = "requires a workspace"  # what Dagster's own launcher says here, where no code server runs


@dataclass(frozen=True, slots=True)
class Launches:
    """An instance with the shipped configuration, and the engine of its home."""

    instance: dg.DagsterInstance
    home: Path
    engine: "subprocess.Popen[bytes]"

    @property
    def files(self) -> RunFiles:
        return run_files(self.home)

    @property
    def launcher(self) -> Any:
        return self.instance.run_launcher

    def create(self, seconds: int = LONG, tags: dict[str, str] | None = None, name: str = NAME) -> str:
        module = import_module(name)
        run = self.instance.create_run_for_job(
            module.waiting,
            run_config={"ops": {"wait": {"config": {"seconds": seconds}}}},
            tags=tags or {},
            job_code_origin=dg.reconstructable(module.waiting).get_python_origin(),
        )
        return str(run.run_id)

    def launch(self, seconds: int = LONG) -> tuple[str, int]:
        """A run and its process, once its step works."""
        run_id = self.create(seconds)
        self.instance.launch_run(run_id, workspace=None)  # type: ignore[arg-type] # the engine needs none
        wait_for(lambda: "working" in self.messages(run_id))
        number, _, run = self.run(run_id).tags[PROCESS_TAG].partition(" of run ")
        assert run_id.startswith(run)
        return run_id, int(number)

    def run(self, run_id: str) -> dg.DagsterRun:
        run = self.instance.get_run_by_id(run_id)
        assert run is not None
        return run

    def wait_for_status(self, run_id: str, status: dg.DagsterRunStatus) -> None:
        wait_for(lambda: self.run(run_id).status == status, describe=lambda: str(self.messages(run_id)))

    def messages(self, run_id: str) -> list[str]:
        return [entry.user_message or entry.message for entry in self.instance.all_logs(run_id)]

    def find_waiting(self) -> set[int]:
        """The processes that wait for a run, or load what it needs."""
        found = descendants(self.engine.pid).items()
        return {pid for pid, command in found if command.rstrip().endswith(f"runs.worker {NAME}")}

    def terminate(self, run_id: str) -> None:
        assert self.launcher.terminate(run_id)
        self.wait_for_status(run_id, dg.DagsterRunStatus.CANCELED)


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of two code locations."""
    directory = tmp_path_factory.mktemp("code")
    for name in (NAME, OTHER):
        (directory / f"{name}.py").write_text(LOCATION)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(directory))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH")))))
        yield directory


@contextmanager
def launches_in(tmp_path: Path, **variables: str) -> Iterator[Launches]:
    home = tmp_path / "home"
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(ROOT / "dagster.yaml", checkout)
    with pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        variables |= {"ADS_PIPELINE_HOME": str(home), "ADS_PIPELINE_SPARK": "sc://localhost:1"}  # it is never opened
        for name, value in variables.items():
            patch.setenv(name, value)
        command = [sys.executable, "-m", "ads_pipeline.spark.engine.supervisor", UNTIL_STDIN_CLOSES, MODULE, NAME]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE) as engine,
            dg.DagsterInstance.from_config(str(checkout)) as instance,
        ):
            wait_for(lambda: is_running(home), is_alive=lambda: engine.poll() is None)
            try:
                yield Launches(instance, home, engine)
            finally:
                engine.kill()
                for run in instance.get_runs():
                    run_files(home).interrupt(run.run_id)


@pytest.fixture(scope="module")
def launches(code: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launches]:
    with launches_in(tmp_path_factory.mktemp("sqlite")) as opened:
        yield opened


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_terminated_run_ends_with_its_process(
    database: str, code: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In the middle of its step, on both databases. The next run starts in the process that waited."""
    variables = {}
    if database == "postgres":
        variables["ADS_PIPELINE_DATABASE_URL"] = request.getfixturevalue("unmigrated_postgres_url")
    with launches_in(tmp_path, **variables) as launches:
        run_id, pid = launches.launch()
        assert launches.launcher.check_run_worker_health(launches.run(run_id)).status == WorkerStatus.RUNNING
        launches.terminate(run_id)
        wait_for(lambda: not exists(pid))
        next_run, next_pid = launch_in_waiting(launches)
        assert next_pid != pid
        launches.terminate(next_run)


def launch_in_waiting(launches: Launches) -> tuple[str, int]:
    """A run whose process was there before. Runs that were launched before it was ready are terminated."""

    def attempt() -> tuple[str, int] | None:
        waiting = wait_for(launches.find_waiting)
        run_id, pid = launches.launch()
        if pid in waiting:
            return run_id, pid
        launches.terminate(run_id)
        return None

    return wait_for(attempt)


def test_run_of_the_engine_succeeds(launches: Launches) -> None:
    """Its events are those of any run."""
    run_id, _pid = launches.launch(seconds=0)
    launches.wait_for_status(run_id, dg.DagsterRunStatus.SUCCESS)


def test_killed_process_is_named_with_its_signal(launches: Launches) -> None:
    """Run monitoring ends the run with this message."""
    run_id, pid = launches.launch()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not launches.files.is_alive(run_id))
    result = launches.launcher.check_run_worker_health(launches.run(run_id))
    assert (result.status, result.msg) == (WorkerStatus.FAILED, f"its process {pid} was killed by SIGKILL")
    assert launches.launcher.terminate(run_id)
    assert launches.run(run_id).status == dg.DagsterRunStatus.CANCELED


def test_run_that_is_terminated_while_it_loads_is_canceled(launches: Launches) -> None:
    """Dagster's command, which is not loaded yet, would not see the signal."""
    run_id = launches.create()
    launches.instance.launch_run(run_id, workspace=None)  # type: ignore[arg-type] # the engine needs none
    launches.terminate(run_id)
    wait_for(lambda: not launches.files.is_alive(run_id))


def launch_by_dagster(launches: Launches, run_id: str) -> None:
    with pytest.raises(dg.DagsterInvariantViolationError, match=NEEDS_WORKSPACE):
        launches.instance.launch_run(run_id, workspace=None)  # type: ignore[arg-type] # so that this launcher refuses


def change_the_environment(launches: Launches, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("ADS_PIPELINE_LEASE_SECONDS", "60")


def remove_the_link(launches: Launches, patch: pytest.MonkeyPatch) -> None:
    patch.setenv("ADS_PIPELINE_HOME", str(launches.home / "no engine"))


def leave_a_stale_link(launches: Launches, patch: pytest.MonkeyPatch) -> None:
    home = launches.home.parent / "stale"
    (home / "engine").mkdir(parents=True)
    engine_link(home).symlink_to("/nowhere/socket")
    patch.setenv("ADS_PIPELINE_HOME", str(home))


CASES: tuple[tuple[Callable[[Launches, pytest.MonkeyPatch], None], str], ...] = (
    (change_the_environment, "with another environment (ADS_PIPELINE_LEASE_SECONDS)"),
    (remove_the_link, ""),
    (leave_a_stale_link, "the engine does not answer"),
)


@pytest.mark.parametrize(("change", "message"), CASES)
def test_dagster_launches_what_the_engine_does_not(
    launches: Launches,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Launches, pytest.MonkeyPatch], None],
    message: str,
) -> None:
    """The log of the run says why where an engine is there. Run monitoring takes such a run for healthy.

    A tag that came from an earlier run changes nothing.
    """
    change(launches, monkeypatch)
    run_id = launches.create(tags={PROCESS_TAG: "1"})
    launch_by_dagster(launches, run_id)
    assert [message in each for each in launches.messages(run_id) if "loads its code itself" in each] == (
        [True] if message else []
    )
    assert launches.launcher.check_run_worker_health(launches.run(run_id)).status == WorkerStatus.RUNNING


def test_run_of_another_code_location_is_launched_by_dagster(launches: Launches) -> None:
    """Its log has no word about the engine, and run monitoring takes it for healthy."""
    run_id = launches.create(name=OTHER)
    launch_by_dagster(launches, run_id)
    assert not any("engine" in each for each in launches.messages(run_id))
    assert launches.launcher.check_run_worker_health(launches.run(run_id)).status == WorkerStatus.RUNNING


def test_engine_that_died_takes_no_run_along(code: Path, tmp_path: Path) -> None:
    """The run goes on and can be terminated; later runs are launched by Dagster."""
    with launches_in(tmp_path) as launches:
        run_id, pid = launches.launch()
        launches.engine.kill()
        launches.engine.wait()
        assert launches.launcher.check_run_worker_health(launches.run(run_id)).status == WorkerStatus.RUNNING
        launch_by_dagster(launches, launches.create())
        launches.terminate(run_id)
        wait_for(lambda: not exists(pid))
