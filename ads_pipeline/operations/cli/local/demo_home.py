"""The home of a demo: which one it is, whether it may be used, and the commands to go on with.

A demo writes made-up runs that stay for ever, so it never shares a home, a lake or a database with other runs.
"""

import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Final

from ads_pipeline.domain.errors import BadCommand, BadSettings, LedgerOutdated, Mistake, RawUnavailable
from ads_pipeline.domain.quoting import printable
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.storage.durable_files import atomic_write, make_durable_directories
from ads_pipeline.operations.cli.command_line.output import OutputConsole
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.operations.doctor import java_and_spark
from ads_pipeline.operations.doctor.examination import Severity
from ads_pipeline.settings.environment import Settings, abbreviate_home, has_ledger, read_settings
from ads_pipeline.settings.query_file import DEFAULT_QUERIES_FILE, narrow_query_file

HOME_VARIABLE: Final = "ADS_PIPELINE_HOME"
PROGRAM: Final = "ads-pipeline"


def choose_home(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """The environment with a home: the one that is set, or one for demos beside the default home.

    A user without a home directory gets none, and `read_settings` refuses it.
    """
    given = {key: text for key, text in environ.items() if text}
    if HOME_VARIABLE not in given:
        with suppress(RuntimeError):
            given[HOME_VARIABLE] = str(Path.home() / name)
    return given


def open_home(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    queries: Collection[str],
    first_day: date,
    customers: Collection[str],
) -> Settings:
    """Return the settings of a home whose query file has the demo's queries and begins at its first day.

    The query file is written unless there is one, in the home or named by ADS_PIPELINE_QUERIES. Raises BadCommand
    when the file does not fit, or when the home knows runs of other customers. Then nothing was written.
    """
    _refuse_other_runs(settings, customers)
    make_durable_directories(settings.home)
    if settings.queries_file == DEFAULT_QUERIES_FILE:
        text = narrow_query_file(first_day, queries)
        with atomic_write(settings.home / DEFAULT_QUERIES_FILE.name) as file:
            file.write(f"# Written by `ads-pipeline demo`.\n{text}".encode())
    found = read_settings(environ)
    if found.google_apis.start_date > first_day or not set(queries) <= found.google_apis.queries.keys():
        needed = f"{', '.join(sorted(queries))} from {first_day} on"
        raise BadCommand(
            f"{found.queries_file} does not fit the demo, which needs {needed}: "
            f"name an empty directory in {HOME_VARIABLE}"
        )
    return found


def require_spark(settings: Settings, environ: Mapping[str, str]) -> None:
    """Raise BadSettings with every reason why Spark cannot start here. It is checked before anything is written."""
    found = [each for each in java_and_spark.find_problems(settings, environ) if each.severity is Severity.ERROR]
    if found:
        raise BadSettings(
            tuple(Mistake(location=each.location, problem=f"{each.problem}; {each.next_step}") for each in found)
        )


def print_next_commands(console: OutputConsole, settings: Settings, commands: Iterable[str]) -> None:
    """Print the commands to go on with. They work as they stand in any shell on this machine."""
    console.print("\nGo on with these lines:\n")
    console.print(f"export {HOME_VARIABLE}={shlex.quote(str(settings.home))}", soft_wrap=True, highlight=False)
    own = Path(sys.executable).parent
    if shutil.which(PROGRAM) != str(own / PROGRAM):
        console.print(f"export PATH={shlex.quote(str(own))}:$PATH", soft_wrap=True, highlight=False)
    for command in commands:
        console.print(f"{PROGRAM} {command}", soft_wrap=True, highlight=False)


def _refuse_other_runs(settings: Settings, customers: Collection[str]) -> None:
    """Raise BadCommand when the ledger or the raw root knows a customer that the demo does not have."""
    other = next(iter(sorted(_find_customers(settings) - set(customers))), None)
    if other is None:
        return
    where = f"the database and {settings.lake}" if settings.postgres_url else abbreviate_home(settings.home)
    raise BadCommand(
        f"{where} has runs of customer {printable(other)}, which the demo did not make; its own runs would stay "
        f"beside them for ever. Give the demo a home of its own: {HOME_VARIABLE}=~/.ads_pipeline_demo {PROGRAM} demo"
    )


def _find_customers(settings: Settings) -> set[str]:
    found = set[str]()
    if has_ledger(settings):
        with suppress(LedgerOutdated), open_ledger(settings) as ledger:
            found |= set(ledger.days.first_days(settings.google_apis.source).customers)
    raw = RawRuns(settings.raw_location, is_in_use=lambda: False)
    with suppress(RawUnavailable):
        for run in raw.find_runs(source=settings.google_apis.source, since=date.min, until=date.max):
            found.add(run.run.key.customer_id if run.run is not None else f"at {run.path}")
    return found
