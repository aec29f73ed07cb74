"""Reads the texts of the schema. Only a migration executes them; `ledger_tables` reads the columns from one."""

import sqlite3
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final

FILES: Final[Mapping[str, str]] = {"sqlite": "sqlite.sql", "postgresql": "postgres.sql"}


def read_text(dialect: str) -> str:
    """Return the schema of a database as SQL."""
    return files(__package__).joinpath(FILES[dialect]).read_text(encoding="utf-8")


def read_statements(dialect: str) -> Iterator[str]:
    """Yield the text in parts that the driver executes. Postgres executes all of it at once, SQLite one statement."""
    if dialect == "postgresql":
        yield read_text(dialect).replace("%", "%%")  # the driver's sign of a parameter
        return
    statement = ""
    for line in read_text(dialect).splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
