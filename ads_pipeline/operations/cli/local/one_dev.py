"""Refuses a second `ads-pipeline dev`: on the same port, on the same home, or beside another daemon of one database.

Two daemons on one database start each run twice. Dagster then reports the run that works as failed.
"""

import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import typer

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.storage.durable_files import make_durable_directories
from ads_pipeline.operations.doctor import dagster_records
from ads_pipeline.settings.environment import Settings

if sys.platform != "win32":  # it has no such locks; there, only the port is checked
    import fcntl

LOCK: Final = "dev.lock"
HEARTBEAT_INTERVAL: Final = timedelta(seconds=45)  # Dagster's daemon sends one every 30 s
SECONDS_BETWEEN_LOOKS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that holds the lock of a home."""

    pid: int
    host: str
    since: str
    address: str

    def __str__(self) -> str:
        return printable(f"process {self.pid} on {self.host} serves it at {self.address} since {self.since}")


def require_free_port(host: str, port: int) -> None:
    """Raise BadCommand when Dagster's UI could not listen on this port."""
    try:
        for family, kind, protocol, _name, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the UI does
                probe.bind(address)
    except OSError as error:
        problem = f"the UI cannot listen on {printable(host)}, port {port}: {error.strerror}"
        raise BadCommand(f"{problem}. Name another port: ads-pipeline dev --port {port % 65_535 + 1}") from error


def claim_home(home: Path, address: str) -> int | None:
    """Lock the home for this process and the program that replaces it. Raises BadCommand when another one has it.

    Return the file descriptor that holds the lock, which the end of the process releases.
    """
    if sys.platform == "win32":
        return None
    make_durable_directories(home / "dagster")
    lock = os.open(home / "dagster" / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = _read_holder(lock)
        os.close(lock)
        end = f"kill {holder.pid}" if holder else "end the other ads-pipeline dev"
        who = holder or "another ads-pipeline dev serves it"
        raise BadCommand(f"{home} is in use: {who}. Open that page, or end it first: {end}") from error
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}Z"
    document = {"pid": os.getpid(), "host": socket.gethostname(), "since": since, "address": address}
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(document).encode(), 0)
    os.set_inheritable(lock, True)
    return lock


def _read_holder(lock: int) -> Holder | None:
    with suppress(ValueError, TypeError):
        found: Any = json.loads(os.pread(lock, 4_096, 0))
        return Holder(**found)
    return None


def require_no_daemon(settings: Settings) -> None:
    """Raise BadCommand when another daemon of Dagster works on the database of this deployment.

    A daemon whose last heartbeat is recent may have ended since. So this waits for its next heartbeat.
    """
    if settings.postgres_url is None or not dagster_records.has_records(settings.home, settings.postgres_url):
        return
    last = _read_heartbeat(settings)
    if last is None or datetime.now(UTC) - last > HEARTBEAT_INTERVAL:
        return
    seconds = HEARTBEAT_INTERVAL.total_seconds()
    typer.echo(
        f"A daemon of Dagster sent a heartbeat to this database at {last:%H:%M:%S}Z. "
        f"Waiting up to {seconds:g} s to see whether it still runs …"
    )
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(SECONDS_BETWEEN_LOOKS, seconds))
        if _read_heartbeat(settings) != last:
            raise BadCommand(
                "another daemon of Dagster works on this database, and two would start each run twice. "
                "End it first, or use another database. It runs on this machine or another one: "
                "ads-pipeline doctor shows its heartbeats"
            )


def _read_heartbeat(settings: Settings) -> datetime | None:
    """The time of the newest heartbeat of any daemon."""
    heartbeats = dagster_records.read_heartbeats(settings.home, settings.postgres_url)
    return heartbeats[0].at if heartbeats else None
