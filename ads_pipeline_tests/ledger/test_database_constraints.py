"""The rules that the database keeps by itself, tried with plain SQL past all of our own code."""

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
from ads_pipeline_tests.ledger.builders import acceptance, accepted_runs, key, registered_runs, action_request, rejection

K = key()
HERE = "source = 'google_ads' AND customer_id = '1234567890'"
LATER = "'2030-01-01T00:00:00.000000Z'"
APPEND_ONLY = ("runs", "attempts", "load_records", "control_actions", "control_action_partitions")


@pytest.fixture
def success(ledger: Ledger) -> Ledger:
    """A ledger with one row in every table: a success from r1, loaded, beside a rejected r2."""
    first, second = registered_runs(ledger, K, "r1", "r2")
    ledger.record_verdicts([acceptance(first), rejection(second)])
    ledger.publish([Publication(run=first, table_version=0)])
    other = key("42")
    accepted_runs(ledger, [other])
    ledger.execute(Action.WITHDRAW, [other], action_request())
    return ledger


def refused(backdoor: sa.Engine, statement: str) -> None:
    """The statement fails on a rule, and the whole ledger is as it was."""
    before = everything(backdoor)
    with pytest.raises(LedgerRefused):
        database.transact(backdoor, lambda connection: connection.exec_driver_sql(statement))
    assert everything(backdoor) == before


def everything(backdoor: sa.Engine) -> dict[str, list[sa.Row[tuple[object, ...]]]]:
    def read(connection: sa.Connection) -> dict[str, list[sa.Row[tuple[object, ...]]]]:
        return {
            table.name: sorted(connection.execute(sa.select(table)).all(), key=repr)
            for table in metadata.sorted_tables
        }

    return database.transact(backdoor, read)


def setting(assignments: str) -> str:
    return f"UPDATE partition_state SET updated_at = {LATER}, {assignments} WHERE {HERE}"


def inserting(**values: str) -> str:
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
def test_only_three_statuses_exist(success: Ledger, backdoor: sa.Engine, status: str) -> None:
    """Any other status, and none at all, is refused for new rows and for old ones."""
    refused(backdoor, inserting(status=status))
    refused(backdoor, setting(f"status = {status}, attempt_count = 9"))


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
def test_a_success_is_whole(success: Ledger, backdoor: sa.Engine, assignments: str) -> None:
    """A success names run, schema version and count, and carries no error, even if an attempt is counted for it."""
    refused(backdoor, setting(f"{assignments}, attempt_count = 9"))


@pytest.mark.invariant("S3")
def test_a_success_cannot_be_inserted_half(success: Ledger, backdoor: sa.Engine) -> None:
    """A success without authority, a failure without a reason and a judged row without an attempt are refused."""
    refused(backdoor, inserting(status="'success'", attempt_count="1"))
    refused(backdoor, inserting(status="'failed'", attempt_count="1"))
    refused(backdoor, inserting(status="'failed'", error_message="'x'"))


@pytest.mark.invariant("S4")
def test_the_current_run_is_a_registered_one(success: Ledger, backdoor: sa.Engine) -> None:
    """No row may name a run that the ledger was never told of."""
    refused(backdoor, setting("current_run_id = 'made-up', attempt_count = 9"))


@pytest.mark.invariant("S5")
@pytest.mark.parametrize(
    "assignments",
    [
        "status = 'failed', error_message = 'x'",  # judged without an attempt
        "current_run_id = 'r2'",  # authority without an attempt
        "schema_version = '2'",
        "record_count = 4",
        "attempt_count = 1",  # an attempt is forgotten
        "status = 'pending', attempt_count = 3",  # no verdict ends in pending
        "customer_id = '999'",  # a row does not become another partition's
        "logical_date = '2026-02-02'",
    ],
)
def test_forbidden_moves_are_refused(success: Ledger, backdoor: sa.Engine, assignments: str) -> None:
    """What neither a verdict nor a control act does to a row, nobody does."""
    refused(backdoor, setting(assignments))


@pytest.mark.invariant("S19")
def test_a_write_must_date_the_row_later(success: Ledger, backdoor: sa.Engine) -> None:
    """An update that leaves updated_at where it was is refused."""
    refused(backdoor, f"UPDATE partition_state SET status = 'pending' WHERE {HERE}")


@pytest.mark.invariant("S6")
def test_states_are_never_deleted(success: Ledger, backdoor: sa.Engine) -> None:
    """Without its row a partition's attempts would start from one again."""
    refused(backdoor, f"DELETE FROM partition_state WHERE {HERE}")


@pytest.mark.invariant("S6")
@pytest.mark.parametrize("table", APPEND_ONLY)
def test_history_is_append_only(success: Ledger, backdoor: sa.Engine, table: str) -> None:
    """Rows of the logs are neither changed nor removed, by whatever connection."""
    assert everything(backdoor)[table]
    column = list(metadata.tables[table].c)[-1].name
    refused(backdoor, f"UPDATE {table} SET {column} = {column}")
    refused(backdoor, f"DELETE FROM {table}")
    if backdoor.dialect.name == "postgresql":
        refused(backdoor, f"TRUNCATE {table} CASCADE")


@pytest.mark.invariant("S8", "S11")
def test_one_verdict_for_a_run_and_validation(success: Ledger, backdoor: sa.Engine) -> None:
    """A second row for the same run under the same validation is refused by a unique key."""
    columns = ", ".join(column.name for column in metadata.tables["attempts"].c)
    copied = columns.replace("attempt_no", "attempt_no + 10")
    refused(backdoor, f"INSERT INTO attempts ({columns}) SELECT {copied} FROM attempts WHERE run_id = 'r2'")


@pytest.mark.parametrize("column", ["logical_date", "updated_at", "attempt_count"])
def test_values_have_their_types(success: Ledger, backdoor: sa.Engine, column: str) -> None:
    """Text where a date, an instant or a number belongs is refused, on SQLite too."""
    with pytest.raises((LedgerRefused, LedgerUnavailable)):
        database.transact(backdoor, lambda c: c.exec_driver_sql(inserting(**{column: "'not one'"})))


@pytest.mark.invariant("S20")
def test_a_day_is_a_real_day(success: Ledger, backdoor: sa.Engine) -> None:
    """The thirtieth of February is refused by the database as well."""
    refused(backdoor, inserting(logical_date="'2026-02-30'"))


@pytest.mark.invariant("S12")
def test_a_reader_has_no_way_to_write(success: Ledger, url: str) -> None:
    """The reader has no writing verb, and its connections refuse what plain SQL tries through them."""
    verbs = {name for name in dir(Ledger) if not name.startswith("_")}
    assert verbs - {name for name in dir(LedgerReader) if not name.startswith("_")} == {
        "register",
        "insert_pending",
        "record_verdicts",
        "execute",
        "begin_demotions",
        "publish",
        "record_failed_loads",
        "record_failed_fetches",
        "park",
        "release",
    }
    reading = database.open_engine(url, read_only=True)
    for statement in (inserting(), setting("status = 'pending'"), "DELETE FROM warehouse_pointer"):
        with pytest.raises(LedgerRefused):
            database.transact(reading, lambda c, text=statement: c.exec_driver_sql(text))  # type: ignore[misc]
    reading.dispose()
    with LedgerReader.opened(url) as reader:
        assert reader.state(K) == success.state(K)


@pytest.mark.invariant("S12")
def test_the_desk_cannot_judge() -> None:
    """What the control plane holds can requeue, mark and park; it has no verb for a verdict, a run or a pointer."""
    verbs = {name for name in dir(ControlActions) if not name.startswith("_")}
    reading = {name for name in dir(LedgerReader) if not name.startswith("_")}
    assert verbs - reading == {"execute", "record_failed_fetches", "park", "release"}


@pytest.mark.invariant("S12")
def test_a_postgres_role_may_be_given_reading_alone(postgres_url: str) -> None:
    """Credentials that were granted reading read everything and write nothing."""
    with Ledger.opened(postgres_url) as ledger:
        accepted_runs(ledger, [K])
    engine = database.open_engine(postgres_url)
    role = f"loader_{sa.make_url(postgres_url).database}"
    database.transact(engine, lambda c: c.exec_driver_sql(f"CREATE ROLE {role} LOGIN"))
    database.grant_read_access(engine, role)
    lesser = sa.make_url(postgres_url).set(username=role).render_as_string(hide_password=False)
    with LedgerReader.opened(lesser) as reader:
        assert reader.state(K).current_run_id == "r1"
        assert reader.attempts(K)
    with Ledger.opened(lesser) as pretender, pytest.raises(LedgerRefused, match="permission denied"):
        pretender.insert_pending([key("8")])
    database.transact(engine, lambda c: c.exec_driver_sql(f"DROP OWNED BY {role}"))
    database.transact(engine, lambda c: c.exec_driver_sql(f"DROP ROLE {role}"))
    engine.dispose()


def test_the_statements_above_fail_for_their_one_fault(success: Ledger, backdoor: sa.Engine) -> None:
    """Without the fault the same statements are legal: a new pending row, a counted attempt, a withdrawal."""
    counted = f"UPDATE partition_state SET updated_at = '2029-01-01T00:00:00.000000Z', attempt_count = 3 WHERE {HERE}"
    for statement in (inserting(), counted, setting("status = 'pending'")):
        database.transact(backdoor, lambda c, text=statement: c.exec_driver_sql(text))  # type: ignore[misc]
