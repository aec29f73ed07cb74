"""SQLite's locks on the ledger's file, in a process that opens the ledger more than once."""

import subprocess
import sys

import pytest
import sqlalchemy as sa

from ads_pipeline.ledger.sql import database

EXECUTE = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall())"


@pytest.mark.invariant("S7")
def test_opening_the_ledger_again_keeps_the_locks_of_the_process(sqlite_url: str) -> None:
    """Without them, another process that closes the ledger takes itself for the last one: it removes the log that
    this process goes on to write to. Sensors open the ledger while others of the same process use it."""
    path = str(sa.make_url(sqlite_url).database)

    def execute_elsewhere(statement: str) -> str:
        command = [sys.executable, "-c", EXECUTE, path, statement]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    with database.open_checked_engine(sqlite_url) as first:
        with database.open_checked_engine(sqlite_url):
            pass
        execute_elsewhere("PRAGMA user_version = 7")
        database.transact(first, lambda connection: connection.exec_driver_sql("CREATE TABLE later AS SELECT 1"))
        assert execute_elsewhere("SELECT * FROM later") == "[(1,)]"
