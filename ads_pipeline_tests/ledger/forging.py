"""Forges rows that the triggers of the database refuse, for tests of what finds and repairs such rows."""

import sqlalchemy as sa

from ads_pipeline.ledger.sql import database


def forge(engine: sa.Engine, *statements: str) -> None:
    """Execute the statements without triggers, in one transaction. Postgres needs a superuser for that."""
    database.transact(engine, lambda connection: _forge(connection, statements))


def _forge(connection: sa.Connection, statements: tuple[str, ...]) -> None:
    triggers = []
    if connection.dialect.name == "sqlite":
        triggers = list(connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
    else:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
    for name, _ in triggers:
        connection.exec_driver_sql(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.exec_driver_sql(statement)
    for _, sql in triggers:
        connection.exec_driver_sql(sql)
