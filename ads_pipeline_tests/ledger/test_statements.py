"""The named statements are SQL that a user of Postgres can read, plan and execute as it stands."""

import pkgutil
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from zoneinfo import ZoneInfo

import sqlalchemy as sa

import ads_pipeline.ledger
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import instant_text
from ads_pipeline.ledger.sql.statements import POSTGRES_TYPES, Columns, Statement
from ads_pipeline.ledger.state.verdict_statements import READ_VERDICT_ROWS, VerdictRow
from ads_pipeline.ledger.write_steps.partition_status import FOLDED_COLUMNS
from ads_pipeline_tests.ledger.builders import acceptance, key, record_verdict, registered_runs


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


def test_verdict_and_all_that_follows_from_it_are_one_message(postgres_url: str) -> None:
    """Postgres gets the lock with all reads, then every row with its event. Each message more costs as much again."""
    with Ledger.opened(postgres_url) as ledger, counted_messages(ledger.engine) as messages:
        first, second = registered_runs(ledger, key(), "r1", "r2")
        record_verdict(ledger, acceptance(first))  # prepares the statements
        messages.clear()
        record_verdict(ledger, acceptance(second))
    read, written = messages
    assert "read_verdict_rows" in read
    assert re.findall(r"EXECUTE (\w+)", written) == [
        "insert_attempts",
        "update_states",
        "advance_heads",
        "insert_events",
        "upsert_partition_status",
    ]


def test_verdict_row_has_the_columns_of_its_statement(ledger: Ledger) -> None:
    """They are decoded by position."""
    with ledger.engine.begin() as connection:
        selected = tuple(READ_VERDICT_ROWS.execute(connection, []).keys())
    assert selected == (*VerdictRow._fields[:-1], *FOLDED_COLUMNS)


def test_instants_of_a_repeated_hour_have_different_texts() -> None:
    """In autumn an hour of the wall clock comes twice. Python compares the two by wall clock and finds them equal."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    texts = [instant_text(each) for each in (first, first.replace(fold=1), first)]
    assert texts == ["2026-10-25T00:30:00.000000Z", "2026-10-25T01:30:00.000000Z", "2026-10-25T00:30:00.000000Z"]


@contextmanager
def counted_messages(engine: sa.Engine) -> Iterator[list[str]]:
    """Collect the texts that are sent to the database while the block runs."""
    texts = list[str]()

    def note(_connection: object, _cursor: object, text: str, *_more: object) -> None:
        texts.append(text)

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield texts
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def _declare(columns: Columns) -> str:
    return ", ".join(f"{name} {POSTGRES_TYPES.get(kind, kind)}" for name, kind in columns.items())
