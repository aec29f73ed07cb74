"""Lists partition states, and publishes partition status. Imports neither Spark nor DuckDB, for a fast start."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.explain.forecast import describe_forecasts, forecast_fields
from ads_pipeline.cli.options import AsJson, Filters, Page, command
from ads_pipeline.cli.output import (
    PARTITION_COLUMNS,
    Column,
    OutputConsole,
    cell,
    count_of,
    fields_of,
    format_minute,
    table_of,
    write_results,
)
from ads_pipeline.cli.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.domain.freshness import DisplayStatus, StaleReason
from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.pipeline.staleness import AssetStatus, PartitionStaleness, StalenessCalculator
from ads_pipeline.settings import Settings

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
state: Final = typer.Typer(
    no_args_is_help=True, help="Show which partitions are safe to read, and change their state."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFilters(Filters):
    """The options that select recorded partitions."""

    status: Annotated[
        list[Status] | None,
        typer.Option(metavar="STATUS", help="Only partitions that are pending, success or failed. Repeatable."),
    ] = None


@command(state, "inspect")
def inspect(settings: Settings, filters: StateFilters, page: Page, *, as_json: AsJson = False) -> None:
    """List recorded partitions with their status, by customer, query and day.

    Below the list it prints the number of matching partitions per status (counted up to 10,000) and how to continue.
    A partition without any run is not recorded; "warehouse gaps" lists those.

    "status" shows whether a partition is safe to read. "data" shows how current it is: current; "reread due", "not
    loaded" or "old code" when stale; "bad rerun" when the last attempt failed and earlier data remain; "never" when
    it was never materialized.
    """
    selection, now = filters.select(settings), datetime.now(UTC)
    selection = replace(selection, statuses=frozenset(filters.status) if filters.status else None)
    start = None if page.after is None else parse_key(page.after)
    with open_ledger(settings) as ledger:
        shown = ledger.states.page(selection, after=start, limit=page.limit)
        tally = ledger.states.count_by_status(selection, max_count=LARGEST_COUNT)
        current = StalenessCalculator(
            settings.freshness_policies, ledger.statuses.get_code_versions(settings.google_apis.source)
        ).calculate(ledger.statuses, (state.key for state in shown), now=now)
        forecasts = ledger.retry_queue.forecast(shown, settings.retry_policy)
        rest = (
            ledger.states.count_by_status(selection, after=shown[-1].key, max_count=LARGEST_COUNT)
            if len(shown) == page.limit
            else {}
        )
    notes = [_count_summary(tally) if any(tally.values()) else filters.count(0, "recorded partition")]
    if any(rest.values()):
        notes += [f"{_describe_count(*rest.values())} more follow; continue with", f"  --after {shown[-1].key}"]
    rows = [state_fields(state, current[state.key]) | forecast_fields(forecasts[state.key]) for state in shown]
    labelled = [row | {"data": _data_label(current[state.key])} for row, state in zip(rows, shown, strict=True)]
    remarks = _remarks(shown, dict(describe_forecasts(forecasts)))
    write_results(rows, [*table_of(labelled, COLUMNS), *remarks], notes, as_json=as_json)


@command(state, "publish")
def publish(settings: Settings) -> None:
    """Write partition_status.parquet for DuckDB, notebooks and dashboards.

    It has one row per asset partition: last materialization and its run, last attempt, and since when and why the
    partition is stale. The file is replaced atomically. The hourly job "reconcile" also writes it.
    """
    from ads_pipeline.ledger.status.status_file import write_status_file  # noqa: PLC0415 - it loads PyArrow

    with open_ledger_for_writing(settings) as ledger:
        swept = StalenessCalculator(
            settings.freshness_policies, ledger.statuses.get_code_versions(settings.google_apis.source)
        ).store_changes(ledger.statuses, now=datetime.now(UTC))
        written = write_status_file(ledger.statuses.read_all(), settings.status_file)
    summary = f"{count_of(written, 'row')} in {settings.status_file}; {swept:,} changed since the last sweep"
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


def _data_label(current: PartitionStaleness) -> str:
    """How current the data are, as a short label."""
    shown = current.summary
    if shown.display is DisplayStatus.STALE and shown.stale:
        return STALE_LABELS[shown.stale.reason]
    if shown is current.warehouse and shown.display is DisplayStatus.NEVER_MATERIALIZED:
        return STALE_LABELS[StaleReason.UPSTREAM_CHANGED]
    return DATA_LABELS[shown.display]


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
