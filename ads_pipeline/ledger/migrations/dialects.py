"""What the schema's SQL needs to differ between SQLite and Postgres: types, checks and triggers."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa

KEY: Final = "source, customer_id, query_name, logical_date"
FRAGMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {
        # "C" compares bytes, as SQLite does, whatever the server's locale: both databases sort alike.
        "text": 'TEXT COLLATE "C"',
        "date": "DATE",
        "instant": "TIMESTAMPTZ",
        "bigint": "BIGINT",
        "double": "DOUBLE PRECISION",
        "options": "",
        # Free space in each page lets an update keep the new row version in the same page and the indexes unchanged.
        "options_70": "WITH (fillfactor = 70)",
        "options_50": "WITH (fillfactor = 50)",
        "differs": "IS DISTINCT FROM",
        "check_date": "",
    },
    "sqlite": {
        "text": "TEXT",
        "date": "TEXT",
        "instant": "TEXT",
        "bigint": "INTEGER",
        "double": "REAL",
        # Without STRICT a column accepts values of any type.
        "options": "STRICT",
        "options_70": "STRICT",
        "options_50": "STRICT",
        "differs": "IS NOT",
        "check_date": ", CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))",
    },
}
# The condition that a table with this alias has the key of the new row.
_SAME_KEY: Final = {
    f"same_key_{alias}": " AND ".join(f"{alias}.{column} = NEW.{column}" for column in KEY.split(", "))
    for alias in "alprs"
}
_INSTANT: Final = re.compile(r"(\w+) \{instant\}( NOT NULL)?")
_FIXED_WIDTH: Final = r"\1 {instant}\2 CHECK (\1 LIKE '____-__-__T__:__:__.______Z')"


def render(dialect: str, template: str) -> str:
    """The template as SQL of the dialect."""
    fragments = FRAGMENTS[dialect]
    columns = ("source {text}", "customer_id {text}", "query_name {text}", "logical_date {date}")
    key_columns = ", ".join(f"{column} NOT NULL" for column in columns).format_map(fragments)
    if dialect == "sqlite":
        template = _INSTANT.sub(_FIXED_WIDTH, template)
    return template.format_map({**fragments, **_SAME_KEY, "key": KEY, "key_columns": key_columns})


def append_only(dialect: str, table: str) -> list[str]:
    """Triggers that refuse every change of the table's rows. Name the table in `NEVER_REPLACED` too."""
    return refuse(dialect, table, "UPDATE", "DELETE")


def refuse(dialect: str, table: str, *verbs: str, when: str = "") -> list[str]:
    """Triggers that refuse these verbs on a table, and TRUNCATE on Postgres. `when` is for SQLite alone."""
    if dialect == "sqlite":
        return [
            sqlite_trigger(f"{table}_no_{verb}".lower(), f"BEFORE {verb}", table, f"{verb} is refused", when)
            for verb in verbs
        ]
    # For each statement, so that a statement that matches no row is refused as well.
    name, events = f"{table}_no_{'_'.join(verbs)}".lower(), " OR ".join((*verbs, "TRUNCATE"))
    return [f"CREATE TRIGGER {name} BEFORE {events} ON {table} EXECUTE FUNCTION refuse_write()"]


def refuse_replace(connection: sa.Connection, table: str) -> list[str]:
    """A trigger that refuses the insert of an existing key. REPLACE on SQLite deletes without a DELETE trigger.

    The keys are those of the created table, so the table must exist.
    """
    if connection.dialect.name != "sqlite":
        return []
    conditions = [_exists(table, key) for key in (["rowid"], *_unique_keys(connection, table))]
    message = "INSERT of an existing row is refused"
    return [sqlite_trigger(f"{table}_no_replace", "BEFORE INSERT", table, message, " OR ".join(conditions))]


def _unique_keys(connection: sa.Connection, table: str) -> list[list[str]]:
    """The columns of the primary key and of each unique constraint."""
    inspector = sa.inspect(connection)
    unique = [list(each["column_names"]) for each in inspector.get_unique_constraints(table)]
    return [list(inspector.get_pk_constraint(table)["constrained_columns"]), *unique]


def refuse_update(dialect: str, table: str, condition: str) -> list[str]:
    """A trigger that refuses the update of a row for which the condition holds. It holds no subquery."""
    name, condition = f"{table}_invalid_update", render(dialect, condition)
    if dialect == "sqlite":
        return [sqlite_trigger(name, "BEFORE UPDATE", table, "UPDATE is refused", condition)]
    row = f"FOR EACH ROW WHEN ({condition})"
    return [f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} {row} EXECUTE FUNCTION refuse_write()"]


def require(dialect: str, table: str, event: str, name: str, *, when: str, evidence: str, message: str) -> list[str]:
    """A trigger that refuses the new rows of an event for which `when` holds and `evidence` does not.

    `evidence` looks at other tables. It is evaluated after the statement, which may write those tables too.
    """
    when, evidence = render(dialect, when), render(dialect, evidence)
    if dialect == "sqlite":
        return [sqlite_trigger(name, f"AFTER {event}", table, message, f"({when}) AND NOT ({evidence})")]
    return [
        f"""CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
        IF NOT ({evidence}) THEN
            RAISE EXCEPTION '{table}: {message}' USING ERRCODE = 'check_violation';
        END IF;
        RETURN NULL; END$$""",
        f"""CREATE TRIGGER {name} AFTER {event} ON {table}
        FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {name}()""",
    ]


def require_after_update(dialect: str, table: str, name: str, *, when: str, evidence: str, message: str) -> list[str]:
    """`require` for updates, which Postgres checks for all rows of a statement at once: a call per row costs 13 µs.

    Each new row is compared with the old one of its key. A row for which this yields null is refused.
    """
    if dialect == "sqlite":
        return require(dialect, table, "UPDATE", name, when=when, evidence=evidence, message=message)
    condition = f"({render(dialect, when)}) IS NOT FALSE AND ({render(dialect, evidence)}) IS NOT TRUE"
    condition = condition.replace("NEW.", "new_row.").replace("OLD.", "old_row.")
    # The plan is kept. Of a plan made for one row, a nested loop would compare each pair of a thousand rows.
    return [
        f"""CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET enable_nestloop = off AS $$BEGIN
        IF EXISTS (
            SELECT 1 FROM new_rows AS new_row LEFT JOIN old_rows AS old_row USING ({KEY}) WHERE {condition}
        ) THEN
            RAISE EXCEPTION '{table}: {message}' USING ERRCODE = 'check_violation';
        END IF;
        RETURN NULL; END$$""",
        f"""CREATE TRIGGER {name} AFTER UPDATE ON {table}
        REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
        FOR EACH STATEMENT EXECUTE FUNCTION {name}()""",
    ]


def functions(dialect: str) -> list[str]:
    """The function that the triggers of Postgres call."""
    if dialect == "sqlite":
        return []
    return [
        """CREATE FUNCTION refuse_write() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation'; END$$"""
    ]


def _exists(table: str, key: Sequence[str]) -> str:
    same = " AND ".join(f"{column} = NEW.{column}" for column in key)
    return f"EXISTS (SELECT 1 FROM {table} WHERE {same})"


def sqlite_trigger(name: str, moment: str, table: str, message: str, when: str) -> str:
    return f"""CREATE TRIGGER {name} {moment} ON {table} {"WHEN " + when if when else ""}
        BEGIN SELECT RAISE(ABORT, '{table}: {message}'); END"""
