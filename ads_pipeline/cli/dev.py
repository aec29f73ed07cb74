"""The command `ads-pipeline dev`: serves Dagster's UI and daemon on this deployment, from any directory.

Dagster runs in a process of its own, because the command line does not import it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import typer

from ads_pipeline.cli.one_dev import claim_home, require_free_port, require_no_daemon
from ads_pipeline.engine.address import HAS_UNIX_SOCKETS, needs_engine
from ads_pipeline.report.writing import report_path
from ads_pipeline.settings import DAGSTER_SETTINGS, Settings
from ads_pipeline.storage.durable_files import atomic_write, make_durable_directories

LOCATION: Final = "ads_pipeline.definitions"
ENGINE: Final = "ads_pipeline.engine.keeper"
SHORT_QUEUE: Final = b"""
# Start queued runs within a second. Without it, the queue is read every five seconds.
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
"""
_HELD: Final[list[object]] = []  # the pipe to the engine and the lock of the home, until the process is replaced


def serve(settings: Settings, environ: Mapping[str, str], *, host: str, port: int) -> None:
    """Replace this process by `dagster dev`. Raises BadCommand where another one serves; nothing is started then."""
    require_free_port(host, port)
    _HELD.append(claim_home(settings.home, f"http://{host}:{port}"))
    require_no_daemon(settings)
    environment = prepare_dagster(settings, environ)
    start_engine(settings, environment)
    typer.echo(f"Dagster's UI: http://{host}:{port}")
    typer.echo(f"Its configuration: {Path(environment['DAGSTER_HOME']) / DAGSTER_SETTINGS.name}")
    report = report_path(settings).absolute().as_uri()
    typer.echo(f"The report of all days: {report} (the asset report in Dagster renews it)")
    sys.stdout.flush()
    # Dagster recommends another program, which this package does not install.
    quiet = ["-W", "ignore:Function `dev_command`"]
    command = [sys.executable, *quiet, "-m", "dagster", "dev", "-m", LOCATION, "--host", host, "--port", str(port)]
    stop_ignoring_interrupts()
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell, and constant but for host and port


def stop_ignoring_interrupts() -> None:
    """Let SIGTERM end Dagster. A shell starts a background job with SIGINT ignored, and Dagster treats both alike."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start_engine(settings: Settings, environment: Mapping[str, str]) -> None:
    """Start the engine, which ends with this process, and with the program that replaces it.

    The engine reads a pipe whose other end only this process has. The pipe closes even when the process is killed.
    """
    if not (HAS_UNIX_SOCKETS and needs_engine(settings.spark)):
        return
    engine = subprocess.Popen(  # noqa: S603 - no shell, and constant
        [sys.executable, "-m", ENGINE],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C lets Dagster end its runs first
    )
    stdin: Any = engine.stdin
    os.set_inheritable(stdin.fileno(), True)
    _HELD.append(stdin)


def prepare_dagster(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Dagster. Without a DAGSTER_HOME of the user, the home gets Dagster's configuration once."""
    if environ.get("DAGSTER_HOME"):
        return dict(environ)
    directory = settings.home / "dagster"
    make_durable_directories(directory)
    with suppress(FileExistsError), atomic_write(directory / DAGSTER_SETTINGS.name, replace=False) as file:
        file.write(DAGSTER_SETTINGS.read_bytes() + SHORT_QUEUE)
    return {**environ, "DAGSTER_HOME": str(directory)}
