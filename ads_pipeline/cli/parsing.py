"""Takes the words of the command line: days, customers, queries and runs are checked, and the ledger is opened.

Which options there are is for `main` to say, what is shown for the module of each command.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, checked_name, parse_date, parse_key
from ads_pipeline.errors import BadCommand, BadSettings, EventsNotFound, Mistake, printable
from ads_pipeline.ledger.control.control_actions import ControlActions
from ads_pipeline.ledger.events.event_log import EventLog
from ads_pipeline.ledger.events.event_reader import EventReader, RunHead
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.settings import Settings

NAMED: Final = ("customer_id", "query_name", "logical_date")  # of a partition of the query file's source
SHORTEST: Final = 4  # letters of a run's name; the UI of Dagster shows the first eight


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Days as they were asked for, both ends included; an end that was left out is open."""

    since: date | None
    until: date | None


def window(since: str | None, until: str | None) -> Window:
    """The days between two words. BadName for what is no day, BadCommand when they are the wrong way round."""
    first = None if since is None else parse_date(since)
    last = None if until is None else parse_date(until)
    if first is not None and last is not None and last < first:
        raise BadCommand(f"--until {last} is before --since {first}: exchange them")
    return Window(since=first, until=last)


def partition_named(word: str, settings: Settings) -> PartitionKey:
    """The partition of that name, which may leave out the source; BadName for what is none."""
    whole = word if word.count("/") != len(NAMED) - 1 else f"{settings.google_apis.source}/{word}"
    return parse_key(whole)


def customers(given: Sequence[str] | None) -> list[str] | None:
    """The customers that were named; None when none was."""
    return sorted({checked_name("customer_id", each) for each in given}) if given else None


def queries(given: Sequence[str] | None, settings: Settings) -> list[str]:
    """The queries that were named, else all there are; BadName for one that the query file does not define."""
    for name in given or ():
        settings.query(name)
    return sorted(set(given or settings.google_apis.queries))


@contextmanager
def ledger_of(settings: Settings) -> Iterator[LedgerReader]:
    """The ledger, to be read; BadSettings where there is none, which waiting would not cure."""
    _check_ledger(settings)
    with LedgerReader.opened(settings.database_url, space=settings.space) as ledger:
        yield ledger


@contextmanager
def writing_ledger_of(settings: Settings) -> Iterator[Ledger]:
    """The same to be written as well, as a run of its own. A ledger that is not there is not made."""
    with ledger_of(settings):  # a writer would make what it does not find
        pass
    with Ledger.opened(settings.database_url, space=settings.space) as ledger:
        yield ledger


@contextmanager
def desk_of(settings: Settings) -> Iterator[ControlActions]:
    """Where acts are carried out, as a run of its own; it cannot record a verdict. No ledger is made here either."""
    with ledger_of(settings):
        pass
    with ControlActions.opened(settings.database_url, space=settings.space) as desk:
        yield desk


@contextmanager
def events_of(settings: Settings) -> Iterator[EventReader]:
    """The events of all runs, to be read; BadSettings where there is no ledger."""
    _check_ledger(settings)
    with EventReader.opened(settings.database_url) as reader:
        yield reader


@contextmanager
def event_log_of(settings: Settings) -> Iterator[EventLog]:
    """The same to be written as well. A ledger that is not there is not made."""
    with events_of(settings):  # a writer would make what it does not find
        pass
    with EventLog.opened(settings.database_url) as log:
        yield log


def run_named(reader: EventReader, word: str) -> RunHead:
    """The run of that name, or the only one whose name begins so; NoSuchEvents or BadCommand where none is meant."""
    found = reader.find_runs(word) if word.isascii() and word.isprintable() else []
    exact = found[:1] == [word]
    if not found or (not exact and len(word) < SHORTEST):
        enough = "" if len(word) >= SHORTEST else f" (of a name, at least {SHORTEST} letters are needed)"
        raise EventsNotFound(word, f'there is no such run{enough}; "ads-pipeline events runs" lists them')
    if not exact and len(found) > 1:
        raise BadCommand(f"{word} begins the names of several runs, write more of it:\n" + "\n".join(found))
    head = reader.head(found[0])
    if head is None:
        raise EventsNotFound(word, "it was there a moment ago")
    return head


def _check_ledger(settings: Settings) -> None:
    file = settings.home / "ledger.db"
    if settings.postgres_url is None and not file.exists():
        problem = f"there is no ledger at {printable(str(file))}; the pipeline makes one when it first runs"
        raise BadSettings((Mistake(place="ADS_PIPELINE_HOME", problem=problem),))
