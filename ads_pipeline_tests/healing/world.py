"""A simulated deployment: its machine, its clock, the server of Google Ads, and the webhook of its operators."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from ads_pipeline.google_ads.loopback.loopback_process import LoopbackServer
from ads_pipeline.google_ads.loopback.scenarios import ListedAccount, Scenario
from ads_pipeline.settings.query_file import narrow_query_file
from ads_pipeline_tests.google_ads.builders import LOGIN
from ads_pipeline_tests.processes import PYTHON_PATH, ROOT
from ads_pipeline_tests.webhook_server import WebhookServer, running_server

START: Final = datetime(2025, 6, 2, 0, 30, tzinfo=UTC)
FIRST_DAY: Final = date(2025, 5, 30)
CUSTOMERS: Final = ("2000000004", "2000000007", "2000000008")
LEASE_SECONDS: Final = 1_800  # a wait moves the clock by minutes, in which no lease is renewed
QUERIES: Final = ("campaign_daily", "keyword_daily")
KEPT: Final = (
    "PATH",
    "JAVA_HOME",
    "VIRTUAL_ENV",
    "SPARK_SUBMIT_OPTS",
    "TMPDIR",
    "HOME",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)


class MachineDied(Exception):
    """The process of the machine was killed while it worked."""


@dataclass
class Machine:
    """The process that does all work. It starts when it is first asked."""

    environ: dict[str, str]
    log: Path
    process: "subprocess.Popen[str] | None" = None

    def ask(self, name: str, **arguments: Any) -> Any:
        """Raises MachineDied when the process is killed meanwhile."""
        process = self.process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"do": name, "with": arguments}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._forget()
            raise MachineDied(name) from None
        answer = self._read(process)
        if "failed" in answer:
            raise AssertionError(f"{name}: {answer['failed']}")
        return answer["result"]

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self._forget()

    def stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
            self.kill()

    def _start(self) -> "subprocess.Popen[str]":
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ads_pipeline_tests.healing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environ,
                cwd=ROOT,
            )
        self.process = process
        try:
            self._read(process)
        except MachineDied:
            raise AssertionError(f"the machine did not start: {self.log.read_text()[-2000:]}") from None
        return process

    def _read(self, process: "subprocess.Popen[str]") -> Any:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self._forget()
            raise MachineDied
        return json.loads(line)

    def _forget(self) -> None:
        process, self.process = self.process, None
        assert process is not None
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@dataclass
class World:
    """A deployment in simulated time. `now` is the time until which everything was simulated."""

    home: Path
    clock: Path
    google: LoopbackServer
    webhook: WebhookServer
    machine: Machine
    scenario: Scenario
    now: datetime = START
    clock_error: timedelta = timedelta(0)  # how far the machine's clock is ahead
    disk_is_full: bool = False
    disk_errors: int = 0
    problems: list[str] = field(default_factory=list)  # of ticks and runs, which may fail while faults last
    crashes: list[str] = field(default_factory=list)  # of commands, which may never have an internal error
    touched: set[str] = field(default_factory=set)  # days that may need a person, because of an act
    quieted: set[str] = field(default_factory=set)  # days that an act of an operator hid or acknowledged
    deaths: int = 0
    runs: int = 0
    slowest_tick: float = 0.0

    def advance(self, duration: timedelta) -> None:
        """Move the clock, then do what the daemon does in this time. A machine that is killed starts again."""
        since, self.now = self.now, self.now + duration
        self.set_clock()
        try:
            done = self.machine.ask("step", since=since.timestamp(), disk_is_full=self.disk_is_full)
        except MachineDied:
            self.deaths += 1
            return
        self.problems += [f"{self.now:%m-%d %H:%M} {each}" for each in done["problems"]]
        self.runs += done["runs"]
        self.disk_errors += done["disk_errors"]
        self.slowest_tick = max(self.slowest_tick, done["slowest_tick"])

    def set_clock(self) -> None:
        """Show the machine the simulated time, with the error of its clock."""
        offset = (self.now + self.clock_error).timestamp() - time.time()
        self.clock.write_text(repr(offset))
        if self.machine.process is not None:
            self.machine.ask("move", offset=offset)

    def die_after(self, operations: int) -> None:
        """Let the machine die after so many file operations."""
        self.machine.ask("die_after", operations=operations)

    def command(self, *arguments: str) -> dict[str, Any]:
        """Run a command on the machine, in its process."""
        result: dict[str, Any] = self.machine.ask("command", arguments=list(arguments))
        return result

    def answer(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.google.answer(scenario)


def usual_scenario() -> Scenario:
    """Every account can be fetched."""
    accounts = (
        ListedAccount(customer_id=LOGIN, level=0, manager=True),
        *(ListedAccount(customer_id=each) for each in CUSTOMERS),
    )
    return Scenario(accessible=(LOGIN,), clients={LOGIN: accounts})


@contextmanager
def simulated_world(folder: Path, google: LoopbackServer) -> Iterator[World]:
    """Open a world without any data. Its machine starts when it is first asked."""
    home = folder / "home"
    home.mkdir(parents=True)
    document = yaml.safe_load(narrow_query_file(FIRST_DAY, QUERIES))
    for query in document["queries"].values():
        del query["due_after_hours"]  # of the demo, in which each day is late until its report is complete
    (home / "google_apis.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    clock = folder / "clock"
    clock.write_text(repr(START.timestamp() - time.time()))
    google.reset()
    with running_server() as webhook:
        environ = {name: os.environ[name] for name in KEPT if name in os.environ} | {
            "PYTHONPATH": PYTHON_PATH,
            "SIMULATED_CLOCK": str(clock),
            "ADS_PIPELINE_HOME": str(home),
            "ADS_PIPELINE_SPARK": "local[2]",
            "ADS_PIPELINE_GOOGLE_ADS": str(google.configuration),
            "ADS_PIPELINE_WEBHOOK": webhook.url,
            "ADS_PIPELINE_LEASE_SECONDS": str(LEASE_SECONDS),
            "LC_ALL": "C.UTF-8",
        }
        machine = Machine(environ, folder / "machine.log")
        world = World(home, clock, google, webhook, machine, usual_scenario())
        google.answer(world.scenario)
        try:
            yield world
        finally:
            machine.stop()
