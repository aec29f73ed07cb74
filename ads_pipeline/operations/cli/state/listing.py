"""Lists partition states, and publishes partition status. Imports neither Spark nor DuckDB, for a fast start."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR, QUIET_CONDITIONS, Condition, ReportState
from ads_pipeline.domain.days.materialization_status import DisplayStatus, StaleReason
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, Page, command
from ads_pipeline.operations.cli.command_line.output import (
    PARTITION_COLUMNS,
    Column,
    OutputConsole,
    cell,
    fields_of,
    format_minute,
    table_of,
    write_results,
)
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.operations.cli.command_line.status_publication import publish_statuses
from ads_pipeline.operations.cli.state.attention import (
    ConditionName,
    build_blocks,
    describe_unknown,
    find_listed_days,
    name_condition,
    next_command,
    order_ranges,
    summarize,
)
from ads_pipeline.operations.cli.state.day_ranges import DayRange, day_fields
from ads_pipeline.operations.cli.state.forecast import describe_forecasts, forecast_fields
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.next_steps import find_next_commands
from ads_pipeline.pipeline.days.staleness import AssetStatus, PartitionStaleness, StalenessCalculator
from ads_pipeline.settings.environment import Settings

STATUSES: Final = (Status.SUCCESS, Status.FAILED, Status.PENDING)  # in the order of the summary
STATES_PER_READ: Final = 1_000
# Days that the list of work only counts, because nobody has to act on them.
UNLISTED: Final = (*QUIET_CONDITIONS, Condition.UNRECOVERABLE)
LARGEST_COUNT: Final = 10_000  # per status; counting a million would take longer than listing a page
DATA_LABELS: Final = {
    DisplayStatus.MATERIALIZED: "current",
    DisplayStatus.STALE: "stale",
    DisplayStatus.LAST_ATTEMPT_FAILED: "bad rerun",
    DisplayStatus.NEVER_MATERIALIZED: "never",
}
STALE_LABELS: Final = {
    StaleReason.FRESHNESS_POLICY: "reread due",
    StaleReason.UPSTREAM_CHANGED: "not loaded",
    StaleReason.CODE_CHANGED: "old code",
}
COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("status", "status"),
    Column("rows", "record_count"),
    Column("attempts", "attempt_count"),
    Column("data", "data"),
    Column("updated", lambda row: format_minute(row["updated_at"]), from_width=140),
    Column("run", "current_run_id", from_width=120),
)
STATUS_FIELDS: Final = (
    "last_materialization_run_id",
    "last_materialization_at",
    "last_attempt_run_id",
    "last_attempt_at",
    "last_attempt_outcome",
)
state: Final = typer.Typer()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilters(Filters):
    """The options that select recorded partitions."""

    status: Annotated[
        list[Status] | None,
        typer.Option(metavar="STATUS", help="Only partitions that are pending, success or failed. Repeatable."),
    ] = None
    condition: Annotated[
        list[ConditionName] | None,
        typer.Option(
            metavar="NAME",
            help=f"Only days that are {', '.join(ConditionName)}. Repeatable.",
        ),
    ] = None

    def select(self, settings: Settings) -> StateFilter:
        statuses = frozenset(self.status) if self.status else None
        return replace(Filters.select(self, settings), statuses=statuses)


@command(state, "inspect")
def inspect(settings: Settings, filters: StateFilters, page: Page, *, as_json: AsJson = False) -> None:
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

    --condition lists days by what readers get of them, also days without any run. "stale" lists the readable
    partitions whose data are not current.
    """
    conditions = set(filters.condition or ())
    if conditions and filters.status:
        raise BadCommand("--condition and --status cannot be combined: give one")
    if ConditionName.STALE in conditions and len(conditions) > 1:
        raise BadCommand("--condition stale cannot be combined with other conditions: list them one after the other")
    if conditions and page.after and ConditionName.STALE not in conditions:
        raise BadCommand("--condition lists have no pages: use --limit instead of --after")
    with open_ledger(settings) as ledger:
        if ConditionName.STALE in conditions:
            _list_stale(settings, ledger, filters, page, as_json=as_json)
        elif conditions:
            _list_days(settings, ledger, filters, page, as_json=as_json)
        elif not (as_json or page.after or filters.status):
            _list_work(settings, ledger, filters, page)
        else:
            _list_partitions(settings, ledger, filters, page, as_json=as_json)


def _list_work(settings: Settings, ledger: LedgerReader, filters: StateFilters, page: Page) -> None:
    """The selected days that need attention, the most urgent first."""
    selection = filters.select(settings)
    found = find_listed_days(settings, ledger, selection, (*NEEDS_OPERATOR, *UNLISTED))
    days = {key: day for key, day in found.items() if day.condition in NEEDS_OPERATOR}
    ranges, unlisted = order_ranges(days), Counter(day.condition for day in found.values())
    first_days = ledger.days.first_days(settings.google_apis.source, selection.customer_ids)
    names = sorted(selection.query_names or settings.google_apis.queries)
    single = first_days.describe_single(names, selection.since or settings.google_apis.start_date)
    notes = [*describe_unknown(first_days, selection.customer_ids), *single, summarize(days)]
    notes += _count_hidden(len(ranges) - page.limit, "line")
    notes += [
        f"{count_of(unlisted[each], f'{name_condition(each)} day')}: --condition {each} lists them"
        for each in UNLISTED
        if unlisted[each]
    ]
    tally = ledger.states.count_by_status(selection, max_count=LARGEST_COUNT)
    notes.append(
        _count_summary(tally) if any(tally.values()) else f"no partition is recorded{_describe_filters(filters)}"
    )
    _write_days(settings, ledger, ranges, notes, page)


def _list_days(settings: Settings, ledger: LedgerReader, filters: StateFilters, page: Page, *, as_json: bool) -> None:
    """The days with the given conditions, the most urgent first."""
    conditions = [Condition(each) for each in filters.condition or ()]
    days = find_listed_days(settings, ledger, filters.select(settings), conditions)
    ranges = order_ranges(days)
    notes = [summarize(days) if days else filters.count(0, "day")]
    notes += _count_hidden((len(days) if as_json else len(ranges)) - page.limit, "day" if as_json else "line")
    if not as_json:
        _write_days(settings, ledger, ranges, notes, page)
        return
    shown = {key: days[key] for key in islice((key for each in ranges for key in each.keys), page.limit)}
    write_results(_partition_rows(settings, ledger, shown), (), notes, as_json=True)


def _count_hidden(number: int, noun: str) -> list[str]:
    return [f"{count_of(number, noun)} more; --limit N shows more"] if number > 0 else []


def _describe_filters(filters: StateFilters) -> str:
    return f" for {filters}" if str(filters) else ""


def _write_days(
    settings: Settings, ledger: LedgerReader, ranges: Sequence[DayRange], notes: Sequence[str], page: Page
) -> None:
    """One table per condition, then the notes and the next command for the first line."""
    step = ["next, for the first line:", f"  {next_command(settings, ledger, ranges[0])}"] if ranges else []
    write_results((), build_blocks(ranges[: page.limit]), [*notes, *step], as_json=False)


def _list_partitions(
    settings: Settings, ledger: LedgerReader, filters: StateFilters, page: Page, *, as_json: bool
) -> None:
    """The recorded partitions that match, in key order."""
    selection = filters.select(settings)
    shown = ledger.states.page(
        selection, after=None if page.after is None else parse_key(page.after), limit=page.limit
    )
    tally = ledger.states.count_by_status(selection, max_count=LARGEST_COUNT)
    rest = (
        ledger.states.count_by_status(selection, after=shown[-1].key, max_count=LARGEST_COUNT)
        if len(shown) == page.limit
        else {}
    )
    notes = [_count_summary(tally) if any(tally.values()) else filters.count(0, "recorded partition")]
    if any(rest.values()):
        notes += [f"{_describe_count(*rest.values())} more follow; continue with", f"  --after {shown[-1].key}"]
    _write_partitions(settings, ledger, shown, notes, as_json=as_json)


def _list_stale(
    settings: Settings, ledger: LedgerReader, filters: StateFilters, page: Page, *, as_json: bool
) -> None:
    """The recorded partitions whose data are not current, in key order.

    Staleness depends on the clock, so no index has it: partitions are read until the page is full.
    """
    selection = replace(filters.select(settings), statuses=frozenset({Status.SUCCESS}))
    after, found = None if page.after is None else parse_key(page.after), list[PartitionState]()
    while len(found) <= page.limit and (states := ledger.states.page(selection, after=after, limit=STATES_PER_READ)):
        current = _calculate(settings, ledger, [state.key for state in states])
        found += [state for state in states if _data_label(current[state.key]) in STALE_LABELS.values()]
        after = states[-1].key
    shown, more = page.cut(found, lambda state: state.key)
    _write_partitions(settings, ledger, shown, [filters.count(len(shown), "stale partition"), *more], as_json=as_json)


def _write_partitions(
    settings: Settings, ledger: LedgerReader, shown: Sequence[PartitionState], notes: Sequence[str], *, as_json: bool
) -> None:
    keys = [state.key for state in shown]
    if as_json:
        described = _describe(settings, ledger, keys)
        write_results(_partition_rows(settings, ledger, described), (), notes, as_json=True)
        return
    current, days = _calculate(settings, ledger, keys), _describe(settings, ledger, keys)
    forecasts = ledger.retry_queue.forecast(shown, settings.retry_policy)
    rows = [fields_of(state) | {"data": _data_label(current[state.key], days[state.key].report)} for state in shown]
    remarks = _remarks(shown, dict(describe_forecasts(forecasts)))
    write_results((), [*table_of(rows, COLUMNS), *remarks], notes, as_json=False)


def _partition_rows(
    settings: Settings, ledger: LedgerReader, days: Mapping[PartitionKey, DayCondition]
) -> Iterator[dict[str, object]]:
    """Every field of each partition, for JSON. A partition without a row is pending, without attempts."""
    states = ledger.states.get_many(days)
    current = _calculate(settings, ledger, list(days))
    forecasts = ledger.retry_queue.forecast(list(states.values()), settings.retry_policy)
    commands = find_next_commands(ledger, days, settings.retry_policy)
    for key, day in days.items():
        fields = state_fields(states[key], current[key]) | forecast_fields(forecasts[key])
        yield fields | day_fields(day, commands[key])


def _describe(
    settings: Settings, ledger: LedgerReader, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, DayCondition]:
    return describe_days(ledger, keys, DayRules.read(ledger, settings, now=datetime.now(UTC)))


def _calculate(
    settings: Settings, ledger: LedgerReader, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, PartitionStaleness]:
    now = datetime.now(UTC)
    calculator = StalenessCalculator.of_ledger(ledger, settings.google_apis, now=now)
    return calculator.calculate(ledger.statuses, keys, now=now)


@command(state, "publish")
def publish(settings: Settings) -> None:
    """Write partition_status.parquet for DuckDB, notebooks and dashboards.

    It has one row per asset partition: last materialization and its run, last attempt, and since when and why the
    partition is stale. The file is replaced atomically. The command and the hourly job "reconcile" also write it.
    """
    with open_ledger_for_writing(settings) as ledger:
        summary = publish_statuses(settings, ledger)
    OutputConsole().print(cell(summary), soft_wrap=True)


def state_fields(state: PartitionState, current: PartitionStaleness) -> dict[str, object]:
    """Every field of the state in table order, then the status of each asset."""
    return fields_of(state) | _asset_fields("raw", current.raw) | _asset_fields("warehouse", current.warehouse)


def _asset_fields(asset: str, current: AssetStatus) -> dict[str, object]:
    stale = {
        "display_status": current.display,
        "stale_since": current.stale and current.stale.since,
        "stale_reasons": list(current.reasons),
    }
    stored = {name: getattr(current.status, name, None) for name in STATUS_FIELDS}
    return {f"{asset}_{name}": value for name, value in (stale | stored).items()}


def _data_label(current: PartitionStaleness, report: ReportState | None = None) -> str:
    """How current the data are, as a short label; of current data whether their figures are final, if it is known."""
    shown = current.summary
    if shown.display is DisplayStatus.STALE and shown.stale:
        return STALE_LABELS[shown.stale.reason]
    if shown is current.warehouse and shown.display is DisplayStatus.NEVER_MATERIALIZED:
        return STALE_LABELS[StaleReason.UPSTREAM_CHANGED]
    return report if report and shown.display is DisplayStatus.MATERIALIZED else DATA_LABELS[shown.display]


def _count_summary(tally: Mapping[Status, int]) -> str:
    parts = ", ".join(f"{_describe_count(tally[status])} {status}" for status in STATUSES if tally[status])
    return f"{_describe_count(*tally.values())} {'partition' if sum(tally.values()) == 1 else 'partitions'}: {parts}"


def _describe_count(*counts: int) -> str:
    """The sum of counts that may each have stopped at the limit."""
    least = sum(min(count, LARGEST_COUNT) for count in counts)
    return f"more than {least:,}" if any(count > LARGEST_COUNT for count in counts) else f"{least:,}"


def _remarks(shown: Sequence[PartitionState], forecasts: Mapping[PartitionKey, str]) -> Iterator[RenderableType]:
    """The error message and the forecast of each partition that has one."""
    for each in shown:
        forecast = forecasts.get(each.key)
        if each.error_message:  # it starts with the run
            yield from (cell(f"{each.key}/{each.error_message}"), *([cell(forecast)] if forecast else []), Text(""))
        elif forecast:
            yield from (cell(f"{each.key}: {forecast}"), Text(""))
