"""The constraints and triggers of the database, tested with plain SQL."""

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.transitions import Action
from ads_pipeline.errors import LedgerRefused, LedgerUnavailable
from ads_pipeline.ledger import database
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.tables import metadata
from ads_pipeline.ledger.values import Publication
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    key,
    registered_runs,
    rejection,
)

K = key()
KEY_CONDITION = "source = 'google_ads' AND customer_id = '1234567890'"
LATER = "'2030-01-01T00:00:00.000000Z'"
APPEND_ONLY = ("runs", "attempts", "load_records", "control_actions", "control_action_partitions")


@pytest.fixture
def filled_ledger(ledger: Ledger) -> Ledger:
    """A success from run r1, loaded, with a rejected r2; and a withdrawn partition."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    ledger.verdicts.record([acceptance(first), rejection(second)])
    ledger.loads.publish([Publication(run=first, table_version=0)])
    other = key("42")
    accepted_runs(ledger, [other])
    ledger.actions.execute(Action.WITHDRAW, [other], action_request())
    return ledger


def assert_refused(backdoor: sa.Engine, statement: str) -> None:
    """The database refuses the statement, and no row of the ledger changes."""
    before = read_all_tables(backdoor)
    with pytest.raises(LedgerRefused):
        database.transact(backdoor, lambda connection: connection.exec_driver_sql(statement))
    assert read_all_tables(backdoor) == before


def read_all_tables(backdoor: sa.Engine) -> dict[str, list[sa.Row[tuple[object, ...]]]]:
    def read(connection: sa.Connection) -> dict[str, list[sa.Row[tuple[object, ...]]]]:
        return {
            table.name: sorted(connection.execute(sa.select(table)).all(), key=repr)
            for table in metadata.sorted_tables
        }

    return database.transact(backdoor, read)


def update_sql(assignments: str) -> str:
    return f"UPDATE partition_state SET updated_at = {LATER}, {assignments} WHERE {KEY_CONDITION}"


def insert_sql(**values: str) -> str:
    row = {
        "source": "'google_ads'",
        "customer_id": "'7'",
        "query_name": "'q'",
        "logical_date": "'2026-02-01'",
        "status": "'pending'",
        "updated_at": LATER,
        "attempt_count": "0",
    } | values
    return f"INSERT INTO partition_state ({', '.join(row)}) VALUES ({', '.join(row.values())})"


@pytest.mark.invariant("S2")
@pytest.mark.parametrize("status", ["'ok'", "'SUCCESS'", "'terminal'", "''", "NULL"])
def test_only_three_statuses_exist(filled_ledger: Ledger, backdoor: sa.Engine, status: str) -> None:
    """Inserts and updates with any other status, or with NULL, are refused."""
    assert_refused(backdoor, insert_sql(status=status))
    assert_refused(backdoor, update_sql(f"status = {status}, attempt_count = 9"))


@pytest.mark.invariant("S3")
@pytest.mark.parametrize(
    "assignments",
    [
        "current_run_id = NULL",
        "schema_version = NULL",
        "record_count = NULL",
        "error_message = 'x'",
        "record_count = -1",
        "current_run_id = NULL, schema_version = NULL, record_count = NULL",
    ],
)
def test_success_needs_run_version_and_count(filled_ledger: Ledger, backdoor: sa.Engine, assignments: str) -> None:
    """A success has a current run, schema version and record count, and no error message."""
    assert_refused(backdoor, update_sql(f"{assignments}, attempt_count = 9"))


@pytest.mark.invariant("S3")
def test_incomplete_states_cannot_be_inserted(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A success without a run, a failure without a message and a judged row without an attempt are refused."""
    assert_refused(backdoor, insert_sql(status="'success'", attempt_count="1"))
    assert_refused(backdoor, insert_sql(status="'failed'", attempt_count="1"))
    assert_refused(backdoor, insert_sql(status="'failed'", error_message="'x'"))


@pytest.mark.invariant("S4")
def test_current_run_must_be_registered(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A state cannot name an unregistered run."""
    assert_refused(backdoor, update_sql("current_run_id = 'made-up', attempt_count = 9"))


@pytest.mark.invariant("S5")
@pytest.mark.parametrize(
    "assignments",
    [
        "status = 'failed', error_message = 'x'",  # a verdict without an attempt
        "current_run_id = 'r2'",  # a new current run without an attempt
        "schema_version = '2'",
        "record_count = 4",
        "attempt_count = 1",  # fewer attempts
        "status = 'pending', attempt_count = 3",  # no verdict ends in pending
        "customer_id = '999'",  # the key changes
        "logical_date = '2026-02-02'",
    ],
)
def test_invalid_transitions_are_refused(filled_ledger: Ledger, backdoor: sa.Engine, assignments: str) -> None:
    """Updates that no verdict and no control action makes are refused."""
    assert_refused(backdoor, update_sql(assignments))


@pytest.mark.invariant("S19")
def test_updated_at_must_grow(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """An update that does not change updated_at is refused."""
    assert_refused(backdoor, f"UPDATE partition_state SET status = 'pending' WHERE {KEY_CONDITION}")


@pytest.mark.invariant("S6")
def test_states_are_never_deleted(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A deleted row would let the attempts of its partition start from one again."""
    assert_refused(backdoor, f"DELETE FROM partition_state WHERE {KEY_CONDITION}")


@pytest.mark.invariant("S6")
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_logs_are_append_only(filled_ledger: Ledger, backdoor: sa.Engine, table: str) -> None:
    """UPDATE, DELETE and TRUNCATE of a log table are refused."""
    assert read_all_tables(backdoor)[table]
    column = list(metadata.tables[table].c)[-1].name
    assert_refused(backdoor, f"UPDATE {table} SET {column} = {column}")
    assert_refused(backdoor, f"DELETE FROM {table}")
    if backdoor.dialect.name == "postgresql":
        assert_refused(backdoor, f"TRUNCATE {table} CASCADE")


@pytest.mark.invariant("S8", "S11")
def test_run_has_one_verdict_per_validation(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A unique key refuses a second attempt with the same run and validation."""
    columns = ", ".join(column.name for column in metadata.tables["attempts"].c)
    copied = columns.replace("attempt_no", "attempt_no + 10")
    assert_refused(backdoor, f"INSERT INTO attempts ({columns}) SELECT {copied} FROM attempts WHERE run_id = 'r2'")


@pytest.mark.parametrize("column", ["logical_date", "updated_at", "attempt_count"])
def test_column_types_are_enforced(filled_ledger: Ledger, backdoor: sa.Engine, column: str) -> None:
    """Text in a date, instant or number column is refused, on SQLite too."""
    with pytest.raises((LedgerRefused, LedgerUnavailable)):
        database.transact(backdoor, lambda c: c.exec_driver_sql(insert_sql(**{column: "'not one'"})))


@pytest.mark.invariant("S20")
def test_logical_date_must_exist(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """The database refuses February 30."""
    assert_refused(backdoor, insert_sql(logical_date="'2026-02-30'"))


@pytest.mark.invariant("S12")
def test_reader_cannot_write(filled_ledger: Ledger, url: str) -> None:
    """The reader has no object that writes, and its connections refuse writes in plain SQL."""
    with LedgerReader.opened(url) as reader:
        assert set(vars(filled_ledger)) - set(vars(reader)) == {
            "origin",
            "registrations",
            "verdicts",
            "loads",
            "actions",
        }
    read_only_engine = database.open_engine(url, read_only=True)
    for statement in (insert_sql(), update_sql("status = 'pending'"), "DELETE FROM warehouse_pointer"):
        with pytest.raises(LedgerRefused):
            database.transact(read_only_engine, lambda c, text=statement: c.exec_driver_sql(text))  # type: ignore[misc]
    read_only_engine.dispose()
    with LedgerReader.opened(url) as reader:
        assert reader.states.get(K) == filled_ledger.states.get(K)


@pytest.mark.invariant("S12")
def test_control_actions_cannot_record_verdicts() -> None:
    """ControlActions has no method that records a verdict, registers a run or moves a pointer."""
    methods = {name for name in dir(ControlActions) if not name.startswith("_")}
    assert methods == {"execute", "record_failed_fetches", "schedule_failures", "park", "release"}


@pytest.mark.invariant("S12")
def test_postgres_role_with_read_access_cannot_write(postgres_url: str) -> None:
    """A role that was granted read access reads the ledger and cannot write to it."""
    with Ledger.opened(postgres_url) as ledger:
        accepted_runs(ledger, [K])
    engine = database.open_engine(postgres_url)
    role = f"loader_{sa.make_url(postgres_url).database}"
    database.transact(engine, lambda c: c.exec_driver_sql(f"CREATE ROLE {role} LOGIN"))
    database.grant_read_access(engine, role)
    reader_url = sa.make_url(postgres_url).set(username=role).render_as_string(hide_password=False)
    with LedgerReader.opened(reader_url) as reader:
        assert reader.states.get(K).current_run_id == "r1"
        assert reader.runs.attempts(K)
    with Ledger.opened(reader_url) as writer, pytest.raises(LedgerRefused, match="permission denied"):
        writer.registrations.insert_pending([key("8")])
    database.transact(engine, lambda c: c.exec_driver_sql(f"DROP OWNED BY {role}"))
    database.transact(engine, lambda c: c.exec_driver_sql(f"DROP ROLE {role}"))
    engine.dispose()


def test_valid_statements_are_accepted(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """The same statements without the violation pass: a pending row, an additional attempt, a withdrawal."""
    earlier = "'2029-01-01T00:00:00.000000Z'"
    counted = f"UPDATE partition_state SET updated_at = {earlier}, attempt_count = 3 WHERE {KEY_CONDITION}"
    for statement in (insert_sql(), counted, update_sql("status = 'pending'")):
        database.transact(backdoor, lambda c, text=statement: c.exec_driver_sql(text))  # type: ignore[misc]
