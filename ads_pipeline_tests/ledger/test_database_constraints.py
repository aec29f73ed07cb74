"""The constraints and triggers of the database, tested with plain SQL."""

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from ads_pipeline.domain.errors import LedgerRefused, LedgerUnavailable
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.quota import Operation, QuotaLimits
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.transitions import Action
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.control.failed_fetches import FailedFetches
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import metadata
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    key,
    open_lease,
    record_verdict,
    registered_runs,
    rejection,
    run,
)

K = key()
KEY_CONDITION = "source = 'google_ads' AND customer_id = '1234567890'"
KEY_VALUES = "'google_ads', '1234567890', 'campaign_daily', '2026-02-01'"
LATER = "'2030-01-01T00:00:00.000000Z'"
APPEND_ONLY = (
    *("runs", "attempts", "load_records", "finished_attempts"),
    *("control_actions", "control_action_partitions", "api_operations"),
)
UPSERTED = {"accounts", "run_head"}  # tables that refuse DELETE, whose rows statements of the product replace


@pytest.fixture
def filled_ledger(ledger: Ledger) -> Ledger:
    """A success from run r1, loaded, with a rejected r2; and a withdrawn partition."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    ledger.verdicts.record([acceptance(first), rejection(second)])
    ledger.loads.publish([first], table_version=0)
    other = key("42")
    accepted_runs(ledger, [other])
    ledger.actions.execute(Action.WITHDRAW, [other], action_request())
    return ledger


def assert_refused(backdoor: sa.Engine, statement: str, message: str | None = None) -> None:
    """The database refuses the statement with this message, and no row of the ledger changes."""
    before = read_all_tables(backdoor)
    with pytest.raises(LedgerRefused, match=message):
        database.transact(backdoor, lambda connection: connection.exec_driver_sql(statement))
    assert read_all_tables(backdoor) == before


def read_all_tables(backdoor: sa.Engine) -> dict[str, list[sa.Row[Any]]]:
    """Every row of every table, as the driver returns it. A new engine need not compile a select of each table."""

    def read(connection: sa.Connection) -> dict[str, list[sa.Row[Any]]]:
        return {
            table.name: sorted(connection.exec_driver_sql(f"SELECT * FROM {table.name}"), key=repr)
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


def _copy_sql(table: str, **changes: str) -> str:
    """An INSERT of the row of customer 1 with some columns changed."""
    columns = [column.name for column in metadata.tables[table].c]
    values = ", ".join(changes.get(name, name) for name in columns)
    return f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM {table} WHERE customer_id = '1'"


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
def test_logs_are_append_only(filled_ledger: Ledger, backdoor: sa.Engine, url: str, table: str) -> None:
    """UPDATE, DELETE and TRUNCATE of a log table are refused."""
    _fill_other_logs(filled_ledger, url)
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
            "withdrawals",
            "failed_fetches",
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
    assert methods == {"execute", "schedule_failures", "park", "release"}


@pytest.mark.invariant("S12")
def test_extractors_can_only_record_failed_fetches() -> None:
    """FailedFetches has one method, which changes no state."""
    assert {name for name in dir(FailedFetches) if not name.startswith("_")} == {"record"}


def test_valid_statements_are_accepted(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """Statements that follow from the logs pass: a pending row, and a withdrawal that is logged."""
    logged = (
        "INSERT INTO control_actions VALUES ('w', 'withdraw', 'ada', 'x', '', 'y', 1, " + LATER + ")",
        f"INSERT INTO control_action_partitions VALUES ('w', {KEY_VALUES}, 'success', 2)",
    )
    for statement in (insert_sql(), *logged, update_sql("status = 'pending'")):
        database.transact(backdoor, lambda c, text=statement: c.exec_driver_sql(text))  # type: ignore[misc]


@pytest.fixture
def forgeable_ledger(ledger: Ledger) -> Ledger:
    """A loaded success (customer 1), a failure (2), a withdrawn success (3), and an unjudged run of each."""
    success, failure, withdrawn = key("1"), key("2"), key("3")
    accepted_runs(ledger, [success, withdrawn])
    ledger.loads.publish([run(each, "r1") for each in (success, withdrawn)], table_version=0)
    record_verdict(ledger, rejection(registered_runs(ledger, failure, "r1")[0]))
    ledger.actions.execute(Action.WITHDRAW, [withdrawn], action_request())
    for each in (success, failure, withdrawn):
        registered_runs(ledger, each, "unjudged")
    return ledger


NO_EVIDENCE = "partition_state: no attempt or control action led to this state"
IMPOSSIBLE = "partition_state: UPDATE is refused"
NOT_READABLE = "warehouse_pointer: the run is not loaded or not readable"
ACCEPTED = "error_message = NULL, current_run_id = 'r1', schema_version = '1', record_count = 3"
UNJUDGED = ACCEPTED.replace("r1", "unjudged")
FORGED_STATES = {
    "failure to pending without an action": ("2", "status = 'pending'", NO_EVIDENCE),
    "success to pending without an action": ("1", "status = 'pending'", NO_EVIDENCE),
    "failure to success without an attempt": ("2", f"status = 'success', {ACCEPTED}", IMPOSSIBLE),
    "failure to success after a made-up attempt": (
        "2",
        f"status = 'success', attempt_count = attempt_count + 1, {ACCEPTED}",
        NO_EVIDENCE,
    ),
    "success of an unjudged run": (
        "1",
        f"attempt_count = attempt_count + 1, {UNJUDGED}",
        NO_EVIDENCE,
    ),
    "success to failure without an attempt": (
        "1",
        "status = 'failed', error_message = 'x', attempt_count = attempt_count + 1",
        NO_EVIDENCE,
    ),
    "pending to success after a made-up attempt": (
        "3",
        "status = 'success', attempt_count = attempt_count + 1",
        NO_EVIDENCE,
    ),
    "five attempts more": ("1", "attempt_count = attempt_count + 5", NO_EVIDENCE),
    "one attempt more": ("1", "attempt_count = attempt_count + 1", NO_EVIDENCE),
    "another schema version": ("1", "schema_version = '9'", IMPOSSIBLE),
    "another schema version after an attempt": (
        "1",
        "schema_version = '9', attempt_count = attempt_count + 1",
        NO_EVIDENCE,
    ),
    "a run that does not exist": (
        "1",
        "current_run_id = 'made-up', attempt_count = attempt_count + 1",
        NO_EVIDENCE,
    ),
    "only a later time": ("1", "attempt_count = attempt_count", IMPOSSIBLE),
}


@pytest.mark.invariant("S5", "S13")
@pytest.mark.parametrize("name", FORGED_STATES)
def test_forged_states_are_refused(forgeable_ledger: Ledger, backdoor: sa.Engine, name: str) -> None:
    """A later `updated_at` does not make an update legal. Its attempt or control action must be in the logs."""
    customer, assignments, message = FORGED_STATES[name]
    sql = f"UPDATE partition_state SET updated_at = {LATER}, {assignments} WHERE customer_id = '{customer}'"
    assert_refused(backdoor, sql, f"{message}|violates foreign key")


FORGED_ROWS = {
    "judged state without attempts": (
        insert_sql(attempt_count="1", status="'failed'", error_message="'x'"),
        NO_EVIDENCE,
    ),
    "pending state with attempts": (insert_sql(attempt_count="5"), NO_EVIDENCE),
    "load record of an unjudged run": (
        _copy_sql("load_records", customer_id="'2'", run_id="'unjudged'"),
        "load_records: no verdict accepted this run",
    ),
    "load record of a rejected run": (
        _copy_sql("load_records", customer_id="'2'"),
        "load_records: no verdict accepted this run",
    ),
    "load record with another schema version": (
        _copy_sql("load_records", customer_id="'3'", run_id="'unjudged'", schema_version="'9'"),
        "load_records: no verdict accepted this run",
    ),
    "pointer of a failure": (_copy_sql("warehouse_pointer", customer_id="'2'"), NOT_READABLE),
    "pointer of a pending partition": (
        "UPDATE warehouse_pointer SET availability = 'published' WHERE customer_id = '3'",
        NOT_READABLE,
    ),
    "pointer at an unjudged run": (
        "UPDATE warehouse_pointer SET run_id = 'unjudged' WHERE customer_id = '1'",
        NOT_READABLE,
    ),
    "pointer with another schema version": (
        "UPDATE warehouse_pointer SET schema_version = '9' WHERE customer_id = '1'",
        NOT_READABLE,
    ),
    "pointer with another number of rows": (
        "UPDATE warehouse_pointer SET record_count = 77 WHERE customer_id = '1'",
        NOT_READABLE,
    ),
    "attempt whose effect contradicts its run": (
        _copy_sql("attempts", attempt_no="2", run_id="'unjudged'", ordinal="2"),
        "effect_matches_current_run",
    ),
}


@pytest.mark.invariant("S5", "W3")
@pytest.mark.parametrize("name", FORGED_ROWS)
def test_forged_rows_are_refused(forgeable_ledger: Ledger, backdoor: sa.Engine, name: str) -> None:
    """States without attempts, loads of runs that were not accepted and pointers of unreadable runs are refused."""
    statement, message = FORGED_ROWS[name]
    assert_refused(backdoor, statement, message)


@pytest.mark.invariant("W3")
def test_pointer_moves_to_the_current_run_only(forgeable_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A pointer cannot go back to an older loaded run."""
    newer = run(key("1"), "unjudged")
    record_verdict(forgeable_ledger, acceptance(newer))
    forgeable_ledger.loads.publish([newer], table_version=1)
    assert_refused(
        backdoor, "UPDATE warehouse_pointer SET run_id = 'r1' WHERE customer_id = '1'", "not loaded or not readable"
    )


LOGS = (*APPEND_ONLY, "run_events", "leases", "claims", "partition_state")


@pytest.mark.invariant("S6", "E6")
@pytest.mark.parametrize("table", LOGS)
def test_existing_rows_cannot_be_inserted_again(
    filled_ledger: Ledger, backdoor: sa.Engine, url: str, table: str
) -> None:
    """REPLACE on SQLite, and ON CONFLICT DO UPDATE on both, rewrite no row. SQLite runs no DELETE trigger then."""
    _fill_other_logs(filled_ledger, url)
    assert read_all_tables(backdoor)[table]
    columns = [column.name for column in metadata.tables[table].c]
    names, last = ", ".join(columns), columns[-1]
    keys = ", ".join(column.name for column in metadata.tables[table].primary_key)
    select = f"SELECT {names} FROM {table} WHERE TRUE"
    if table != "partition_state":
        assert_refused(backdoor, f"INSERT INTO {table} {select} ON CONFLICT ({keys}) DO UPDATE SET {last} = NULL")
    if backdoor.dialect.name == "sqlite":
        message = f"{table}: INSERT of an existing row is refused"
        assert_refused(backdoor, f"REPLACE INTO {table} {select}", message)
        assert_refused(backdoor, f"REPLACE INTO {table} (rowid, {names}) SELECT rowid, {names} FROM {table}", message)


@pytest.mark.invariant("S6", "E6")
@pytest.mark.parametrize("table", LOGS)
def test_replace_by_any_unique_key_is_refused(
    filled_ledger: Ledger, backdoor: sa.Engine, url: str, table: str
) -> None:
    """On SQLite, a row that shares one unique key with a logged row does not replace it, whatever else it holds."""
    _fill_other_logs(filled_ledger, url)
    if backdoor.dialect.name != "sqlite":
        return
    for unique in _unique_keys(backdoor, table):
        columns = metadata.tables[table].c
        values = ", ".join(each.name if each.name in unique else _other_value(each) for each in columns)
        statement = f"REPLACE INTO {table} ({', '.join(columns.keys())}) SELECT {values} FROM {table}"
        assert_refused(backdoor, statement, f"{table}: INSERT of an existing row is refused")


def test_tables_that_refuse_delete_refuse_replace(sqlite_url: str) -> None:
    """On SQLite, every table with a guard against DELETE has one against REPLACE, unless its rows are upserted."""
    engine = database.open_engine(sqlite_url)
    names = set(
        database.transact(
            engine,
            lambda connection: (
                connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars().all()
            ),
        )
    )
    engine.dispose()
    kept = {table for table in metadata.tables if f"{table}_no_delete" in names}
    assert kept == {*LOGS, *UPSERTED}
    assert {table for table in kept if f"{table}_no_replace" not in names} == UPSERTED


def _unique_keys(backdoor: sa.Engine, table: str) -> list[list[str]]:
    inspector = sa.inspect(backdoor)
    unique = [each["column_names"] for each in inspector.get_unique_constraints(table)]
    return [inspector.get_pk_constraint(table)["constrained_columns"], *unique]


def _other_value(column: sa.Column[Any]) -> str:
    """SQL of a value that differs from the row's own."""
    if isinstance(column.type, sa.Integer | sa.Float):
        return f"{column.name} + 9"
    return LATER if column.name.endswith(("_at", "until")) else f"{column.name} || 'x'"


@pytest.mark.invariant("E6")
def test_run_head_cannot_be_replaced(filled_ledger: Ledger, backdoor: sa.Engine) -> None:
    """A new head would number the events of a run from one again."""
    if backdoor.dialect.name == "sqlite":
        reset = "SELECT engine_run_id, plan_version, 0, last_at, opened_at FROM run_head"
        columns = "engine_run_id, plan_version, last_seq, last_at, opened_at"
        assert_refused(backdoor, f"REPLACE INTO run_head ({columns}) {reset}", "run_head: the run has a head")


@pytest.mark.invariant("S6")
@pytest.mark.parametrize("moved", ["'r1' || '-again'", "run_id"])
def test_replace_by_another_unique_key_is_refused(filled_ledger: Ledger, backdoor: sa.Engine, moved: str) -> None:
    """A run with the ordinal of another one, or its rowid, would replace it."""
    if backdoor.dialect.name == "sqlite":
        columns = ", ".join(column.name for column in metadata.tables["runs"].c)
        copied = columns.replace("run_id", moved)
        assert_refused(
            backdoor, f"REPLACE INTO runs ({columns}) SELECT {copied} FROM runs", "existing row is refused"
        )
        other = columns.replace("run_id", "'new'").replace("ordinal", "ordinal + 9")
        replaced = f"REPLACE INTO runs (rowid, {columns}) SELECT rowid, {other} FROM runs LIMIT 1"
        assert_refused(backdoor, replaced, "existing row is refused")


def _fill_other_logs(ledger: Ledger, url: str) -> None:
    """Add a failed fetch, an API operation, a lease and a claim. The publication is a finished attempt."""
    failure = FailedFetch(key=key("5"), error_class="transport", error_message="reset")
    ledger.failed_fetches.record([failure], RetryPolicy())
    ledger.quota.reserve(Operation(source="google_ads"), QuotaLimits())
    with open_lease(url, "engine-1", duration=timedelta(minutes=5)) as lease:
        lease.claim([key("5")])
