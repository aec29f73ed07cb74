"""The named statements are SQL that a user of Postgres can read, plan and execute as it stands."""

import pkgutil
from collections.abc import Iterator
from importlib import import_module

import ads_pipeline.ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.statements import POSTGRES_TYPES, Columns, Statement


def find_statements() -> dict[str, Statement]:
    """Every named statement of the ledger, by name."""
    found = dict[str, Statement]()
    for module in pkgutil.walk_packages(ads_pipeline.ledger.__path__, "ads_pipeline.ledger."):
        if ".migrations." not in module.name:
            for value in vars(import_module(module.name)).values():
                found |= {each.name: each for each in _statements_in(value)}
    return found


def _statements_in(value: object) -> Iterator[Statement]:
    if isinstance(value, Statement):
        yield value
    elif isinstance(value, tuple):
        yield from (each for part in value for each in _statements_in(part))


STATEMENTS = find_statements()


def test_statements_are_sql_of_postgres(postgres_url: str) -> None:
    """Postgres plans each text without a change, where `given` is a table with the rows."""
    engine = database.open_engine(postgres_url)
    for statement in STATEMENTS.values():
        with database.open_transaction(engine) as connection:
            connection.exec_driver_sql(f"CREATE TEMPORARY TABLE given ({_declare(statement.given)}) ON COMMIT DROP")
            assert connection.exec_driver_sql(f"EXPLAIN {statement.text}").all(), statement.name
    engine.dispose()
    assert len(STATEMENTS) > 50


def _declare(columns: Columns) -> str:
    return ", ".join(f"{name} {POSTGRES_TYPES.get(kind, kind)}" for name, kind in columns.items())
