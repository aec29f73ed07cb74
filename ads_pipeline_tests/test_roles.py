"""The roles of Postgres: forbidden statements fail, and the product's own flows run under the role meant for them."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg
import psycopg2
import pytest
import sqlalchemy as sa

import ads_pipeline
from ads_pipeline.domain.errors import LedgerRefused
from ads_pipeline.domain.fetching.fetch_results import FailedFetch
from ads_pipeline.domain.fetching.retry_policy import RetryPolicy
from ads_pipeline.domain.transitions import Action, Status
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.roles import Role, role_statements
from ads_pipeline.ledger.sql import database
from ads_pipeline_tests.ledger.builders import (
    acceptance,
    accepted_runs,
    action_request,
    key,
    keys,
    publish_runs,
    registered_runs,
    rejection,
    run,
)
from ads_pipeline_tests.operations.cli.running import CommandLine
from ads_pipeline_tests.operations.cli.state.builders import FAILED, REASON, SUCCESSFUL, fill_ledger

CHECKOUT = Path(ads_pipeline.__file__).parent.parent
TABLES = [table.name for table in database.METADATA.sorted_tables]
EVENT_TABLES = {"run_head", "run_events"}
RETRY_TABLES = {"parkings", "finished_attempts", "partition_status"}
# The tables in which a role may insert rows.
INSERTABLE = {
    Role.READER: set[str](),
    Role.EXTRACTOR: {"run_events", "partition_state"} | RETRY_TABLES,  # and heads of runs without a snapshot
    Role.OPERATOR: EVENT_TABLES
    | {"partition_state", "control_actions", "demotions", "control_action_partitions", "retry_queue"}
    | {"parkings", "accounts", "api_operations", "api_holds"},
    Role.RUNNER: {*TABLES} - {"control_actions", "control_action_partitions", "retry_queue"},
}
FORBIDDEN_TO_ALL = (
    *(f"TRUNCATE {table} CASCADE" for table in TABLES),
    *(f"DROP TABLE {table} CASCADE" for table in TABLES),
    *(f"ALTER TABLE {table} DISABLE TRIGGER ALL" for table in TABLES),
    "CREATE TABLE own (n INTEGER)",
    "CREATE TABLE dagster_records.own (n INTEGER)",
    "UPDATE ledger_revision SET version_num = ''",
    "DELETE FROM ledger_revision",
    "DROP FUNCTION refuse_write() CASCADE",
    "SET session_replication_role = replica",
    *(
        f"DELETE FROM {table} WHERE false"
        for table in ("run_head", "run_events", "runs", "partition_state", "attempts")
    ),
    *(
        f"DELETE FROM {table} WHERE false"
        for table in ("warehouse_pointer", "load_records", "control_actions", "finished_attempts", "partition_status")
    ),
    "UPDATE attempts SET outcome = 'accepted' WHERE false",
    "UPDATE runs SET record_count = 1 WHERE false",
    "UPDATE run_events SET run_seq = 1 WHERE false",
    "UPDATE load_records SET record_count = 1 WHERE false",
    "UPDATE control_actions SET operator = 'x' WHERE false",
)
FETCH_COLUMNS = ("failed_at", "engine_run_id", "error_class", "error_message", "wait_until", "request_id")
MATERIALIZED = "WHERE last_materialization_at IS NOT NULL"
FORBIDDEN = {
    Role.READER: ("UPDATE partition_state SET updated_at = now() WHERE false", "SELECT * FROM run_head FOR UPDATE"),
    Role.EXTRACTOR: (
        "UPDATE partition_state SET status = 'success' WHERE false",
        "UPDATE partition_state SET attempt_count = 1, updated_at = now() WHERE false",
        "UPDATE warehouse_pointer SET run_id = 'x' WHERE false",
        "UPDATE claims SET engine_run_id = 'x' WHERE false",
    ),
    Role.OPERATOR: (
        "UPDATE warehouse_pointer SET run_id = 'x' WHERE false",
        "UPDATE partition_status SET stale_since = NULL WHERE false",
    ),
    Role.RUNNER: ("DELETE FROM accounts WHERE false", "DELETE FROM control_actions WHERE false"),
}


class Logins:
    """The URL of a login in each role of one database."""

    def __init__(self, url: str) -> None:
        self._url, self.prefix = url, f"p_{sa.make_url(url).database}"[:20]

    def url(self, role: Role) -> str:
        login = f"{self.prefix}_{role}_login"
        return sa.make_url(self._url).set(username=login).render_as_string(hide_password=False)

    def command_line(self, home: Path, role: Role) -> CommandLine:
        return CommandLine(home=home, more={"ADS_PIPELINE_DATABASE_URL": self.url(role)})


@pytest.fixture
def logins(postgres_url: str, tmp_path: Path) -> Iterator[Logins]:
    """The roles, applied to a ledger by the administrator, with one login each."""
    made = Logins(postgres_url)
    administrator = CommandLine(home=tmp_path / "home", more={"ADS_PIPELINE_DATABASE_URL": postgres_url})
    for _again in range(2):
        done = administrator.run("ledger", "roles", "--apply", "--prefix", made.prefix)
        assert (done.code, done.err) == (0, "")
    execute(postgres_url, *(f"CREATE ROLE {made.prefix}_{r}_login LOGIN IN ROLE {made.prefix}_{r}" for r in Role))
    yield made
    names = ", ".join(f"{made.prefix}_{role}, {made.prefix}_{role}_login" for role in Role)
    execute(
        postgres_url, f"REASSIGN OWNED BY {names} TO CURRENT_USER", f"DROP OWNED BY {names}", f"DROP ROLE {names}"
    )


def execute(url: str, *statements: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("%", "%%"))
    engine.dispose()


def find_permitted(url: str, statements: Sequence[str]) -> list[str]:
    """The statements that Postgres does not refuse for lack of a privilege. None is committed."""
    errors = find_errors(url, statements)
    return [each for each in statements if not isinstance(errors.get(each), psycopg2.errors.InsufficientPrivilege)]


def find_errors(url: str, statements: Sequence[str]) -> dict[str, psycopg2.Error]:
    """The error of each statement that has one. None is committed."""
    found = {}
    with psycopg2.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)) as raw:
        for statement in statements:
            with raw.cursor() as cursor:
                cursor.execute(f"SET search_path TO {database.SCHEMA}")
                try:
                    cursor.execute(statement)
                except psycopg2.Error as error:
                    found[statement] = error
                raw.rollback()
    return found


@pytest.mark.invariant("S12", "E6")
@pytest.mark.parametrize("role", [role for role in Role if role is not Role.OWNER])
def test_forbidden_statements_are_refused(logins: Logins, role: Role) -> None:
    """Each role inserts only into its own tables; logs, the schema and triggers are the owner's alone."""
    url = logins.url(role)
    inserts = {table: f"INSERT INTO {table} SELECT * FROM {table} WHERE false" for table in TABLES}
    permitted = find_permitted(url, list(inserts.values()))
    assert permitted == [inserts[table] for table in TABLES if table in INSERTABLE[role]]
    assert find_permitted(url, [*FORBIDDEN_TO_ALL, *FORBIDDEN[role]]) == []
    assert len(find_permitted(url, [f"SELECT * FROM {table}" for table in TABLES])) == len(TABLES)


@pytest.mark.invariant("S12")
def test_reader_reads_and_cannot_write(logins: Logins, tmp_path: Path, postgres_url: str) -> None:
    """Commands that only read work; a control action is refused and changes nothing."""
    fill_ledger(CommandLine(home=tmp_path / "home", more={"ADS_PIPELINE_DATABASE_URL": postgres_url}))
    reader = logins.command_line(tmp_path / "home", Role.READER)
    for command in (
        *(("state", "inspect"), ("state", "why", str(FAILED[0])), ("state", "due"), ("audit",)),
        *(("events", "runs"), ("ledger", "copy", "--verify"), ("raw", "list"), ("doctor", "--quick", "--json")),
    ):
        done = reader.run(*command)
        assert done.code == 0, (command, done.err, done.out)
    refused = reader.run("state", "withdraw", str(SUCCESSFUL[0]), *REASON)
    assert "permission denied" in refused.err
    with LedgerReader.opened(postgres_url) as ledger:
        assert ledger.states.get(SUCCESSFUL[0]).status is Status.SUCCESS


@pytest.mark.invariant("S12")
def test_extractor_reports_failed_fetches_and_records_no_verdict(logins: Logins, postgres_url: str) -> None:
    """A report schedules a retry; registration, verdicts and publication are refused."""
    failures = [
        FailedFetch(key=key(), error_class="quota_exhausted", error_message="quota"),
        FailedFetch(key=key("8"), error_class="permission_denied", error_message="no access"),
    ]
    with Ledger.opened(logins.url(Role.EXTRACTOR)) as ledger:
        assert ledger.failed_fetches.record(failures, RetryPolicy())
        ledger.failed_fetches.record(failures[:1], RetryPolicy())
        with pytest.raises(LedgerRefused, match="permission denied"):
            registered_runs(ledger, key(), "r1")
    with Ledger.opened(postgres_url) as owner:
        registered = registered_runs(owner, key(), "r1")
    with (
        Ledger.opened(logins.url(Role.EXTRACTOR)) as ledger,
        pytest.raises(LedgerRefused, match="permission denied"),
    ):
        ledger.verdicts.record([acceptance(registered[0])])


@pytest.mark.invariant("S12", "E6")
def test_extractor_changes_and_deletes_only_what_its_reports_need(logins: Logins) -> None:
    """Of every column of every table, these alone can be updated, and no row can be deleted."""
    url, columns = logins.url(Role.EXTRACTOR), database.METADATA.tables
    updates = {
        f"UPDATE {table.name} SET {column.name} = {column.name} WHERE false": (table.name, column.name)
        for table in columns.values()
        for column in table.c
    }
    changeable = {updates[each] for each in find_permitted(url, list(updates))}
    assert {table for table, _column in changeable} == {
        "partition_state",
        "partition_status",
        "retry_queue",
        "run_head",
    }
    assert {column for table, column in changeable if table == "partition_state"} == {"updated_at"}
    deletes = {f"DELETE FROM {table} WHERE false": table for table in TABLES}
    assert find_permitted(url, list(deletes)) == []


@pytest.mark.invariant("S12", "E6")
def test_extractor_forges_no_row(logins: Logins, postgres_url: str) -> None:
    """Rows that are no report of a failed fetch are refused, also where the table itself can be written."""
    with Ledger.opened(postgres_url) as owner:
        accepted_runs(owner, [key()])
        owner.failed_fetches.record(
            [FailedFetch(key=key("8"), error_class="transient", error_message="x")], RetryPolicy()
        )
        engine_run_id = owner.origin.engine_run_id
    lease = f"INSERT INTO {database.SCHEMA}.leases (engine_run_id, opened_at, heartbeat_at, expires_at)"
    execute(postgres_url, f"{lease} VALUES ('{engine_run_id}', now(), now(), now())")
    new_event = {"idempotency_key": "repeat('0', 64)", "event_id": "gen_random_uuid()::text", "run_seq": "1000"}
    parking = "INSERT INTO parkings (source, scope, name, error_class, why, parked_at)"
    forged = (
        f"{parking} VALUES ('google_ads', 'source', '', 'credentials_refused', 'x', now())",
        f"UPDATE partition_status SET last_materialization_at = now() {MATERIALIZED}",
        f"UPDATE partition_status SET stale_since = now(), stale_reason_code = 'CODE_CHANGED' {MATERIALIZED}",
        "UPDATE partition_status SET last_attempt_outcome = 'SUCCEEDED'",
        f"UPDATE run_head SET last_seq = last_seq + 1 WHERE engine_run_id = '{engine_run_id}'",
        _copy("run_events", event_type="'RunPaused'", **new_event),
        _copy("run_events", event_type="'RunFailed'", **new_event),
        _copy("finished_attempts", finished_at="now()", **dict.fromkeys(FETCH_COLUMNS, "NULL")),
        _copy("partition_status", "last_materialization_at IS NOT NULL", asset_key="'raw/other'"),
    )
    assert find_permitted(logins.url(Role.EXTRACTOR), forged) == []
    assert find_errors(logins.url(Role.OWNER), forged) == {}, "another reason refuses them"
    source = FailedFetch(key=key(), error_class="credentials_refused", error_message="x")
    with (
        Ledger.opened(logins.url(Role.EXTRACTOR)) as ledger,
        pytest.raises(LedgerRefused, match="may not park the whole source"),
    ):
        ledger.failed_fetches.record([source], RetryPolicy())


def _copy(table: str, where: str = "true", **changed: str) -> str:
    """Insert a row of the table again, with other values."""
    names = [column.name for column in database.METADATA.tables[table].c]
    values = ", ".join(changed.get(name, name) for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM {table} WHERE {where} LIMIT 1"


@pytest.mark.invariant("S12", "W4")
def test_operator_begins_and_ends_no_demotion(logins: Logins, postgres_url: str) -> None:
    """Of the rows that say which runs are hidden, an operator writes those of withdrawals alone."""
    demoted, other = key(), key("8")
    with Ledger.opened(postgres_url) as owner:
        accepted_runs(owner, [demoted, other])
        owner.verdicts.begin_demotions([rejection(run(demoted, "r1"), validation_id="v2")])
    forged = ("DELETE FROM demotions", _copy("demotions", customer_id="'8'"))
    assert find_permitted(logins.url(Role.OPERATOR), forged) == []
    assert find_errors(logins.url(Role.OWNER), forged) == {}, "another reason refuses them"
    with Ledger.opened(logins.url(Role.OPERATOR)) as ledger:
        ledger.withdrawals.begin([other], action_request())
        assert ledger.withdrawals.finish([run(other, "r1")], action_request()) == [other]
        assert ledger.states.get(other).status is Status.PENDING


@pytest.mark.invariant("S12")
def test_operator_executes_control_actions_and_no_verdict(logins: Logins, tmp_path: Path, postgres_url: str) -> None:
    """Every control action works under the operator's role."""
    home = tmp_path / "home"
    fill_ledger(CommandLine(home=home, more={"ADS_PIPELINE_DATABASE_URL": postgres_url}))
    operator = logins.command_line(home, Role.OPERATOR)
    for command in (
        ("acknowledge", "--all"),
        ("retry", str(FAILED[0])),
        ("retry", "--all", "--clear-terminal", "--yes"),
        ("terminal", str(FAILED[1])),
        ("terminal", "--clear", "--all"),
        ("enqueue", "120/ad_group_daily/2026-03-03"),
        ("reprocess", str(SUCCESSFUL[0])),
        ("withdraw", str(SUCCESSFUL[1])),
        ("park", "--customer", "103"),
        ("release", "--customer", "103"),
    ):
        done = operator.run("state", *command, *REASON)
        assert "permission denied" not in done.err, (command, done.err)
        assert done.code in {0, 3}, (command, done.err)
    for words in (("doctor", "--json"), ("reconcile", "--query", "keyword_daily")):  # where nothing is to be loaded
        done = operator.run(*words)
        assert "permission denied" not in done.out + done.err
    with LedgerReader.opened(postgres_url) as ledger:
        assert ledger.states.get(FAILED[0]).status is Status.PENDING
        assert ledger.states.get(SUCCESSFUL[1]).status is Status.PENDING
    with Ledger.opened(logins.url(Role.OPERATOR)) as writer, pytest.raises(LedgerRefused, match="permission denied"):
        registered_runs(writer, key(), "r1")


def test_runner_registers_judges_publishes_and_demotes(logins: Logins) -> None:
    """The writes of a Dagster run and of its sensors work under the runner's role; a control action does not."""
    first, second = keys(2)
    with Ledger.opened(logins.url(Role.RUNNER)) as ledger:
        (good,), (bad,) = registered_runs(ledger, first, "r1"), registered_runs(ledger, second, "r1")
        ledger.verdicts.record([acceptance(good), rejection(bad)])
        publish_runs(ledger, good)
        ledger.actions.schedule_failures(RetryPolicy(), today=second.logical_date)
        demotion = [rejection(good, validation_id="again")]
        ledger.verdicts.begin_demotions(demotion)
        ledger.verdicts.record(demotion)
        assert [ledger.states.get(each).status for each in (first, second)] == [Status.FAILED, Status.FAILED]
        with pytest.raises(LedgerRefused, match="permission denied"):
            ledger.actions.execute(Action.REQUEUE, [second], action_request("x"))


def test_dagster_keeps_its_records_under_the_runner(
    logins: Logins, tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner creates Dagster's tables; then the runner, who may create nothing, uses them."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(CHECKOUT / "dagster.yaml", checkout)
    monkeypatch.setenv("ADS_PIPELINE_HOME", str(tmp_path / "home"))
    for url in (postgres_url, logins.url(Role.RUNNER)):
        monkeypatch.setenv("ADS_PIPELINE_DATABASE_URL", url)
        with dg.DagsterInstance.from_config(str(checkout)) as instance:
            assert dg.materialize([three], instance=instance).success
            assert instance.get_latest_materialization_event(dg.AssetKey("three")) is not None
        execute(postgres_url, *role_statements(logins.prefix))


@dg.asset
def three() -> int:
    return 3


def test_owner_migrates(logins: Logins, tmp_path: Path) -> None:
    """A login of the owner's role may alter the tables, although the administrator created them."""
    owner = logins.command_line(tmp_path / "home", Role.OWNER)
    assert owner.run("migrate").code == 0
    statements = [f"ALTER TABLE {table} ADD COLUMN more INTEGER" for table in TABLES]
    assert len(find_permitted(logins.url(Role.OWNER), statements)) == len(TABLES)


def test_roles_are_printed_as_sql(postgres_url: str, tmp_path: Path) -> None:
    """Without --apply nothing is changed; the output can be executed as it is."""
    cli = CommandLine(home=tmp_path, more={"ADS_PIPELINE_DATABASE_URL": postgres_url})
    printed = cli.run("ledger", "roles")
    assert printed.code == 0
    assert printed.lines == [f"{statement};" for statement in role_statements("ads_pipeline")]
    assert "PASSWORD" not in printed.out
    for prefix in ("", "A", "a-b", "a; DROP TABLE runs", "a" * 41):
        assert cli.run("ledger", "roles", "--prefix", prefix).code == 64


def test_sqlite_has_no_roles(tmp_path: Path) -> None:
    """The message says so, and names the setting of a database that has roles."""
    refused = CommandLine(home=tmp_path).run("ledger", "roles")
    assert (refused.code, refused.out) == (64, "")
    assert "SQLite has no roles" in refused.err
    assert "ADS_PIPELINE_DATABASE_URL" in refused.err
