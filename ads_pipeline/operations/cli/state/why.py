"""Prints `state why`: everything known about one partition, and the next steps.

Imports neither Spark nor DuckDB. `partition_report` gathers the report and `next_steps` decides the steps.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from ads_pipeline.domain.days.conditions import NEEDS_OPERATOR
from ads_pipeline.domain.days.materialization_status import AttemptOutcome, DisplayStatus
from ads_pipeline.domain.days.readability import DayCondition
from ads_pipeline.domain.errors import BadCommand
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.run_events import LoggedEvent
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.ledger.sql.ledger_values import Attempt, PartitionAction, Pointer, StateFilter
from ads_pipeline.operations.cli.command_line.event_tables import event_to_json, format_event_data, shorten_names
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, OneOrMostUrgent, Page
from ads_pipeline.operations.cli.command_line.output import (
    STATUS_STYLES,
    OutputConsole,
    cell,
    fields_of,
    format_instant,
    grid_of,
    write_json,
    write_results,
)
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, parse_partition
from ads_pipeline.operations.cli.state.attempts import attempt_fields, describe_verdict, list_attempts
from ads_pipeline.operations.cli.state.attention import find_listed_ranges, order_ranges
from ads_pipeline.operations.cli.state.day_lines import day_fields
from ads_pipeline.operations.cli.state.forecast import describe_forecast, forecast_fields
from ads_pipeline.operations.cli.state.partition_report import PartitionReport, gather_report
from ads_pipeline.operations.cli.state.recorded import DATA_LABELS, STALE_LABELS, state_fields
from ads_pipeline.operations.cli.state.selection import PARTITIONS_AND_OPTIONS, require_possible
from ads_pipeline.pipeline.days.account_days import describe_account
from ads_pipeline.pipeline.days.next_steps import next_steps
from ads_pipeline.pipeline.days.staleness import AssetStatus
from ads_pipeline.settings.environment import Settings

ANY: Final = Filters()
FIRST_PAGE: Final = Page()
OnlyAttempts = Annotated[bool, typer.Option("--attempts", help="Only list the verdicts on the selected partitions.")]
ENDS: Final = {
    AttemptOutcome.SUCCEEDED: "succeeded",
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.CANCELLED: "was cancelled",
}


def print_report(
    settings: Settings,
    partition: OneOrMostUrgent = None,
    filters: Filters = ANY,
    page: Page = FIRST_PAGE,
    *,
    attempts: OnlyAttempts = False,
    as_json: AsJson = False,
) -> None:
    """Explain one partition: its state, runs, verdicts and events, and the next step.

    Without a partition, it explains the most urgent of the selected days that need attention, the first that "state
    inspect" lists. With --attempts, it lists the verdicts on all selected partitions instead, in the order recorded,
    each with its outcome and its effect.

    It prints whether the partition is safe to read and from which run, what readers see, every run with its verdicts,
    operators' actions, the last events and how current the data are. For a partition without a row, it prints "not
    recorded" and lists any sealed runs on disk.
    """
    if partition is not None and str(filters):
        raise BadCommand(PARTITIONS_AND_OPTIONS)
    if page.after is not None and not attempts:
        raise BadCommand("--after needs --attempts")
    key = None if partition is None else parse_partition(partition, settings)
    if attempts:
        with open_ledger(settings) as ledger:
            list_attempts(ledger, _select(settings, key, filters), filters, page, as_json=as_json)
        return
    key = key or _find_most_urgent(settings, filters)
    if key is None:
        note = f"no day needs attention{filters.selected}; name a partition: customer/query/YYYY-MM-DD"
        write_results((), (), [note], as_json=as_json)
        return
    report = gather_report(settings, key)
    if not report.is_known:
        require_possible(key, settings, report.rules)
    if as_json:
        write_json([_json_fields(report)])
    else:
        _write(OutputConsole(), report, settings)


def _select(settings: Settings, key: PartitionKey | None, filters: Filters) -> StateFilter:
    if key is None:
        return filters.select(settings)
    return StateFilter(
        source=key.source,
        customer_ids=frozenset({key.customer_id}),
        query_names=frozenset({key.query_name}),
        since=key.logical_date,
        until=key.logical_date,
    )


def _find_most_urgent(settings: Settings, filters: Filters) -> PartitionKey | None:
    """The newest of the days on the first line of `state inspect`; None when no day needs attention."""
    with open_ledger(settings) as ledger:
        ranges = order_ranges(find_listed_ranges(settings, ledger, filters.select(settings), NEEDS_OPERATOR))
    return ranges[0].last if ranges else None


def _write(console: OutputConsole, report: PartitionReport, settings: Settings) -> None:
    console.print(cell(report.key, style="bold"), Text(""), _summary(report), sep="\n")
    _write_section(console, "runs", _run_lines(report, settings))
    if report.actions:
        _write_section(console, "control actions", map(_action_line, report.actions))
    _write_section(console, "events", _event_lines(report.events))
    _write_section(console, "next", [("", str(step)) for step in next_steps(report.facts)])


def _summary(report: PartitionReport) -> Table:
    state = report.state
    since = f"since {format_instant(state.updated_at)}, " if state.updated_at else ""
    status = f"{state.status} {since}{count_of(state.attempt_count, 'attempt')}"
    rows = "" if state.record_count is None else f" with {count_of(state.record_count, 'row')}"
    safe = f"yes, from run {state.current_run_id}{rows}" if report.is_safe else "no"
    return grid_of(
        [
            ("safe to read", cell(safe, style="green" if report.is_safe else "red")),
            ("readers see", _describe_visible_run(report)),
            ("condition", _describe_condition(report.day)),
            ("status", cell(status, style=STATUS_STYLES[state.status]) if report.publication else "not recorded"),
            ("account", report.account and describe_account(report.account)),
            ("account's day", report.account_day),
            ("raw asset", _describe_asset(report.staleness.raw, "accepted", report.attempts)),
            ("warehouse", _describe_asset(report.staleness.warehouse, "loaded")),
            ("in Dagster", report.no_asset_reason and f"no asset: {report.no_asset_reason}"),
            *describe_forecast(report.forecast).items(),
        ],
        style="dim",
    )


def _describe_condition(day: DayCondition) -> str:
    if not day.is_expected:
        return day.entry.label.lower()
    if day.acknowledged:
        return f"{day.entry.label.lower()}: {day.acknowledged}"
    operator = f", by {day.operator}" if day.operator else ""
    return f"{day.entry.label.lower()} since {format_instant(day.since)}{operator}"


def _describe_visible_run(report: PartitionReport) -> str:
    pointer = report.pointer
    if report.day.gap is not None or pointer is None:
        return f"nothing, because {report.day.explanation}"
    run_id, current = pointer.run.run_id, report.state.current_run_id
    not_loaded = "" if run_id == current else f"; {current} is accepted and not loaded yet"
    at = format_instant(pointer.changed_at)
    return f"run {run_id} since {at}, table version {pointer.table_version}{not_loaded}"


def _describe_asset(asset: AssetStatus, done: str, verdicts: Sequence[Attempt] = ()) -> str:
    """Staleness with every reason, the last materialization, and the last attempt if it failed.

    `done` is what happened to the run that materialized the asset. `verdicts` name who rejected the last attempt.
    """
    # The attempt that failed is named below.
    parts = [] if asset.display is DisplayStatus.LAST_ATTEMPT_FAILED else [DATA_LABELS[asset.display]]
    if asset.stale:
        first, *others = (STALE_LABELS[reason] for reason in asset.reasons)
        also = f" (and {', '.join(others)})" if others else ""
        parts.append(f"{first} since {format_instant(asset.stale.since)}{also}")
    return "; ".join([*parts, *_describe_attempts(asset, done, verdicts)])


def _describe_attempts(asset: AssetStatus, done: str, verdicts: Sequence[Attempt]) -> Iterator[str]:
    """The run that materialized the asset, and the end of the last attempt if it failed. One run is named once."""
    status, ends = asset.status, dict[str, list[str]]()
    if status and status.last_materialization_at:
        run_id = str(status.last_materialization_run_id)
        ends[run_id] = [f"was {done} at {format_instant(status.last_materialization_at)}"]
    if status and status.last_attempt_at and asset.display is not DisplayStatus.MATERIALIZED:
        run_id = str(status.last_attempt_run_id)
        end = _describe_end(asset, [each for each in verdicts if each.verdict.run.run_id == run_id])
        ends.setdefault(run_id, []).append(f"{end} at {format_instant(status.last_attempt_at)}")
    return (f"{run_id} {' and '.join(each)}" for run_id, each in ends.items())


def _describe_end(asset: AssetStatus, verdicts: Sequence[Attempt]) -> str:
    reason = verdicts[-1].verdict.reason if verdicts else None
    if reason is not None:
        return f"was rejected by {reason.operator or 'the validator'}"
    return ENDS[asset.last_attempt] if asset.last_attempt else "ended"


def _run_lines(report: PartitionReport, settings: Settings) -> Iterator[tuple[str, str]]:
    """Every registered run with its verdicts, then the sealed runs that are not registered."""
    attempts: dict[str, list[Attempt]] = {}
    for attempt in report.attempts:
        attempts.setdefault(attempt.verdict.run.run_id, []).append(attempt)
    for registered, at in report.registered:
        run_id = registered.run.run_id
        rows = "damaged" if registered.record_count is None else count_of(registered.record_count, "row")
        problem = _describe_problem(report, run_id)
        yield f"{registered.ordinal}", f"{run_id}, {rows}, registered {format_instant(at)}{problem}"
        for attempt in attempts.get(run_id, ()):
            yield "", describe_verdict(attempt)
        if run_id not in attempts:
            yield "", "no verdict yet"
    for run_id, sealed in report.unregistered.items():
        rows_or_damage = (
            f"damaged: {sealed.problem}" if isinstance(sealed, DamagedRun) else count_of(sealed.record_count, "row")
        )
        yield "-", f"{run_id}, sealed and not registered, {rows_or_damage}"
    if report.sealed is None:
        yield "", f"sealed runs are unknown: {settings.raw_location} is missing, empty or cannot be opened"
    elif not report.registered and not report.sealed:
        yield "", "no run is registered or sealed"


def _describe_problem(report: PartitionReport, run_id: str) -> str:
    """The damage of the sealed run on disk; empty when it is intact or unknown."""
    if report.sealed is None:
        return ""
    sealed = report.sealed.get(run_id)
    if sealed is None:
        return "; its raw data is missing"
    return f"; damaged: {sealed.problem}" if isinstance(sealed, DamagedRun) else ""


def _action_line(logged: PartitionAction) -> tuple[str, str]:
    text = f"{logged.action} by {logged.operator} ({logged.command}), was {logged.status_before}: {logged.reason}"
    return format_instant(logged.performed_at), text


def _event_lines(events: Sequence[LoggedEvent]) -> Iterator[tuple[str, str]]:
    names = shorten_names(list(dict.fromkeys(logged.event.engine_run_id for logged in events)))
    for logged in events:
        event = logged.event
        line = f"{names[event.engine_run_id]}  {event.event_type}  {format_event_data(event.event_data)}"
        yield format_instant(logged.persisted_at), line.rstrip()
    if not events:
        yield "", "no event is stored"


def _write_section(console: OutputConsole, heading: str, lines: Iterable[tuple[str, str]]) -> None:
    console.print(Text(""), Text(heading, style="bold"), grid_of(lines), sep="\n")


def _json_fields(report: PartitionReport) -> dict[str, Any]:
    """The fields of `state inspect --json`, and all others."""
    gap, pointer = report.day.gap, report.pointer
    return (
        state_fields(report.state, report.staleness)
        | forecast_fields(report.forecast)
        | day_fields(report.day, report.command)
        | {
            "recorded": report.publication is not None,
            "safe": report.is_safe,
            "customer_name": report.account and report.account.name,
            "account": report.account and describe_account(report.account),
            "account_day": report.account_day,
            "readers_see": None if gap or pointer is None else _run_fields(pointer),
            "missing_because": gap and gap.value,
            "runs": [_run_fields(run) | {"registered_at": at} for run, at in report.registered],
            "attempts": list(map(attempt_fields, report.attempts)),
            "not_registered": None if report.sealed is None else list(report.unregistered),
            "actions": [fields_of(logged) for logged in report.actions],
            "events": [event_to_json(logged) for logged in report.events],
            "next": [str(step) for step in next_steps(report.facts)],
        }
    )


def _run_fields(value: Pointer | RegisteredRun) -> dict[str, Any]:
    fields = {name: field for name, field in asdict(value).items() if name != "run"}
    return {"run_id": value.run.run_id} | fields
