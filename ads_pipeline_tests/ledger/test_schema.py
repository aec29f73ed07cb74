"""The schema: created by the migration, and equal to the tables that the statements use."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from threading import Barrier

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.transitions import Status
from ads_pipeline.errors import LedgerOutdated, LedgerUnavailable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.tables import metadata
from ads_pipeline.ledger.values import StateFilter
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
