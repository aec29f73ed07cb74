"""Checks the arguments that commands share (dates, customers, queries, runs) and opens the ledger for them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from ads_pipeline.domain.errors import BadCommand, BadName, EventsNotFound, LedgerMissing
from ads_pipeline.domain.partition import PartitionKey, parse_date, parse_key, validate_name
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.sql.ledger_values import DayWindow, StateFilter
from ads_pipeline.settings.environment import Settings, abbreviate_home, has_ledger

if TYPE_CHECKING:
    from ads_pipeline.ledger.events.event_reader import EventReader, RunHead
    from ads_pipeline.ledger.ledger import Ledger, LedgerReader

OTHER_DATE: Final = re.compile(r"([0-9]{4})[-/.]?([0-9]{1,2})[-/.]?([0-9]{1,2})")  # spelt otherwise, year first
_PRINTED_BY_GOOGLE: Final = re.compile(r"[0-9]{3}-[0-9]{3}-[0-9]{4}")
SHORTEST_RUN_PREFIX: Final = 4  # characters; Dagster's UI shows the first eight

Value = TypeVar("Value")


class DateWindow(NamedTuple):
    """Days from `since` to `until`, both included; None leaves an end open."""

    since: date | None
    until: date | None


def parse_window(since: str | None, until: str | None, logical_date: str | None = None) -> DateWindow:
    """The window of days; `logical_date` alone is a window of one day.

    Raises BadName for an invalid date, BadCommand when two contradict each other or the window is in the future.
    """
    if logical_date is not None:
        if since is not None or until is not None:
            raise BadCommand("--logical-date selects one day, --since and --until a window: give one or the other")
        since = until = logical_date
    first = None if since is None else parse_day(since)
    last = None if until is None else parse_day(until)
    if first is not None and last is not None and last < first:
        raise BadCommand(f"--until {last} is before --since {first}: exchange them")
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    if first is not None and first > tomorrow:  # tomorrow has begun in time zones east of UTC
        raise BadCommand(f"{first} is in the future: no day after {tomorrow} has data")
    return DateWindow(since=first, until=last)


def parse_day(text: str) -> date:
    """Parse a date. Raises BadName, which suggests the valid spelling of one such as 2026-3-1."""
    return _parse(text, parse_date, OTHER_DATE.sub(lambda match: f"{match[1]}-{match[2]:0>2}-{match[3]:0>2}", text))


def parse_customer(text: str) -> str:
    """The digits of a customer id, also of one with hyphens as Google prints it. Raises BadName for another text."""
    if _PRINTED_BY_GOOGLE.fullmatch(text):
        return text.replace("-", "")
    return _parse(text, partial(validate_name, "customer_id"), re.sub(r"[-\s]", "", text))


def _parse(text: str, parse: Callable[[str], Value], spelling: str) -> Value:
    """Parse a text. Raises BadName, which suggests another spelling if that is valid."""
    try:
        return parse(text)
    except BadName as error:
        try:
            hint = f"; did you mean {parse(spelling)}?"
        except BadName:
            hint = ""
        raise BadName(error.field, text, f"{error.rule}{hint}") from None


def parse_partition(word: str, settings: Settings) -> PartitionKey:
    """Parse a partition, adding the source when it is left out. Raises BadName for an invalid one.

    The customer may have hyphens as Google prints them.
    """
    word = "/".join(parse_customer(part) if _PRINTED_BY_GOOGLE.fullmatch(part) else part for part in word.split("/"))
    is_short = word.count("/") == 2  # noqa: PLR2004 - customer/query/date
    return parse_key(f"{settings.google_apis.source}/{word}" if is_short else word)


def parse_customers(given: Sequence[str] | None) -> list[str] | None:
    """Sorted unique customer ids; None when none was given."""
    return sorted(set(map(parse_customer, given))) if given else None


def parse_queries(given: Sequence[str] | None, settings: Settings) -> list[str]:
    """Sorted unique query names, by default all. Raises BadName for one that the query file does not define."""
    for name in given or ():
        settings.query(name)
    return sorted(set(given or settings.google_apis.queries))


def is_selected(key: PartitionKey, selection: StateFilter) -> bool:
    """True if the customer, the query and the day of a partition match the filter."""
    return (
        (selection.customer_ids is None or key.customer_id in selection.customer_ids)
        and (selection.query_names is None or key.query_name in selection.query_names)
        and (selection.since is None or key.logical_date >= selection.since)
        and (selection.until is None or key.logical_date <= selection.until)
    )


def day_windows(settings: Settings, selection: StateFilter) -> Iterator[DayWindow]:
    """The selected days of each selected query: by default from the query file's start_date to today."""
    apis = settings.google_apis
    for name in sorted(selection.query_names or apis.queries):
        yield DayWindow(
            source=apis.source,
            query_name=name,
            since=selection.since or apis.start_date,
            until=selection.until or datetime.now(UTC).date(),
            customers=selection.customer_ids,
        )


def open_ledger(settings: Settings) -> AbstractContextManager["LedgerReader"]:
    """Open the ledger read-only. Raises LedgerMissing when there is none."""
    from ads_pipeline.ledger.ledger import LedgerReader  # noqa: PLC0415 - it loads SQLAlchemy, which a help needs not

    require_ledger(settings)
    return LedgerReader.opened(settings.database_url, tenancy=settings.tenancy)


def open_raw(settings: Settings) -> RawRuns:
    """The raw runs. Reading them raises RawUnavailable when the root is gone although the ledger knows runs."""

    def is_in_use() -> bool:
        with open_ledger(settings) as ledger:
            return ledger.runs.exist()

    return RawRuns(settings.raw_location, is_in_use=is_in_use)


def open_ledger_for_writing(settings: Settings) -> AbstractContextManager["Ledger"]:
    """Open an existing ledger for writing; its events get a run of their own."""
    from ads_pipeline.ledger.ledger import Ledger  # noqa: PLC0415 - see above

    require_ledger(settings)
    return Ledger.opened(settings.database_url, tenancy=settings.tenancy, create=False)


def find_run(reader: "EventReader", word: str) -> "RunHead":
    """The run with this id or unique id prefix. Raises EventsNotFound, or BadCommand for an ambiguous prefix."""
    matches = reader.find_runs(word) if word.isascii() and word.isprintable() else []
    is_exact = matches[:1] == [word]
    if not matches or (not is_exact and len(word) < SHORTEST_RUN_PREFIX):
        hint = "" if len(word) >= SHORTEST_RUN_PREFIX else f" (give at least {SHORTEST_RUN_PREFIX} characters)"
        raise EventsNotFound(word, f'there is no such run{hint}; "ads-pipeline events runs" lists the runs')
    if not is_exact and len(matches) > 1:
        raise BadCommand(f"{word} matches several runs; give more characters:\n" + "\n".join(matches))
    head = reader.get_head(matches[0])
    if head is None:
        raise EventsNotFound(word, "the run was deleted meanwhile")
    return head


def require_ledger(settings: Settings) -> None:
    """Raise LedgerMissing when there is no ledger."""
    if not has_ledger(settings):
        raise LedgerMissing(abbreviate_home(settings.home), has_runs=Path(settings.raw_location).is_dir())
