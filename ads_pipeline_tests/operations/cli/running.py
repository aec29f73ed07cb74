"""Runs the command line in this process or as a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ads_pipeline.demo.made_up_reports import Demo
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.operations.cli.main import app
from ads_pipeline.settings.environment import read_settings

UNTIL = date(2026, 3, 9)
WEEK = ("--since", "2026-03-02", "--until", "2026-03-08")
# A shell that starts the tests in the background lets them ignore SIGINT, and processes inherit that.
MAIN_SCRIPT = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from ads_pipeline.operations.cli.main import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """The command line of one home, with extra environment variables."""

    home: Path
    more: Mapping[str, str] = field(default_factory=dict)

    def run(self, *arguments: str) -> CommandResult:
        """Run the command in this process. Unexpected exceptions reach the test."""
        environ = {"ADS_PIPELINE_HOME": str(self.home), "COLUMNS": "80"} | dict(self.more)
        done = CliRunner().invoke(app, arguments, env=environ)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return CommandResult(code=done.exit_code, out=done.stdout, err=done.stderr)

    def fold_events(self) -> None:
        """Bring the snapshots of all runs up to date, as the sensor `run_completion` does."""
        settings = read_settings({"ADS_PIPELINE_HOME": str(self.home)} | dict(self.more))
        with Ledger.opened(settings.database_url, create=False) as ledger:
            Follower(ledger.events).catch_up()

    def process(self, *arguments: str, **environ: str) -> CommandResult:
        """Run the command as a process, without a terminal and without the caller's settings."""
        done = subprocess.run(
            [sys.executable, "-c", MAIN_SCRIPT, *arguments],
            env=self.environ(**environ),
            capture_output=True,
            timeout=600,
            check=False,
        )
        return CommandResult(code=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())

    def environ(self, **more: str) -> dict[str, str]:
        kept = ("PATH", "PYTHONPATH", "JAVA_HOME", "VIRTUAL_ENV", "SPARK_SUBMIT_OPTS")
        own = {name: os.environ[name] for name in kept if name in os.environ}
        return own | {"ADS_PIPELINE_HOME": str(self.home), "LC_ALL": "C.UTF-8"} | dict(self.more) | more


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCommandLine(CommandLine):
    """The command line of a home that holds the loaded demo data."""

    demo: Demo
