"""Lists recorded partitions: those that filters select, those with data that are not current, and terminal ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.days.materialization_status import DisplayStatus, StaleReason
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.days.settlement import ReportState
from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.operations.cli.command_line.options import Filters, Page
from ads_pipeline.operations.cli.command_line.output import (
    PARTITION_COLUMNS,
    Column,
    cell,
    fields_of,
    format_minute,
    table_of,
    write_results,
)
from ads_pipeline.operations.cli.state.day_lines import day_fields
from ads_pipeline.operations.cli.state.forecast import describe_forecasts, forecast_fields
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.next_steps import find_next_commands
from ads_pipeline.pipeline.days.staleness import AssetStatus, PartitionStaleness, calculate_staleness
from ads_pipeline.settings.environment import Settings

Keep = Callable[[Sequence[PartitionState]], list[PartitionState]]
STATES_PER_READ: Final = 1_000
STATUSES: Final = (Status.SUCCESS, Status.FAILED, Status.PENDING)  # in the order of the summary
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLists:
    """The lists of one command: of what the filters select, one page, as a table or as JSON."""

    settings: Settings
    ledger: LedgerReader
    filters: Filters
    page: Page
    as_json: bool

    @property
    def selection(self) -> StateFilter:
        return self.filters.select(self.settings)

    def write_recorded(self) -> None:
        """Write the recorded partitions in key order."""
        states, selection, start = self.ledger.states, self.selection, self._start
        shown = states.page(selection, after=start, limit=self.page.limit)
        notes = [count_statuses(self.ledger, selection) or self.filters.count(0, "recorded partition")]
        if len(shown) == self.page.limit:
            rest = states.count_by_status(selection, after=shown[-1].key, max_count=LARGEST_COUNT).values()
            more = f"{_describe_count(*rest)} more follow; continue with", f"  --after {shown[-1].key}"
            notes += more if any(rest) else ()
        self._write(shown, notes)

    def write_stale(self) -> None:
        """Write the readable partitions whose data are not current, in key order."""

        def keep(states: Sequence[PartitionState]) -> list[PartitionState]:
            current = self._calculate([state.key for state in states])
            return [state for state in states if _data_label(current[state.key]) in STALE_LABELS.values()]

        self._write_kept("stale partition", keep, Status.SUCCESS)

    def write_terminal(self) -> None:
        """Write the failed partitions that are terminal, and the pending ones whose fetches were given up."""

        def keep(states: Sequence[PartitionState]) -> list[PartitionState]:
            forecasts = self.ledger.retry_queue.forecast(states, self.settings.retry_policy)
            return [state for state in states if forecasts[state.key].terminal or forecasts[state.key].given_up]

        self._write_kept("terminal failure", keep, Status.FAILED, Status.PENDING)

    def rows(self, days: Mapping[PartitionKey, DayCondition]) -> Iterator[dict[str, object]]:
        """Every field of each partition, for JSON. A partition without a row is pending, without attempts."""
        states, current = self.ledger.states.get_many(days), self._calculate(list(days))
        forecasts = self.ledger.retry_queue.forecast(list(states.values()), self.settings.retry_policy)
        commands = find_next_commands(self.ledger, days, self.settings.retry_policy)
        names = self.ledger.accounts.names(self.settings.google_apis.source)
        for key, day in days.items():
            fields = state_fields(states[key], current[key]) | forecast_fields(forecasts[key])
            yield fields | day_fields(day, commands[key]) | {"customer_name": names.get(key.customer_id)}

    @property
    def _start(self) -> PartitionKey | None:
        return None if self.page.after is None else parse_key(self.page.after)

    def _write_kept(self, noun: str, keep: Keep, *statuses: Status) -> None:
        """Read partitions until more than a page is kept: what is kept depends on the clock, so no index has it."""
        selection, after = replace(self.selection, statuses=frozenset(statuses)), self._start
        kept = list[PartitionState]()
        while len(kept) <= self.page.limit:
            states = self.ledger.states.page(selection, after=after, limit=STATES_PER_READ)
            if not states:
                break
            kept += keep(states)
            after = states[-1].key
        shown, more = self.page.cut(kept, lambda state: state.key)
        self._write(shown, [self.filters.count(len(shown), noun), *more])

    def _write(self, shown: Sequence[PartitionState], notes: Sequence[str]) -> None:
        keys = [state.key for state in shown]
        days = describe_days(self.ledger, keys, DayRules.read(self.ledger, self.settings, now=datetime.now(UTC)))
        if self.as_json:
            write_results(self.rows(days), (), notes, as_json=True)
            return
        current = self._calculate(keys)
        forecasts = self.ledger.retry_queue.forecast(shown, self.settings.retry_policy)
        rows = [fields_of(each) | {"data": _data_label(current[each.key], days[each.key].report)} for each in shown]
        remarks = _remarks(shown, dict(describe_forecasts(forecasts)))
        write_results((), [*table_of(rows, COLUMNS), *remarks], notes, as_json=False)

    def _calculate(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, PartitionStaleness]:
        return calculate_staleness(self.ledger, self.settings.google_apis, keys, now=datetime.now(UTC))


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
    """A short label of how current the data are; for current data, of how final their figures are, if it is known."""
    shown = current.summary
    if shown.display is DisplayStatus.STALE and shown.stale:
        return STALE_LABELS[shown.stale.reason]
    if shown is current.warehouse and shown.display is DisplayStatus.NEVER_MATERIALIZED:
        return STALE_LABELS[StaleReason.UPSTREAM_CHANGED]
    return report if report and shown.display is DisplayStatus.MATERIALIZED else DATA_LABELS[shown.display]


def count_statuses(ledger: LedgerReader, selection: StateFilter) -> str:
    """The number of selected partitions with each status; empty when none is recorded."""
    tally = ledger.states.count_by_status(selection, max_count=LARGEST_COUNT)
    if not any(tally.values()):
        return ""
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
