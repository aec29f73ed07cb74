"""The command `ads-pipeline dev`: serves Dagster's UI and daemon on this deployment, from any directory.

Dagster runs in processes of its own, because the command line does not import it.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Final, Never

import typer

from ads_pipeline.domain.errors import EngineRunFailed
from ads_pipeline.lake.storage.durable_files import atomic_write, create_empty_file, make_durable_directories
from ads_pipeline.operations.cli.local.dev_start import DagsterStart, report_start
from ads_pipeline.operations.cli.local.one_dev import claim_home, require_free_port, require_no_daemon
from ads_pipeline.operations.report.writing import report_path
from ads_pipeline.settings.environment import DAGSTER_SETTINGS, Settings, abbreviate_home
from ads_pipeline.spark.engine_address import HAS_UNIX_SOCKETS, LOCATION, MODULE

ENGINE: Final = "ads_pipeline.spark.engine.keeper"
KEEPER: Final = "ads_pipeline.operations.cli.local.dagster_keeper"
LOG: Final = "dev.log"
END_SIGNALS: Final = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
SHORT_QUEUE: Final = b"""
# Start queued runs within a second. Without it, the queue is read every five seconds.
run_coordinator:
  module: dagster.core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
"""


def serve(settings: Settings, environ: Mapping[str, str], *, host: str, port: int) -> None:
    """Run `dagster dev` until Ctrl-C or SIGTERM.

    Raises BadCommand where another one serves; nothing is started then. Raises EngineRunFailed when Dagster ends.
    """
    require_free_port(host, port)
    address = make_address(host, port)
    held = [claim_home(settings.home, address)]
    require_no_daemon(settings)
    environment = prepare_dagster(settings, environ)
    # With ADS_PIPELINE_LOG, somebody collects what this command prints.
    log = None if settings.log_format else settings.home / LOG
    typer.echo(f"Starting Dagster on {abbreviate_home(settings.home)}" + (f". Its log: {log}" if log else ""))
    sys.stdout.flush()
    end_by_interrupt()
    with open_log(log) as output:
        held.append(start_engine(environment, output))
        dagster = start_dagster(host, port, environment, output, [each for each in held if each is not None])
    try:
        follow(dagster, DagsterStart(host, port), address, settings)
        dagster.wait()
    except KeyboardInterrupt:
        stop(dagster)
        return
    cause = read_last_line(log) if log else f"it ended with exit code {dagster.returncode}"
    raise EngineRunFailed("Dagster", cause, str(log or "above"))


def make_address(host: str, port: int) -> str:
    """The URL of the UI. An IPv6 address stands in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def follow(dagster: "subprocess.Popen[bytes]", start: DagsterStart, address: str, settings: Settings) -> None:
    """Print a line for each step of the start, and the address as the last thing."""
    for line in report_start(start.find_waiting, lambda: dagster.poll() is None):
        typer.echo(line)
        sys.stdout.flush()
    if dagster.poll() is not None:
        return
    if problem := start.find_load_error():
        typer.echo(f"The code location did not load: {problem}")
    if (report := report_path(settings).absolute()).exists():
        typer.echo(f"The report of all days: {report.as_uri()}")
    typer.echo(f"Dagster's UI: {address} (Ctrl-C stops it)")
    sys.stdout.flush()


def stop(dagster: "subprocess.Popen[bytes]") -> None:
    """End Dagster and wait for it. A second Ctrl-C ends the wait; Dagster still ends by itself."""
    if dagster.stdin is not None:
        dagster.stdin.close()
    typer.echo("\nStopping Dagster …", nl=False)
    sys.stdout.flush()
    dagster.wait()
    typer.echo(" stopped")


def end_by_interrupt() -> None:
    """Let each signal that ends a program raise KeyboardInterrupt. A background job ignores SIGINT until then."""

    def interrupt(_number: int, _frame: FrameType | None) -> Never:
        raise KeyboardInterrupt

    for name in END_SIGNALS:
        with suppress(AttributeError):
            signal.signal(getattr(signal, name), interrupt)


@contextmanager
def open_log(path: Path | None) -> "Iterator[IO[bytes] | None]":
    """The new, empty log of Dagster's processes. That of the last start gets another name. None is for no file."""
    if path is None:
        yield None
        return
    with suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.1"))
    create_empty_file(path)
    with path.open("ab") as file:
        yield file


def read_last_line(log: Path) -> str:
    """The last line of a log: the error with which its process ended."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a message"


def start_dagster(
    host: str, port: int, environment: Mapping[str, str], output: "IO[bytes] | None", held: Collection[int]
) -> "subprocess.Popen[bytes]":
    """Start Dagster, which ends when the standard input of the process closes, also because this one was killed.

    Its output is that of the services, and warnings. The held file descriptors are open until it has ended.
    """
    # Dagster recommends another program, which this package does not install.
    dagster = [
        sys.executable,
        "-W",
        "ignore:Function `dev_command`",
        "-m",
        "dagster",
        "dev",
        "--log-level",
        "warning",
    ]
    return subprocess.Popen(  # noqa: S603 - no shell, and constant but for host and port
        [sys.executable, "-m", KEEPER, *dagster, "-m", LOCATION, "--host", host, "--port", str(port)],
        env=dict(environment),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        pass_fds=tuple(held) if HAS_UNIX_SOCKETS else (),
        start_new_session=True,  # Ctrl-C reaches this process only, which ends the others in order
    )


def start_engine(environment: Mapping[str, str], output: "IO[bytes] | None" = None) -> int | None:
    """Start the engine, which ends when the returned file descriptor is closed in every process that has it.

    The engine reads a pipe whose other end is that descriptor. The pipe closes even when the processes are killed.
    """
    if not HAS_UNIX_SOCKETS:
        return None
    reading, writing = os.pipe()
    subprocess.Popen(  # noqa: S603 - no shell, and constant
        [sys.executable, "-m", ENGINE, MODULE, LOCATION],
        env=dict(environment),
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=output,
        start_new_session=True,  # Ctrl-C lets Dagster end first
    )
    os.close(reading)
    os.set_inheritable(writing, True)
    return writing


def prepare_dagster(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for Dagster. Without a DAGSTER_HOME of the user, the home gets Dagster's configuration once."""
    if environ.get("DAGSTER_HOME"):
        return dict(environ)
    directory = settings.home / "dagster"
    make_durable_directories(directory)
    with suppress(FileExistsError), atomic_write(directory / DAGSTER_SETTINGS.name, replace=False) as file:
        file.write(DAGSTER_SETTINGS.read_bytes() + SHORT_QUEUE)
    return {**environ, "DAGSTER_HOME": str(directory)}
