"""The commands about the ledger as a whole: its export, its digest, and making a lost one anew.

They know no partition. What an export holds is for the ledger's `archive` to say.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from ads_pipeline.cli.output import Paper, cell, counted, listing, write_json
from ads_pipeline.cli.parsing import ledger_of
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger import rebuilding as ledgers
from ads_pipeline.progress import silence, telling
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.rebuilding import Rebuilt
from ads_pipeline.rebuilding import rebuild as make_anew
from ads_pipeline.settings import Settings, read_settings

SHOWN: Final = 16  # of a digest's digits, where it stands in a table
AsJson = Annotated[bool, typer.Option("--json", help="Write one JSON object a line, with every field.")]

ledger: Final = typer.Typer(no_args_is_help=True, help="Export the ledger, and make a lost one anew.")


@ledger.command("export")
def ledger_export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it: JSON, one object a line.")],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a file that is there.")] = False,
) -> None:
    """Write what only the ledger knows to a file, as of one moment.

    These are its logs: runs in their order, verdicts, acts of operators, loads and other attempts; and what stands
    beside them: pointers, unfinished demotions, requests, marks and the retry schedule. States are not in it: they
    follow from the logs. Nor are events, which are not needed to make the ledger anew. The file is there whole or not
    at all, and may be made while others write.
    """
    settings = read_settings(os.environ)
    if file.exists() and not replace:
        raise BadCommand(f"{file} is there already: name another file, or say --replace")
    with ledger_of(settings):  # says in its own words where there is none
        pass
    written = ledgers.export(settings.database_url, file, replace=replace)
    typer.echo(f"exported {written:,} bytes")


@ledger.command("digest")
def ledger_digest(*, as_json: AsJson = False) -> None:
    """Say by one number what the ledger holds.

    It is the same for two ledgers exactly when they hold the same states, logs, pointers and notes, also when one is
    in SQLite and the other in Postgres. Above it stands the same for each table.
    """
    settings = read_settings(os.environ)
    with ledger_of(settings):
        pass
    found = ledgers.digest(settings.database_url)
    if as_json:
        write_json({"part": name, "rows": rows, "sha256": one} for name, (rows, one) in found.parts.items())
        write_json([{"part": None, "rows": found.rows, "sha256": found.whole}])
        return
    table = listing(part="left", rows="right", sha256="left")
    for name, (rows, one) in found.parts.items():
        table.add_row(cell(name), cell(f"{rows:,}"), cell(one[:SHOWN]))
    paper = Paper()
    paper.print(table)
    paper.print(found.whole)


@ledger.command("rebuild")
def ledger_rebuild(
    file: Annotated[Path, typer.Argument(metavar="FILE", help='What the command "ledger export" wrote.')],
) -> None:
    """Make a lost ledger anew from an export.

    Every state is replayed from the logs by the rules, and every run is held to its seal below the home; a run that
    raw does not bear out is named, and the log is believed. What was sealed or judged after the export needs nothing:
    the sensor raw_arrivals finds it and has it judged. Events of the old ledger are not made anew. The ledger must be
    empty; until all of it is there, nothing of it is. The exit code is 0 when raw bears out every run, else 1.
    """
    if not file.is_file():
        raise BadCommand(f'{file} is no file: name one that "ads-pipeline ledger export" wrote')
    if _rebuild(read_settings(os.environ), file).remarks:
        raise typer.Exit(1)


def _rebuild(settings: Settings, file: Path) -> Rebuilt:
    tell = telling(sys.stderr) if sys.stderr.isatty() else silence
    raw = RawRuns(settings.raw_root)
    done = make_anew(settings.database_url, file, raw=raw, space=settings.space, tell=tell)
    paper = Paper()
    for remark in done.remarks:
        paper.print(cell(remark), soft_wrap=True)
    made = done.refilled
    paper.print(cell(f"took {counted(made.rows, 'row')}, replayed {counted(made.states, 'judged partition')}"))
    if done.remarks:
        paper.print(cell(f"raw does not bear out {counted(len(done.remarks), 'run')}"))
    return done
