"""The Postgres roles of a deployment and the least rights of each, as SQL.

The roles are groups without a login. An administrator grants them to logins, whose passwords this product never sees.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import sqlalchemy as sa

from ads_pipeline.ledger.role_guards import guard_statements
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_tables import KEY, PLAN

DAGSTER_SCHEMA: Final = "dagster_records"
VIEWS: Final = ("failed_fetches",)


class Role(StrEnum):
    """A group of logins, named after what its processes do."""

    READER = "reader"
    EXTRACTOR = "extractor"
    RUNNER = "runner"
    OPERATOR = "operator"
    OWNER = "owner"


PURPOSES: Final[Mapping[Role, str]] = {
    Role.READER: "reads the ledger: warehouse query, state inspect, doctor",
    Role.EXTRACTOR: "reads the ledger and reports failed fetches; it registers nothing",
    Role.RUNNER: "Dagster: registers, judges, loads, and keeps Dagster's records",
    Role.OPERATOR: "control actions; state demote, restore, rejudge and reconcile need runner too",
    Role.OWNER: "owns the tables: migrate, ledger copy, ledger retire-events",
}
_HEAD: Final = "engine_run_id, plan_version, last_seq, last_at"
# An extractor stores no snapshots.
_OWN_EVENTS: Final = {
    "run_head": f"INSERT ({_HEAD}, opened_at), UPDATE ({_HEAD}, payload_conflicts)",
    "run_events": "INSERT",
}
_EVENTS: Final = {"run_head": "INSERT, UPDATE", "run_events": "INSERT"}
# The columns of a planned retry. Only an operator requests a run.
_PLAN: Final = ", ".join(PLAN)
_INSERT_PLAN: Final = f"INSERT ({', '.join(KEY)}, {_PLAN})"
_FAILED_FETCHES: Final = {
    "parkings": "INSERT",
    "retry_queue": f"{_INSERT_PLAN}, UPDATE ({_PLAN})",
    "finished_attempts": "INSERT",
    "partition_status": "INSERT, UPDATE",
}
_EXTRACTION: Final = {
    "accounts": "INSERT, UPDATE",
    "api_operations": "INSERT",
    "api_holds": "INSERT, UPDATE",
}
# Beyond SELECT on all tables, which every role has.
RIGHTS: Final[Mapping[Role, Mapping[str, str]]] = {
    Role.READER: {},
    # A partition is locked by its state row, and Postgres locks a row only for roles that may update a column of it.
    # `role_guards` restricts the rows.
    Role.EXTRACTOR: _OWN_EVENTS | _FAILED_FETCHES | {"partition_state": "INSERT, UPDATE (updated_at)"},
    Role.RUNNER: _EVENTS
    | _FAILED_FETCHES
    | _EXTRACTION
    | {
        "parkings": "INSERT, DELETE",  # discovery releases what it parked
        "retry_queue": f"{_INSERT_PLAN}, UPDATE ({_PLAN}, released_at, recovered_at), DELETE",
        "runs": "INSERT",
        "partition_state": "INSERT, UPDATE",
        "attempts": "INSERT",
        "warehouse_pointer": "INSERT, UPDATE",
        "load_records": "INSERT",
        "demotions": "INSERT, DELETE",
        "code_versions": "INSERT, UPDATE",
        "leases": "INSERT, UPDATE",
        "claims": "INSERT, UPDATE",
    },
    Role.OPERATOR: _EVENTS
    | _EXTRACTION
    | {
        "partition_state": "INSERT, UPDATE",
        "warehouse_pointer": "UPDATE (availability, changed_at)",
        "control_actions": "INSERT",
        "control_action_partitions": "INSERT",
        "demotions": "INSERT, DELETE",  # of withdrawals: `role_guards` restricts the rows
        "retry_queue": "INSERT, UPDATE, DELETE",
        "parkings": "INSERT, DELETE",
    },
}
_CREATE_ROLE: Final = (
    "/* {role}: {purpose} */ DO $$BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{name}') "
    "THEN CREATE ROLE {name} NOLOGIN; END IF; END$$"
)
_OWN_FUNCTIONS: Final = (
    "DO $$DECLARE f regprocedure; BEGIN "
    "FOR f IN SELECT DISTINCT tgfoid FROM pg_trigger WHERE NOT tgisinternal AND tgrelid IN ({tables}) "
    "LOOP EXECUTE format('ALTER FUNCTION %s OWNER TO {owner}', f); END LOOP; END$$"
)


def role_statements(prefix: str) -> list[str]:
    """The statements that create the roles and set their rights. They may be executed again, after each migration."""
    return list(_statements(prefix))


def apply_roles(url: str, prefix: str) -> None:
    """Execute the statements in one transaction. The login must own the tables and may create roles."""
    with database.open_checked_engine(url, create=False) as engine:
        database.transact(engine, lambda connection: _execute_all(connection, role_statements(prefix)))


def _execute_all(connection: sa.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement.replace("%", "%%"))


def _statements(prefix: str) -> Iterator[str]:
    names = {role: f"{prefix}_{role}" for role in Role}
    tables = [*(table.name for table in database.METADATA.sorted_tables), *VIEWS, database.REVISION_TABLE]
    for role, name in names.items():
        yield _CREATE_ROLE.format(role=role, purpose=PURPOSES[role], name=name)
    owner, members = names[Role.OWNER], [name for role, name in names.items() if role is not Role.OWNER]
    yield f"GRANT {owner} TO CURRENT_USER"
    yield f"CREATE SCHEMA IF NOT EXISTS {DAGSTER_SCHEMA}"
    yield f"ALTER SCHEMA {database.SCHEMA} OWNER TO {owner}"
    yield f"GRANT USAGE ON SCHEMA {database.SCHEMA} TO {', '.join(members)}"
    yield f"SET search_path TO {database.SCHEMA}"
    yield from (f"ALTER TABLE {table} OWNER TO {owner}" for table in tables)
    yield from guard_statements(database.SCHEMA, {str(role): name for role, name in names.items()})
    classes = ", ".join(f"'{table}'::regclass" for table in tables)
    yield _OWN_FUNCTIONS.format(tables=classes, owner=owner)
    yield f"REVOKE ALL ON {', '.join(tables)} FROM PUBLIC, {', '.join(members)}"
    yield f"GRANT SELECT ON {', '.join(tables)} TO {', '.join(members)}"
    for role, rights in RIGHTS.items():
        yield from (f"GRANT {right} ON {table} TO {names[role]}" for table, right in rights.items())
    runner, records = names[Role.RUNNER], f"IN SCHEMA {DAGSTER_SCHEMA}"
    yield f"GRANT USAGE ON SCHEMA {DAGSTER_SCHEMA} TO {', '.join(members)}"
    yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES {records} TO {runner}"
    yield f"GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES {records} TO {runner}"
    yield f"GRANT SELECT ON ALL TABLES {records} TO {names[Role.READER]}, {names[Role.OPERATOR]}"
