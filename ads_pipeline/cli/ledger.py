"""The `ledger` commands: copy the whole ledger into another database, and print its digest."""

import sys
from typing import Annotated, Final

import typer

from ads_pipeline.cli.options import AsJson, command
from ads_pipeline.cli.output import Column, Fields, count_of, table_of, write_results
from ads_pipeline.cli.parsing import require_ledger
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger.consistency.copying import copy_ledger
from ads_pipeline.ledger.consistency.digest import LedgerDigest, digest_ledger
from ads_pipeline.ledger.database import display_url
from ads_pipeline.progress import progress_on
from ads_pipeline.settings import POSTGRES_FORM, Settings, is_postgres_url

COLUMNS: Final = (
    Column("table", "table"),
    Column("rows", "rows"),
    Column("sha256", lambda row: row["sha256"][:16]),  # 80 columns hold no more digits
)
SQLITE: Final = "sqlite:///"

ledger: Final = typer.Typer(no_args_is_help=True, help="Copy the ledger to another database, and print its digest.")


@command(ledger, "copy")
def ledger_copy(
    settings: Settings,
    *,
    target: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="An empty database: postgresql+psycopg2://user@host/name or sqlite:////path."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Copy the whole ledger into an empty database: from SQLite to Postgres, or back.

    The source is the database of the current settings. Every table is copied as of one moment, in one transaction on
    the target. Before the commit the digests of all tables are compared. After an error or a crash the target is
    empty. The schema is created when it is missing.

    A password in the URL is visible to other users of this machine while the command runs. PGPASSWORD or a .pgpass
    file avoids that.
    """
    target_name = _check_target(target)
    require_ledger(settings)
    copied = copy_ledger(settings.database_url, target, progress=progress_on(sys.stderr, unit="rows"))
    summary = f"copied {count_of(copied.rows, 'row')} to {target_name}; all digests match"
    write_results(_digest_rows(copied), (), (), as_json=as_json)
    for line in (summary, *_next_steps(target)):
        typer.echo(line, err=as_json)  # not wrapped, so that paths can be copied


@command(ledger, "digest")
def ledger_digest(settings: Settings, *, as_json: AsJson = False) -> None:
    """Print a digest of everything the ledger holds, and one for each table.

    Two ledgers have the same digest exactly when all their rows are equal, also when one is in SQLite and the other
    in Postgres.
    """
    require_ledger(settings)
    found = digest_ledger(settings.database_url)
    rows = _digest_rows(found)
    write_results(rows, table_of(rows[:-1], COLUMNS), [found.sha256], as_json=as_json)


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
