"""Lists partition states, and publishes partition status. Imports neither Spark nor DuckDB, for a fast start."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.explain.forecast import describe_forecasts, forecast_retries
from ads_pipeline.cli.output import (
    OutputConsole,
    cell,
    count_of,
    iso_instant,
    key_cells,
    partition_table,
    table_blocks,
    with_key,
    write_results,
)
from ads_pipeline.cli.parsing import open_ledger
from ads_pipeline.domain.freshness import DisplayStatus, StaleReason
from ads_pipeline.domain.partition import PartitionKey, parse_key
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.pipeline.staleness import PartitionStaleness, StalenessCalculator
from ads_pipeline.settings import Settings, read_settings

LARGEST_COUNT: Final = 10_000  # per status; counting a million would take longer than listing a page
WIDE_COLUMNS: Final = {"updated": 140, "run": 120}  # column -> least width of the terminal
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
COLOURS: Final = {Status.SUCCESS: "green", Status.FAILED: "red", Status.PENDING: "yellow"}


def inspect(settings: Settings, selection: StateFilter, *, after: str | None, limit: int, as_json: bool) -> None:
    """Write a page of states, the number of matching states, and how to get the next page."""
    start, now = None if after is None else parse_key(after), datetime.now(UTC)
    with open_ledger(settings) as ledger:
        page = ledger.states.page(selection, after=start, limit=limit)
        tally = ledger.states.count_by_status(selection, max_count=LARGEST_COUNT)
        current = StalenessCalculator(
            settings.freshness_policies, ledger.statuses.get_code_versions(settings.google_apis.source)
        ).calculate(ledger.statuses, (state.key for state in page), now=now)
        forecasts = forecast_retries(ledger, page, settings.retry_policy, now=now)
        rest = (
            ledger.states.count_by_status(selection, after=page[-1].key, max_count=LARGEST_COUNT)
            if len(page) == limit
            else {}
        )
    notes = [_count_summary(tally), *([] if any(tally.values()) else unknown_query_note(selection, settings))]
    if any(rest.values()):
        notes += [f"{_total_count(rest)} more follow; continue with", f"  --after {page[-1].key}"]
    objects = (state_fields(state, current[state.key]) | forecasts[state.key].json_fields() for state in page)
    blocks = _page_blocks(page, current, dict(describe_forecasts(forecasts, now)))
    write_results(objects, blocks, notes, as_json=as_json)


def publish() -> None:
    """Write partition_status.parquet for DuckDB, notebooks and dashboards.

    It has one row per asset partition: last materialization and its run, last attempt, and since when and why the
    partition is stale. The file is replaced atomically. The hourly job "reconcile" also writes it.
    """
    from ads_pipeline.ledger.status.status_file import write_status_file  # noqa: PLC0415

    settings = read_settings(os.environ)
    with (
        open_ledger(settings) as ledger,
        StatusTable.opened(settings.database_url, tenancy=settings.tenancy) as status_table,
    ):
        swept = StalenessCalculator(
            settings.freshness_policies, ledger.statuses.get_code_versions(settings.google_apis.source)
        ).store_changes(status_table, now=datetime.now(UTC))
        written = write_status_file(status_table.read_all(), settings.status_file)
    summary = f"{count_of(written, 'row')} in {settings.status_file}; {swept:,} changed since the last sweep"
    OutputConsole().print(cell(summary), soft_wrap=True)


def _count_summary(tally: Mapping[Status, int]) -> str:
    if not any(tally.values()):
        return "no recorded partition matches"
    parts = ", ".join(f"{_limited_count(tally[status])} {status}" for status in COLOURS if tally[status])
    return f"{_total_count(tally)} {'partition' if sum(tally.values()) == 1 else 'partitions'}: {parts}"


def _total_count(tally: Mapping[Status, int]) -> str:
    least = sum(min(count, LARGEST_COUNT) for count in tally.values())
    return f"more than {least:,}" if any(count > LARGEST_COUNT for count in tally.values()) else f"{least:,}"


def _limited_count(count: int) -> str:
    return f"more than {LARGEST_COUNT:,}" if count > LARGEST_COUNT else f"{count:,}"


def unknown_query_note(selection: StateFilter, settings: Settings) -> list[str]:
    """A note when a filtered query is not in the query file, because it may be misspelt."""
    known = settings.google_apis.queries
    unknown = sorted((selection.query_names or frozenset()) - known.keys())
    return (
        [f"{unknown[0]} is not in {settings.queries_file}, which defines {', '.join(sorted(known))}"]
        if unknown
        else []
    )


def state_fields(state: PartitionState, current: PartitionStaleness) -> dict[str, object]:
    """Every field of the state in table order, then the status of each asset."""
    own = {name: value for name, value in asdict(state).items() if name != "key"}
    fields = asdict(state.key) | own | {"updated_at": iso_instant(state.updated_at)}
    for asset, asset_status in (("raw", current.raw), ("warehouse", current.warehouse)):
        status = asset_status.status
        fields |= {
            f"{asset}_display_status": asset_status.display,
            f"{asset}_stale_since": iso_instant(asset_status.stale.since if asset_status.stale else None),
            f"{asset}_stale_reasons": list(asset_status.reasons),
            f"{asset}_last_materialization_run_id": status and status.last_materialization_run_id,
            f"{asset}_last_materialization_at": iso_instant(status.last_materialization_at if status else None),
            f"{asset}_last_attempt_run_id": status and status.last_attempt_run_id,
            f"{asset}_last_attempt_at": iso_instant(status.last_attempt_at if status else None),
            f"{asset}_last_attempt_outcome": asset_status.last_attempt,
        }
    return fields


def _data_label(current: PartitionStaleness) -> str:
    """How current the data are, as a short label."""
    shown = current.summary
    if shown.display is DisplayStatus.STALE and shown.stale:
        return STALE_LABELS[shown.stale.reason]
    if shown is current.warehouse and shown.display is DisplayStatus.NEVER_MATERIALIZED:
        return STALE_LABELS[StaleReason.UPSTREAM_CHANGED]
    return DATA_LABELS[shown.display]


def _page_blocks(
    page: Sequence[PartitionState],
    current: Mapping[PartitionKey, PartitionStaleness],
    forecasts: Mapping[PartitionKey, str],
) -> Iterator[RenderableType]:
    width = OutputConsole().width
    wide = [column for column, least in WIDE_COLUMNS.items() if width >= least]
    table = partition_table(status="left", rows="right", attempts="right", data="left", **dict.fromkeys(wide, "left"))
    for state in page:
        changed = state.updated_at
        more = {"updated": changed and f"{changed:%Y-%m-%d %H:%M}Z", "run": state.current_run_id}
        rows = None if state.record_count is None else f"{state.record_count:,}"
        status = cell(state.status, style=COLOURS[state.status])
        numbers = (rows, f"{state.attempt_count:,}", _data_label(current[state.key]))
        table.add_row(*key_cells(state.key), status, *map(cell, numbers), *(cell(more[column]) for column in wide))
    yield from table_blocks(table)
    for state in page:
        messages = [message for message in (state.error_message, forecasts.get(state.key)) if message]
        if messages:
            yield from (cell(with_key(state.key, messages[0])), *map(cell, messages[1:]), Text(""))
