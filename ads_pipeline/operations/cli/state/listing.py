"""The command `state inspect`: the days that need attention, days by condition, recorded partitions, and parkings.

Imports neither Spark nor DuckDB, for a fast start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Annotated, Final

import typer

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR, Condition, NextActor, conditions_of
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions
from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.transitions import Status
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, Page
from ads_pipeline.operations.cli.command_line.output import Column, fields_of, write_list, write_results
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.operations.cli.state.attention import (
    build_blocks,
    describe_unknown,
    find_listed_ranges,
    next_command,
    order_ranges,
    summarize,
)
from ads_pipeline.operations.cli.state.day_lines import name_condition
from ads_pipeline.operations.cli.state.recorded import StateLists, count_statuses
from ads_pipeline.settings.environment import Settings

# Days that the list of work only counts, because nobody has to act on them.
UNLISTED: Final = conditions_of(NextActor.DECIDED, NextActor.GIVEN_UP)
PARKED_COLUMNS: Final = (
    Column("what", lambda row: "account" if row["scope"] == "customer" else row["scope"]),
    Column("name", "name", wrap=True),
    Column("since", "parked_at"),
    Column("why", lambda row: f"{row['error_class']}: {row['why']}", wrap=True),
)


class Listing(StrEnum):
    """The lists that `state inspect` shows besides those of days and of recorded partitions."""

    STALE = "stale"
    TERMINAL = "terminal"
    PARKED = "parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilters(Filters):
    """The options that select recorded partitions."""

    status: Annotated[
        list[Status] | None,
        typer.Option(metavar="STATUS", help="Only partitions that are pending, success or failed. Repeatable."),
    ] = None
    condition: Annotated[
        list[Condition] | None,
        typer.Option(metavar="NAME", help=f"Only days that are {', '.join(Condition)}. Repeatable."),
    ] = None

    def select(self, settings: Settings) -> StateFilter:
        statuses = frozenset(self.status) if self.status else None
        return replace(Filters.select(self, settings), statuses=statuses)


def inspect(
    settings: Settings,
    filters: StateFilters,
    page: Page,
    *,
    listing: Annotated[
        Listing | None, typer.Option("--list", metavar="NAME", help=f"Another list: {', '.join(Listing)}.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the days that need attention, or with --status the recorded partitions.

    The table shows what needs attention first: rejected, blocked, missing, late and parked days, and readable days
    whose newest run was rejected or is blocked. Days that an operator acknowledged, marked as terminal or hid are
    only counted; --condition acknowledged or hidden lists them. --customer, --query and the dates select among them.
    Consecutive days with one reason share a line. The next command for the first line follows.

    With --status, --after or --json, it lists recorded partitions by customer, query and day, and no day without a
    run. --json with --condition lists the days of a condition instead. Below the list it prints the
    number of matching partitions per status (counted up to 10,000) and how to continue. "status" shows whether a
    partition is safe to read. "data" shows how current it is: current; "reread due", "not loaded" or "old code" when
    stale; "bad rerun" when the last attempt failed and earlier data remain; "never" when it was never materialized.
    Current data of a known account are "provisional" while the source may change them, then "settled".

    --condition lists days by what readers get of them, also days without any run. --list stale lists the readable
    partitions whose data are not current. --list terminal lists those that are not retried any more: they are marked,
    too old, failed too often or were given up. --list parked lists the accounts, queries and sources that are not
    fetched, and the holds. "state retry --clear-terminal" retries terminal partitions, and "state release" resumes
    fetching.
    """
    _check_options(filters, page, listing)
    with open_ledger(settings) as ledger:
        lists = StateLists(settings=settings, ledger=ledger, filters=filters, page=page, as_json=as_json)
        if listing is Listing.STALE:
            lists.write_stale()
        elif listing is Listing.TERMINAL:
            lists.write_terminal()
        elif listing is Listing.PARKED:
            _write_parked(lists)
        elif filters.condition:
            _write_days(lists, filters.condition)
        elif as_json or page.after or filters.status:
            lists.write_recorded()
        else:
            _write_work(lists)


def _check_options(filters: StateFilters, page: Page, listing: Listing | None) -> None:
    """Raise BadCommand for options that contradict each other."""
    if sum(map(bool, (filters.status, filters.condition, listing))) > 1:
        raise BadCommand("--condition, --status and --list cannot be combined: give one")
    if filters.condition and page.after:
        raise BadCommand("--condition lists have no pages: use --limit instead of --after")
    if listing is Listing.PARKED and (page.after or str(filters)):
        raise BadCommand("--list parked lists everything that is parked: leave out the other options")


def _write_work(lists: StateLists) -> None:
    """The selected days that need attention, the most urgent first."""
    apis, selection = lists.settings.google_apis, lists.selection
    found = find_listed_ranges(lists.settings, lists.ledger, selection, (*NEEDS_OPERATOR, *UNLISTED))
    needed = [each for each in found if each.entry.needs_operator]
    ranges, unlisted = order_ranges(needed), count_conditions(found)
    first_days = lists.ledger.days.first_days(apis.source, selection.customer_ids)
    names = sorted(selection.query_names or apis.queries)
    single = first_days.describe_single(names, selection.since or apis.start_date)
    notes = [*describe_unknown(first_days, selection.customer_ids), *single, summarize(needed)]
    notes += _count_hidden(len(ranges) - lists.page.limit, "line")
    notes += [
        f"{count_of(unlisted[each], f'{name_condition(each)} day')}: --condition {each} lists them"
        for each in UNLISTED
        if unlisted[each]
    ]
    notes.append(count_statuses(lists.ledger, selection) or f"no partition is recorded{lists.filters.selected}")
    _write_ranges(lists, ranges, notes)


def _write_days(lists: StateLists, conditions: Sequence[Condition]) -> None:
    """The selected days with the given conditions, the most urgent first."""
    found = find_listed_ranges(lists.settings, lists.ledger, lists.selection, conditions)
    ranges, limit = order_ranges(found), lists.page.limit
    notes = [summarize(found) if found else lists.filters.count(0, "day")]
    if not lists.as_json:
        _write_ranges(lists, ranges, [*notes, *_count_hidden(len(ranges) - limit, "line")])
        return
    days = ((key, each.describe(key.logical_date)) for each in ranges for key in each.keys)
    hidden = count_conditions(found).total() - limit
    write_results(lists.rows(dict(islice(days, limit))), (), [*notes, *_count_hidden(hidden, "day")], as_json=True)


def _count_hidden(number: int, noun: str) -> list[str]:
    return [f"{count_of(number, noun)} more; --limit N shows more"] if number > 0 else []


def _write_ranges(lists: StateLists, ranges: Sequence[DayRange], notes: Sequence[str]) -> None:
    """One table per condition, then the notes and the next command for the first line."""
    step = (
        ["next, for the first line:", f"  {next_command(lists.settings, lists.ledger, ranges[0])}"] if ranges else []
    )
    names = lists.ledger.accounts.names(lists.settings.google_apis.source)
    write_results((), build_blocks(ranges[: lists.page.limit], names), [*notes, *step], as_json=False)


def _write_parked(lists: StateLists) -> None:
    """The parked accounts, queries and sources, with time and reason, and the holds."""
    source = lists.settings.google_apis.source
    rows = [fields_of(parking) for parking in lists.ledger.retry_queue.list_parkings(source)]
    holds = (f"{hold}; to lift it now: {hold.release_command}" for hold in lists.ledger.quota.list_holds(source))
    write_list(rows, PARKED_COLUMNS, [f"{len(rows):,} parked", *holds], as_json=lists.as_json)
