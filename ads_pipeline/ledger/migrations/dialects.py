"""What the schema's SQL needs to differ between SQLite and Postgres: types, checks and triggers."""

import re
from collections.abc import Mapping
from typing import Final

KEY: Final = "source, customer_id, query_name, logical_date"
FRAGMENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "postgresql": {
        # "C" compares bytes, as SQLite does, whatever the server's locale: both databases sort alike.
        "text": 'TEXT COLLATE "C"',
        "date": "DATE",
        "instant": "TIMESTAMPTZ",
        "bigint": "BIGINT",
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
        # Without STRICT a column accepts values of any type.
        "options": "STRICT",
        "options_70": "STRICT",
        "options_50": "STRICT",
        "differs": "IS NOT",
        "check_date": ", CONSTRAINT valid_date CHECK (logical_date IS date(logical_date, '+0 days'))",
    },
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
    return template.format_map({**fragments, "key": KEY, "key_columns": key_columns})


def refuse(dialect: str, table: str, *verbs: str, when: str = "") -> list[str]:
    """Triggers that refuse these verbs on a table, and TRUNCATE on Postgres. `when` is for SQLite alone."""
    if dialect == "sqlite":
        return [_sqlite_trigger(f"{table}_no_{verb}".lower(), verb, table, when) for verb in verbs]
    # For each statement, so that a statement that matches no row is refused as well.
    name, events = f"{table}_no_{'_'.join(verbs)}".lower(), " OR ".join((*verbs, "TRUNCATE"))
    return [f"CREATE TRIGGER {name} BEFORE {events} ON {table} EXECUTE FUNCTION refuse_write()"]


def refuse_update(dialect: str, table: str, condition: str) -> list[str]:
    """A trigger that refuses the update of a row for which the condition holds."""
    name, condition = f"{table}_invalid_update", render(dialect, condition)
    if dialect == "sqlite":
        return [_sqlite_trigger(name, "UPDATE", table, f"WHEN {condition}")]
    row = f"FOR EACH ROW WHEN ({condition})"
    return [f"CREATE TRIGGER {name} BEFORE UPDATE ON {table} {row} EXECUTE FUNCTION refuse_write()"]


def functions(dialect: str) -> list[str]:
    """The function that the triggers of Postgres call."""
    if dialect == "sqlite":
        return []
    return [
        """CREATE FUNCTION refuse_write() RETURNS trigger LANGUAGE plpgsql AS
        $$BEGIN RAISE EXCEPTION '%: % is refused', TG_TABLE_NAME, TG_OP USING ERRCODE = 'check_violation'; END$$"""
    ]


def _sqlite_trigger(name: str, verb: str, table: str, when: str) -> str:
    return f"""CREATE TRIGGER {name} BEFORE {verb} ON {table} {when}
        BEGIN SELECT RAISE(ABORT, '{table}: {verb} is refused'); END"""
