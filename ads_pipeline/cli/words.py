"""Takes the words of the command line: days, customers and queries are checked, and the ledger is opened to be read.

Which options there are is for `main` to say, what is shown for the module of each command.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date

from ads_pipeline.errors import BadCommand, BadSettings, Mistake, printable
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.partition import checked_name, parse_date
from ads_pipeline.settings import Settings


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
    file = settings.home / "ledger.db"
    if settings.postgres_url is None and not file.exists():
        problem = f"there is no ledger at {printable(str(file))}; the pipeline makes one when it first runs"
        raise BadSettings((Mistake(place="ADS_PIPELINE_HOME", problem=problem),))
    with LedgerReader.opened(settings.database_url, space=settings.space) as ledger:
        yield ledger
