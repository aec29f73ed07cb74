"""The schema: created by the migration, and equal to the tables that the statements use."""

import re
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import date
from pathlib import Path
from threading import Barrier

import psycopg2
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.errors import LedgerOutdated, LedgerUnavailable
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.schema.texts import read_text
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import metadata
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline_tests.example_counts import examples
from ads_pipeline_tests.ledger.builders import accepted_runs, key

STATE_COLUMNS = [
    "source",
    "customer_id",
    "query_name",
    "logical_date",
    "status",
    "current_run_id",
    "schema_version",
    "record_count",
    "updated_at",
    "error_message",
    "attempt_count",
]


def test_migration_creates_the_declared_tables(backdoor: sa.Engine) -> None:
    """The migration creates exactly the tables, columns and primary keys that the statements use."""
    inspector = sa.inspect(backdoor)
    assert set(inspector.get_table_names()) == {*metadata.tables, database.REVISION_TABLE}
    for table in metadata.sorted_tables:
        assert [column["name"] for column in inspector.get_columns(table.name)] == [c.name for c in table.c]
        assert inspector.get_pk_constraint(table.name)["constrained_columns"] == [c.name for c in table.primary_key]


def describe_sqlite(connection: sa.Connection) -> list[tuple[str, str]]:
    """Every object of the database, with its statement."""
    rows = connection.exec_driver_sql("SELECT name, coalesce(sql, '') FROM sqlite_master ORDER BY type, name")
    return [(name, text) for name, text in rows if database.REVISION_TABLE not in name]


def describe_postgres(connection: sa.Connection) -> list[tuple[str, str]]:
    """Every column, constraint, index, trigger and function of the schema, with its definition."""
    rows = connection.exec_driver_sql(f"""
        SELECT c.relname || '.' || a.attname, concat(format_type(a.atttypid, a.atttypmod), a.attnotnull, c.reloptions,
            a.attcollation::regcollation, pg_get_expr(d.adbin, d.adrelid))
        FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE c.relnamespace = '{database.SCHEMA}'::regnamespace AND a.attnum > 0
        UNION ALL SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = '{database.SCHEMA}'::regnamespace
        UNION ALL SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = '{database.SCHEMA}'
        UNION ALL SELECT tgname, pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger
        JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = '{database.SCHEMA}'::regnamespace
            AND NOT tgisinternal
        UNION ALL SELECT proname, pg_get_functiondef(oid) FROM pg_proc
        WHERE pronamespace = '{database.SCHEMA}'::regnamespace
        ORDER BY 1, 2
        """)
    return [(name, text) for name, text in rows if database.REVISION_TABLE not in name]


def describe(url: str) -> list[tuple[str, str]]:
    engine = database.open_engine(url)
    found = database.transact(engine, describe_sqlite if engine.dialect.name == "sqlite" else describe_postgres)
    engine.dispose()
    return found


def test_sqlite_text_is_what_the_migration_makes(sqlite_url: str, tmp_path: Path) -> None:
    """The text, executed as it stands, makes the tables, keys, checks, indexes and triggers of a migrated ledger."""
    with closing(sqlite3.connect(tmp_path / "text.db")) as made:
        made.executescript(read_text("sqlite"))
    found = describe(sqlite_url)
    assert found == describe(f"sqlite:///{tmp_path / 'text.db'}")
    assert {name for name, _sql in found} > metadata.tables.keys()


def test_postgres_text_is_what_the_migration_makes(postgres_url: str, unmigrated_postgres_url: str) -> None:
    """The text, executed as it stands, makes the columns, constraints, indexes and triggers of a migrated ledger."""
    plain = sa.make_url(unmigrated_postgres_url).set(drivername="postgresql")
    with closing(psycopg2.connect(plain.render_as_string(hide_password=False))) as made, made.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {database.SCHEMA}; SET search_path TO {database.SCHEMA}")
        cursor.execute(read_text("postgresql"))
        made.commit()
    found = describe(postgres_url)
    assert found == describe(unmigrated_postgres_url)
    assert len(found) > 200


def test_both_texts_declare_the_same_tables() -> None:
    """Tables, columns, indexes and named constraints are the same in both texts."""
    declared = re.compile(r"CREATE (?:TABLE|INDEX) \w+|CONSTRAINT \w+|^    [a-z]\w+ (?=[A-Z])", re.MULTILINE)
    sqlite, postgres = (Counter(declared.findall(read_text(dialect))) for dialect in ("sqlite", "postgresql"))
    del sqlite["CONSTRAINT valid_date"]  # Postgres has a type for it
    assert sqlite == postgres


def test_partition_state_has_the_specified_columns(backdoor: sa.Engine) -> None:
    """The table has exactly the eleven columns of the specification, in its order."""
    columns = sa.inspect(backdoor).get_columns("partition_state")
    assert [column["name"] for column in columns] == STATE_COLUMNS
    assert columns[-1]["default"] == "0"


def test_every_sqlite_table_is_strict(sqlite_url: str) -> None:
    """SQLite would accept text in number columns otherwise."""
    engine = database.open_engine(sqlite_url)
    listed = database.transact(engine, lambda c: c.exec_driver_sql("PRAGMA table_list").mappings().all())
    strict = {row["name"]: row["strict"] for row in listed}
    assert all(strict[name] == 1 for name in metadata.tables)
    engine.dispose()


def test_writer_creates_a_missing_ledger(tmp_path: Path) -> None:
    """The first open creates folder, file and schema. The second open uses them."""
    url = f"sqlite:///{tmp_path / 'new' / 'home' / 'ledger.db'}"
    with Ledger.opened(url) as ledger:
        accepted_runs(ledger, [key()])
    with LedgerReader.opened(url) as reader:
        assert reader.states.get(key()).current_run_id == "r1"


@pytest.mark.invariant("X5")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_concurrent_writers_create_one_ledger(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Of several writers on an empty database, one creates the schema, and all can write."""
    sqlite_url = f"sqlite:///{tmp_path / 'ledger.db'}"
    url = sqlite_url if kind == "sqlite" else request.getfixturevalue("unmigrated_postgres_url")
    barrier = Barrier(6)

    def open_and_write(writer: int) -> None:
        barrier.wait(300)
        with Ledger.opened(url) as ledger:
            accepted_runs(ledger, [key(str(writer))])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(open_and_write, range(6)))
    with LedgerReader.opened(url) as reader:
        assert reader.states.count_by_status(StateFilter())[Status.SUCCESS] == 6


def test_reader_creates_nothing(tmp_path: Path) -> None:
    """Opening a missing ledger for reading fails and creates no file."""
    with pytest.raises(LedgerUnavailable), LedgerReader.opened(f"sqlite:///{tmp_path / 'ledger.db'}"):
        pytest.fail("opened a missing ledger")
    assert list(tmp_path.iterdir()) == []


def test_other_revision_is_refused(url: str, backdoor: sa.Engine) -> None:
    """Opening a ledger of another revision fails and does not migrate it."""
    database.transact(
        backdoor, lambda c: c.exec_driver_sql(f"UPDATE {database.REVISION_TABLE} SET version_num = '9999'")
    )
    for kind in (Ledger, LedgerReader):
        with pytest.raises(LedgerOutdated, match="revision 9999, this release needs 0001"), kind.opened(url):
            pytest.fail("opened a ledger of another release")


@pytest.mark.invariant("X5")
def test_migrating_again_changes_nothing(ledger: Ledger, backdoor: sa.Engine) -> None:
    """A migration to the present revision keeps every row."""
    accepted_runs(ledger, [key()])
    before = ledger.states.get(key()), ledger.runs.attempts(key())
    database.migrate(backdoor)
    assert (ledger.states.get(key()), ledger.runs.attempts(key())) == before


@pytest.mark.invariant("S20")
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/Sao_Paulo"])
def test_logical_date_does_not_depend_on_the_time_zone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    """A logical date is read as it was written, in every zone of the machine."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        _check_days(ledger)
    finally:
        monkeypatch.undo()
        time.tzset()


def _check_days(ledger: Ledger) -> None:
    @settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.dates(date(1000, 1, 1)), min_size=1, max_size=5, unique=True))
    def check(days: list[date]) -> None:
        keys = [PartitionKey(source="google_ads", customer_id="1", query_name="q", logical_date=day) for day in days]
        ledger.registrations.insert_pending(keys)
        states = ledger.states.get_many(keys)
        assert [state.key for state in states.values()] == keys
        assert all(state.updated_at is not None for state in states.values())

    check()
