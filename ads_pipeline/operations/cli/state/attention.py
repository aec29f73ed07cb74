"""Lists days by their condition, the most urgent first: what `state inspect` shows without filters."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.days.conditions import CONDITIONS, Condition, urgency
from ads_pipeline.domain.days.day_ranges import DayRange, count_conditions, join_ranges
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.ledger.state.first_days import FirstDays
from ads_pipeline.operations.cli.command_line.output import STATUS_STYLES, Column, format_minute, table_of
from ads_pipeline.operations.cli.command_line.parsing import day_windows
from ads_pipeline.operations.cli.state.day_lines import NAME_COLUMN, name_condition, row_of, selection_of
from ads_pipeline.pipeline.days.day_conditions import DayRules, find_ranges
from ads_pipeline.pipeline.days.next_steps import DAYS, find_next_commands, name_days
from ads_pipeline.settings.environment import Settings

COLUMNS: Final = (
    Column("customer", "customer_id"),
    NAME_COLUMN,
    Column("query", "query_name", wrap=True),
    Column("days", "days"),
    Column("since", lambda row: format_minute(row["since"]), from_width=120),
    Column("reason", "reason", wrap=True, below=True),
)


def find_listed_ranges(
    settings: Settings, ledger: LedgerReader, selection: StateFilter, conditions: Collection[Condition]
) -> list[DayRange]:
    """Find the selected days with one of the conditions: of every query of the query file, from its start_date on."""
    first_days = ledger.days.first_days(settings.google_apis.source, selection.customer_ids)
    rules = DayRules.read(ledger, settings, now=datetime.now(UTC))
    ranges = list[DayRange]()
    for window in day_windows(settings, selection):
        starts = first_days.of_query(window.query_name)
        ranges += find_ranges(ledger, window, conditions, first_days=starts, rules=rules)
    return ranges


def describe_unknown(first_days: FirstDays, customers: Collection[str] | None) -> list[str]:
    """One line for each of these customers that nothing is known of."""
    unknown = sorted(set(customers or ()) - set(first_days.customers) - first_days.discovered)
    return [f"customer {each} is not known: it has no run, no failed fetch and no account" for each in unknown]


def order_ranges(ranges: Iterable[DayRange]) -> list[DayRange]:
    """The joined ranges: the most urgent condition first, and of each the newest days first."""
    return sorted(join_ranges(ranges), key=lambda each: urgency(each.condition, each.last.logical_date))


def summarize(ranges: Iterable[DayRange]) -> str:
    """One line: how many days need an operator, by condition."""
    counts = count_conditions(ranges)
    days = counts.total()
    parts = ", ".join(
        f"{counts[condition]:,} {name_condition(condition)}" for condition in CONDITIONS if counts[condition]
    )
    needed = sum(number for condition, number in counts.items() if CONDITIONS[condition].needs_operator)
    if needed != days:
        return f"{count_of(days, 'day')}: {parts}"
    return (
        f"{count_of(needed, 'day')} {'needs' if needed == 1 else 'need'} you: {parts}" if days else "no day needs you"
    )


def build_blocks(ranges: Sequence[DayRange], names: Mapping[str, str]) -> Iterator[RenderableType]:
    """One table per condition, below its meaning. `names` are those of the accounts."""
    for condition, text in CONDITIONS.items():
        rows = [row_of(each, names) for each in ranges if each.condition is condition]
        title = Text.assemble((text.label, f"bold {STATUS_STYLES.get(condition, '')}"), f": {text.meaning}")
        yield from table_of(rows, COLUMNS, title=title)


def next_command(settings: Settings, ledger: LedgerReader, days: DayRange) -> str:
    """The command to run next for the days."""
    found = find_next_commands(ledger, {days.last: days.day}, settings.retry_policy, name=lambda _key: DAYS)
    return name_days(found[days.last], newest=days.last.short_name, selection=selection_of(days))
