"""The machine of a simulated deployment: one process that evaluates sensors, executes runs and runs commands.

    python -m ads_pipeline_tests.healing.worker

It reads one request a line from standard input and writes one answer a line. `world` starts it, moves its clock and
kills it. What Dagster's daemon would do is done here in one process with one warm Spark session: sensors and
schedules are evaluated, and the runs that they request are executed one after the other.
"""

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg
import grpc._channel
import grpc._common
import grpc._server
from dagster._utils.schedules import cron_string_iterator
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from ads_pipeline.operations.cli.main import app
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline_tests.healing import simulated_clock
from ads_pipeline_tests.healing.interruptions import CURSORS, Interruptions
from ads_pipeline_tests.healing.surfaces import read_advice, read_surfaces
from ads_pipeline_tests.orchestration.builders import open_instance

SENSORS: Final = (
    "run_completion",
    "days_due",
    "retries_due",
    "raw_arrivals",
    "states_to_load",
    "readable_changes",
    "report_changes",
    "notifications",
)
SENSOR_RESOURCES: Final = ("ledger_engine", "sensor_resources", "control_actions")
SECONDS_BETWEEN_HOURLY_JOBS: Final = (
    12 * 3600 - 60
)  # hourly ones run less often here, because each run takes a second
MAX_ROUNDS: Final = 12  # of ticks in one step; sensors that request runs for longer do not come to rest
QUIET: Final = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


@dataclass
class Worker:
    """The open code location, and what went wrong since the last request."""

    settings: Settings
    defs: dg.Definitions
    instance: dg.DagsterInstance
    interruptions: Interruptions
    problems: list[str] = field(default_factory=list)
    slowest_tick: float = 0.0
    runs: int = 0
    _last_runs: dict[str, float] = field(default_factory=dict)

    def answer(self, request: Mapping[str, Any]) -> Any:
        name, arguments = request["do"], request.get("with", {})
        return getattr(self, name)(**arguments)

    def move(self, *, offset: float) -> None:
        simulated_clock.move(offset)

    def step(self, *, since: float, disk_is_full: bool) -> dict[str, Any]:
        """Do what the daemon does in the time since then: schedules that fell due, and the sensors."""
        self.problems, self.slowest_tick, self.runs = [], 0.0, 0
        self.interruptions.fill_disk(is_full=disk_is_full)
        try:
            self._work(since)
        finally:
            self.interruptions.fill_disk(is_full=False)
        return {
            "problems": self.problems,
            "slowest_tick": self.slowest_tick,
            "runs": self.runs,
            "disk_errors": self.interruptions.disk_errors,
        }

    def run_hourly_jobs(self) -> None:
        for schedule in self._repository.schedule_defs:
            if str(schedule.cron_schedule).endswith(" * * * *"):
                self._run_schedule(schedule, datetime.now(UTC))
        self._tick("run_completion")

    def _work(self, since: float) -> None:
        for schedule, at in self._find_due_schedules(since):
            self._run_schedule(schedule, at)
        rounds = 0
        while self._tick_all():
            rounds += 1
            if rounds == MAX_ROUNDS:
                self.problems.append("the sensors do not come to rest")
                break

    def command(self, *, arguments: list[str]) -> dict[str, Any]:
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
        unexpected = done.exception if not isinstance(done.exception, SystemExit) else None
        shown = "".join(traceback.format_exception(unexpected)) if unexpected else ""
        return {"code": 70 if unexpected else done.exit_code, "out": done.stdout, "err": done.stderr + shown}

    def advice(self) -> dict[str, Any]:
        return asdict(read_advice())

    def surfaces(self) -> dict[str, Any]:
        return asdict(read_surfaces(self.settings))

    def die_after(self, *, operations: int) -> None:
        self.interruptions.die_after(operations)

    def open_runs(self) -> list[str]:
        """Dagster's runs that are not finished."""
        return [f"{run.run_id} {run.status}" for run in self.instance.get_runs() if not run.is_finished]

    @property
    def _repository(self) -> dg.RepositoryDefinition:
        return self.defs.get_repository_def()

    @property
    def _sensor_resources(self) -> dict[str, Any]:
        """The resources of sensors. Those of runs cannot be opened here."""
        return {name: self._repository.get_top_level_resources()[name] for name in SENSOR_RESOURCES}

    def _find_due_schedules(self, since: float) -> Iterator[tuple[dg.ScheduleDefinition, datetime]]:
        now, due = time.time(), []
        for schedule in self._repository.schedule_defs:
            at = next(cron_string_iterator(since, str(schedule.cron_schedule), "UTC"), None)
            is_rare = now - self._last_runs.get(schedule.name, 0.0) >= SECONDS_BETWEEN_HOURLY_JOBS
            if at is not None and at.timestamp() <= now and is_rare:
                self._last_runs[schedule.name] = now
                due.append((at, schedule))
        for at, schedule in sorted(due, key=lambda each: each[0]):
            yield schedule, at

    def _run_schedule(self, schedule: dg.ScheduleDefinition, at: datetime) -> None:
        try:
            with dg.build_schedule_context(
                instance=self.instance, scheduled_execution_time=at, repository_def=self._repository
            ) as context:
                requests = schedule.evaluate_tick(context).run_requests or ()
        except Exception as error:  # noqa: BLE001 - as the daemon does; the tick failed
            self.problems.append(f"tick of {schedule.name} failed: {_first_cause(error)}")
            return
        for request in requests:
            self._execute(request, schedule.name, job_name=request.job_name or schedule.job_name)

    def _tick_all(self) -> bool:
        """Evaluate each sensor once. Whether one of them requested a run or added customers."""
        requested = [self._tick(name) for name in SENSORS]
        return any(requested)

    def _tick(self, name: str) -> bool:
        sensor, cursors = self._repository.get_sensor_def(name), self._read_cursors()
        started = time.monotonic()
        try:
            with ExitStack() as stack:
                context = stack.enter_context(
                    dg.build_sensor_context(
                        instance=self.instance,
                        cursor=cursors.get(name),
                        repository_def=self._repository,
                        sensor_name=name,
                        resources=self._sensor_resources,
                    )
                )
                found = sensor.evaluate_tick(context)
        except Exception as error:  # noqa: BLE001 - as the daemon does; the tick failed
            self.problems.append(f"tick of {name} failed: {_first_cause(error)}")
            return False
        finally:
            self.slowest_tick = max(self.slowest_tick, time.monotonic() - started)
        if found.cursor is not None:
            self._write_cursors(cursors | {name: found.cursor})
        for added in found.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(str(added.partitions_def_name), list(added.partition_keys))
        requests = [each for each in found.run_requests or () if self._is_new(each, name)]
        executed = [self._execute(each, name, job_name=_find_job(sensor)) for each in requests]
        return bool(executed or found.dynamic_partitions_requests)

    def _is_new(self, request: dg.RunRequest, sensor: str) -> bool:
        if not request.run_key:
            return True
        tags = {"dagster/run_key": request.run_key, "dagster/sensor_name": sensor}
        return not self.instance.get_runs(dg.RunsFilter(tags=tags), limit=1)

    def _execute(self, request: dg.RunRequest, requested_by: str, job_name: str | None = None) -> bool:
        name = request.job_name or job_name
        is_whole = not request.asset_selection and not request.asset_check_keys
        if is_whole and name in {job.name for job in self._repository.get_all_jobs()}:
            job = self.defs.resolve_job_def(str(name))
        else:
            job = self.defs.resolve_implicit_global_asset_job_def().get_subset(
                asset_selection=set(request.asset_selection or ()) or None,
                asset_check_selection=set(request.asset_check_keys) if request.asset_check_keys else None,
            )
        key = {"dagster/run_key": request.run_key} if request.run_key else {}
        self.runs += 1
        try:
            result = job.execute_in_process(
                instance=self.instance,
                tags={**request.tags, **key, "dagster/sensor_name": requested_by},
                run_config={**request.run_config, **QUIET},
                raise_on_error=False,
            )
        except Exception as error:  # noqa: BLE001 - Dagster could not store the run or its result
            self.problems.append(f"run for {requested_by} failed: {_first_cause(error)}")
            return True
        if not result.success:
            failures = [_describe(event) for event in result.all_events if event.is_failure]
            self.problems.append(f"run for {requested_by} failed: {failures[:1]}")
        return True

    @property
    def _cursors(self) -> Path:
        return self.settings.home / f"{CURSORS}.json"

    def _read_cursors(self) -> dict[str, str]:
        return json.loads(self._cursors.read_text()) if self._cursors.exists() else {}

    def _write_cursors(self, cursors: Mapping[str, str]) -> None:
        unfinished = self._cursors.with_suffix(".new")
        unfinished.write_text(json.dumps(cursors))
        unfinished.rename(self._cursors)


def _find_job(sensor: dg.SensorDefinition) -> str | None:
    """The job of a sensor with one target; its requests may name neither a job nor assets."""
    return sensor.job_name if len(sensor.targets) == 1 else None


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[:400]}"


def _describe(event: Any) -> str:
    error = getattr(event.event_specific_data, "error", None)
    while error is not None and error.cause is not None:
        error = error.cause
    return f"{event.step_key}: {(error.message if error else event.message)[:400]}"


def _start_spark() -> None:
    """A small local session, which stays warm for all runs and commands of the process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in options.items():
        builder = builder.config(name, value)
    builder.getOrCreate().sparkContext.setLogLevel("OFF")


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    simulated_clock.keep_machine_time(grpc._channel, grpc._common, grpc._server)
    settings = read_settings(os.environ)
    _start_spark()
    with open_instance(settings.home) as instance:
        interruptions = Interruptions(settings.home)
        worker = Worker(settings, build_location(settings), instance, interruptions)
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            try:
                answer = {"result": worker.answer(json.loads(line))}
            except Exception:  # noqa: BLE001 - the test fails with it
                answer = {"failed": traceback.format_exc()}
            print(json.dumps(answer, default=str), file=answers)


if __name__ == "__main__":
    main()
