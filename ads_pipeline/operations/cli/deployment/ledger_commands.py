"""The `ledger` commands that copy the ledger into another database, compare the two, and set the rights of roles."""

import re
import sys
from typing import Annotated, Final

import typer

from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.consistency.copying import copy_ledger
from ads_pipeline.ledger.consistency.digest import LedgerDigest, digest_ledger
from ads_pipeline.ledger.roles import Role, apply_roles, role_statements
from ads_pipeline.ledger.sql.database import display_url
from ads_pipeline.operations.cli.command_line.options import AsJson
from ads_pipeline.operations.cli.command_line.output import Column, Fields, table_of, write_results
from ads_pipeline.operations.cli.command_line.parsing import require_ledger
from ads_pipeline.pipeline.progress import progress_on
from ads_pipeline.settings.environment import POSTGRES_FORM, Settings, is_postgres_url

COLUMNS: Final = (
    Column("table", "table"),
    Column("rows", "rows"),
    Column("sha256", lambda row: row["sha256"][:16]),  # 80 columns hold no more digits
)
SQLITE: Final = "sqlite:///"

ROLE_PREFIX: Final = re.compile(r"[a-z][a-z0-9_]{0,39}")
Prefix = Annotated[str, typer.Option(metavar="NAME", help="Start of the names of the roles.")]
Apply = Annotated[bool, typer.Option("--apply", help="Execute the statements instead of printing them.")]


def ledger_copy(
    settings: Settings,
    *,
    target: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="URL", help="An empty database: postgresql+psycopg2://user@host/name or sqlite:////path."
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Copy nothing: print the digests, and compare them with a copy if one is named."
        ),
    ] = False,
    as_json: AsJson = False,
) -> bool:
    """Copy the whole ledger into an empty database, from SQLite to Postgres or back, or compare it with a copy.

    The source is the database of the current settings. Every table is copied as of one moment, in one transaction on
    the target. Before the commit the digests of all tables are compared. After an error or a crash the target is
    empty. The schema is created when it is missing.

    Two ledgers have the same digest exactly when all their rows are equal, also when one is in SQLite and the other
    in Postgres. Exit code of --verify: 1 when the two differ, else 0.

    A password in the URL is visible to other users of this machine while the command runs. PGPASSWORD or a .pgpass
    file avoids that.
    """
    target_name = None if target is None else _check_target(target)
    if target is None and not verify:
        raise BadCommand("give the database by --to, or --verify for the digests alone")
    require_ledger(settings)
    if verify:
        return _verify(settings, target, as_json=as_json)
    copied = copy_ledger(settings.database_url, str(target), progress=progress_on(sys.stderr, unit="rows"))
    summary = f"copied {count_of(copied.rows, 'row')} to {target_name}; all digests match"
    write_results(_digest_rows(copied), (), (), as_json=as_json)
    for line in (summary, *_next_steps(str(target))):
        typer.echo(line, err=as_json)  # not wrapped, so that paths can be copied
    return False


def _verify(settings: Settings, target: str | None, *, as_json: bool) -> bool:
    """Print the digests, and return whether the other ledger has different ones."""
    found = digest_ledger(settings.database_url)
    other = found if target is None else digest_ledger(target)
    differing = [name for name, digest in found.tables.items() if other.tables[name] != digest]
    rows = _digest_rows(found)
    notes = [found.sha256]
    if target is not None:
        notes.append(f"differing tables: {', '.join(differing)}" if differing else "all digests match")
    write_results(rows, table_of(rows[:-1], COLUMNS), notes, as_json=as_json)
    return bool(differing)


def ledger_roles(settings: Settings, *, prefix: Prefix = "ads_pipeline", apply: Apply = False) -> None:
    """Print the SQL of the database roles with their least rights: reader, extractor, runner, operator and owner.

    The roles are groups without a login; grant them to logins. With --apply, the statements are executed in one
    transaction, by a login that owns the tables and may create roles. They can be executed again: after each
    migration, and after Dagster has created its tables. SQLite has no roles.
    """
    if settings.postgres_url is None:
        raise BadCommand(
            "SQLite has no roles: whoever may write the ledger's file may change everything. "
            "Set ADS_PIPELINE_DATABASE_URL to a Postgres database"
        )
    if ROLE_PREFIX.fullmatch(prefix) is None:
        raise BadCommand("--prefix must be a lower-case letter, then up to 39 of a-z, 0-9 and _")
    if not apply:
        for statement in role_statements(prefix):
            typer.echo(f"{statement};")
        return
    apply_roles(settings.postgres_url, prefix)
    names = ", ".join(f"{prefix}_{role}" for role in Role)
    typer.echo(f"set the rights of {names} on {display_url(settings.postgres_url)}")


def _check_target(url: str) -> str:
    """The URL without its password, for messages. Raises BadCommand, which never repeats the URL."""
    if not is_postgres_url(url) and (not url.startswith(SQLITE) or url == SQLITE or not url.isprintable()):
        raise BadCommand(f"--to must be {POSTGRES_FORM}; or {SQLITE}/path of a file")
    return display_url(url)


def _next_steps(target: str) -> tuple[str, ...]:
    use = "set ADS_PIPELINE_DATABASE_URL to the URL of the copy, for every process of the deployment"
    if target.startswith(SQLITE):
        use = "move the copy to ledger.db in ADS_PIPELINE_HOME, and unset ADS_PIPELINE_DATABASE_URL"
    return (
        f"next: {use}",
        "nothing may write to the old ledger meanwhile: later writes are not in the copy",
        "Dagster's own records are not part of the ledger and were not copied",
    )


def _digest_rows(found: LedgerDigest) -> list[Fields]:
    """A row for each table, then one for the whole ledger."""
    tables = [{"table": name, "rows": one.rows, "sha256": one.sha256} for name, one in found.tables.items()]
    return [*tables, {"table": None, "rows": found.rows, "sha256": found.sha256}]
