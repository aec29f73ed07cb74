"""The command `warehouse gaps`: the expected days that readers do not see, for whom, since when and why."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import chain
from typing import Annotated, Final

import typer
from rich.console import RenderableType

from ads_pipeline.domain.batches import split_batches
from ads_pipeline.domain.days.conditions import count_unreadable
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions, expand, join_ranges
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.operations.cli.command_line.options import DATE_FORMAT, AsJson, Filters
from ads_pipeline.operations.cli.command_line.output import Column, format_minute, table_of, write_results
from ads_pipeline.operations.cli.command_line.parsing import day_windows, open_ledger
from ads_pipeline.operations.cli.state.attention import describe_unknown
from ads_pipeline.operations.cli.state.day_lines import NAME_COLUMN, day_rows, row_of
from ads_pipeline.pipeline.days.day_conditions import DayRules, Gaps, find_gaps
from ads_pipeline.pipeline.days.next_steps import find_next_commands
from ads_pipeline.settings.environment import Settings

COLUMNS: Final = (
    Column("customer", "customer_id"),
    NAME_COLUMN,
    Column("days", "days"),
    Column("gaps", "gaps"),
    Column("condition", "condition"),
    Column("since", lambda row: format_minute(row["since"]), from_width=120),
    Column("because", "reason", wrap=True, below=True),
)
DAYS_PER_BATCH: Final = 10_000
FirstDay = Annotated[
    str | None, typer.Option(metavar=DATE_FORMAT, help="First logical date. Default: the query file's start_date.")
]
LastDay = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Last logical date. Default: today.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapFilters(Filters):
    """The options that say which partitions are expected."""

    since: FirstDay = None
    until: LastDay = None


def list_gaps(settings: Settings, filters: GapFilters, *, as_json: AsJson = False) -> bool:
    """List expected days that readers do not see: for whom, since when, and why.

    Without options, it lists them for every query of the query file and every customer. A customer's days are
    expected from the first fetched day of the query on. A day counts as fetched when a run was sealed or a fetch
    failed. A single day that was fetched late, and is more than a month apart from the others, is expected alone. An
    account that discovery found has every query, from its first fetched day on. A day is expected once it is due,
    which the query file says per query.

    Exit code: 0 without gaps, 1 with gaps or for a customer that is not known.
    """
    since, until = _expected_days(settings, filters)
    selection = replace(filters.select(settings), since=since, until=until)
    with open_ledger(settings) as ledger:
        first_days = ledger.days.first_days(settings.google_apis.source, selection.customer_ids)
        unknown = describe_unknown(first_days, selection.customer_ids)
        rules = DayRules.read(ledger, settings, now=datetime.now(UTC))
        found = {
            window.query_name: find_gaps(ledger, window, first_days=first_days, rules=rules)
            for window in day_windows(settings, selection)
        }
        ranges = [each for gaps in found.values() for each in gaps.ranges]
        number = count_conditions(ranges).total()
        single = first_days.describe_single(list(found), since)
        notes = [*unknown, *single, count_unreadable(number, sum(gaps.expected for gaps in found.values()))]
        if ranges:
            first, _day = next(_expand(found.values()))
            notes += ["next, for one of them:", f"  ads-pipeline state why {first.short_name}"]
        names = ledger.accounts.names(settings.google_apis.source)
        rows = _describe(settings, ledger, found.values(), names) if as_json else ()
        write_results(rows, _blocks(ranges, names), notes, as_json=as_json)
    return bool(ranges or unknown)


def _expand(found: Iterable[Gaps]) -> Iterator[tuple[PartitionKey, DayCondition]]:
    return chain.from_iterable(expand(gaps.ranges) for gaps in found)


def _describe(
    settings: Settings, ledger: LedgerReader, found: Iterable[Gaps], names: Mapping[str, str]
) -> Iterator[Mapping[str, object]]:
    """One row per day. No more than a batch of them is in memory."""
    for days in map(dict, split_batches(_expand(found), DAYS_PER_BATCH)):
        yield from day_rows(days, find_next_commands(ledger, days, settings.retry_policy), names)


def _expected_days(settings: Settings, filters: GapFilters) -> tuple[date, date]:
    """The window, cut to the days from the query file's start_date on."""
    start, today, days = settings.google_apis.start_date, datetime.now(UTC).date(), filters.days
    since, until = days.since or start, days.until or today
    if until < start:
        raise BadCommand(
            f"no day is expected before {start}, the start_date of {settings.queries_file}; --until is {until}"
        )
    if until > today:
        raise BadCommand(f"--until {until} is in the future: there is no data for that day yet")
    return max(since, start), until


def _blocks(ranges: Iterable[DayRange], names: Mapping[str, str]) -> Iterator[RenderableType]:
    """One table per query."""
    joined = list(join_ranges(ranges))
    for name in sorted({each.first.query_name for each in joined}):
        rows = [row_of(each, names) for each in joined if each.first.query_name == name]
        yield from table_of(rows, COLUMNS, title=name)
