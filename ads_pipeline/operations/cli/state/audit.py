"""The `audit` commands: list logged control actions, verdicts, terminal failures and parked accounts and queries."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, islice
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.fetching.retry_forecast import RetryForecast
from ads_pipeline.domain.fetching.retry_policy import GivenUp, Terminal
from ads_pipeline.domain.partition import PartitionKey, parse_key, validate_name
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import Attempt, LoggedAction, StateFilter
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, Page, command
from ads_pipeline.operations.cli.command_line.output import (
    PARTITION_COLUMNS,
    Column,
    cell,
    fields_of,
    format_instant,
    grid_of,
    table_of,
    write_list,
    write_results,
)
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.operations.cli.state.why import attempt_fields, describe_verdict
from ads_pipeline.settings.environment import Settings

CHANGED_COLUMNS: Final = (*PARTITION_COLUMNS, Column("before", lambda row: row["status_before"] or "absent"))
TERMINAL_COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("attempts", "attempt_count"),
    Column("terminal", "why", wrap=True),
)
PARKED_COLUMNS: Final = (
    Column("what", lambda row: "account" if row["scope"] == "customer" else row["scope"]),
    Column("name", "name", wrap=True),
    Column("since", "parked_at"),
    Column("why", lambda row: f"{row['error_class']}: {row['why']}", wrap=True),
)
ActionId = Annotated[
    str | None, typer.Option("--action", metavar="ACTION_ID", help="List the partitions that this action changed.")
]
audit: Final = typer.Typer()


@command(audit, "actions")
def list_actions(settings: Settings, page: Page, *, action: ActionId = None, as_json: AsJson = False) -> None:
    """List the control actions of operators and of the retry policy, newest first.

    Each with its time, operator, command, filters, reason and number of changed partitions.
    """
    with open_ledger(settings) as ledger:
        if action is not None:
            _list_changed_partitions(ledger, action, page, as_json=as_json)
            return
        start = None if page.after is None else _logged_action(ledger, page.after)[0]
        shown, more = page.cut(ledger.audit.page(after=start, limit=page.limit + 1), lambda each: each.action_id)
    blocks = (each for entry in shown for each in _action_blocks(entry))
    write_results(map(fields_of, shown), blocks, [count_of(len(shown), "action"), *more], as_json=as_json)


@command(audit, "terminal")
def list_terminal(settings: Settings, filters: Filters, page: Page, *, as_json: AsJson = False) -> None:
    """List the failed partitions that are terminal, and the pending ones whose fetches were given up.

    They are marked, too old, or have failed too often. "state retry --clear-terminal" retries them.
    """
    selection = filters.select(settings)
    start = None if page.after is None else parse_key(page.after)
    with open_ledger(settings) as ledger:
        found = list(islice(_terminal_failures(settings, ledger, selection, start), page.limit + 1))
    shown, more = page.cut(found, lambda each: each[0].key)
    rows = [
        fields_of(
            state.key,
            attempt_count=state.attempt_count,
            terminal=found.reason if isinstance(found, Terminal) else "given_up",
            why=found.explanation,
            error_message=state.error_message,
        )
        for state, found in shown
    ]
    write_list(rows, TERMINAL_COLUMNS, [filters.count(len(shown), "terminal failure"), *more], as_json=as_json)


@command(audit, "attempts")
def list_attempts(settings: Settings, filters: Filters, page: Page, *, as_json: AsJson = False) -> None:
    """List the verdicts on the matching partitions, in the order recorded.

    Each with its outcome and its effect on the partition; a rejection also with its error class and message.
    """
    selection = filters.select(settings)
    start = None if page.after is None else _parse_attempt(page.after)
    with open_ledger(settings) as ledger:
        found = ledger.runs.page_of_attempts(selection, after=start, limit=page.limit + 1)
    shown, more = page.cut(found, lambda each: f"{each.verdict.run.key}/{each.attempt_no}")
    notes = [filters.count(len(shown), "attempt"), *more]
    write_results(map(attempt_fields, shown), _attempt_blocks(shown), notes, as_json=as_json)


@command(audit, "parked")
def list_parked(settings: Settings, *, as_json: AsJson = False) -> None:
    """List the parked accounts and queries, with time and reason, and the holds.

    "state release" resumes fetching.
    """
    with open_ledger(settings) as ledger:
        source = settings.google_apis.source
        rows = [fields_of(parking) for parking in ledger.retry_queue.list_parkings(source)]
        holds = ledger.quota.list_holds(source)
    notes = [f"{len(rows):,} parked", *(f"{hold}; to lift it now: {hold.release_command}" for hold in holds)]
    write_list(rows, PARKED_COLUMNS, notes, as_json=as_json)


def _list_changed_partitions(ledger: LedgerReader, action_id: str, page: Page, *, as_json: bool) -> None:
    """Write the partitions that an action changed, with the status of each before it."""
    start = None if page.after is None else parse_key(page.after)
    parts = _logged_action(ledger, action_id)
    found = ledger.audit.page_of_partitions([each.action_id for each in parts], after=start, limit=page.limit + 1)
    shown, more = page.cut(found, lambda each: each[0])
    rows = [fields_of(key, action_id=action_id, status_before=before) for key, before in shown]
    blocks = [*(each for part in parts for each in _action_blocks(part)), *table_of(rows, CHANGED_COLUMNS)]
    write_results(rows, blocks, [count_of(len(shown), "partition"), *more], as_json=as_json)


def _logged_action(ledger: LedgerReader, action_id: str) -> list[LoggedAction]:
    found = ledger.audit.parts(validate_name("action_id", action_id))
    if not found:
        raise BadName("action_id", action_id, 'there is no such action; "ads-pipeline audit actions" lists them')
    return found


def _terminal_failures(
    settings: Settings, ledger: LedgerReader, selection: StateFilter, after: PartitionKey | None
) -> Iterator[tuple[PartitionState, Terminal | GivenUp]]:
    """Yield page by page, because most failed and pending partitions may not be terminal."""
    failed = replace(selection, statuses=frozenset({Status.FAILED, Status.PENDING}))
    while page := ledger.states.page(failed, after=after):
        forecasts = ledger.retry_queue.forecast(page, settings.retry_policy)
        yield from ((state, found) for state in page if (found := _find_end(forecasts[state.key])))
        after = page[-1].key


def _find_end(forecast: RetryForecast) -> Terminal | GivenUp | None:
    return forecast.terminal or forecast.given_up


def _parse_attempt(word: str) -> tuple[PartitionKey, int]:
    """Parse source/customer_id/query_name/YYYY-MM-DD/number."""
    partition, _, number = word.rpartition("/")
    if not (number.isascii() and number.isdigit()):
        raise BadName("attempt", word, "an attempt is source/customer_id/query_name/YYYY-MM-DD/number")
    return parse_key(partition), int(number)


def _action_blocks(entry: LoggedAction) -> Iterator[RenderableType]:
    changed = count_of(entry.partitions_changed, "partition")
    yield cell(f"{format_instant(entry.performed_at)}  {entry.action} by {entry.operator}, {changed}", style="bold")
    facts = {"reason": entry.reason, "command": entry.command, "filters": entry.filters, "action": entry.action_id}
    yield from (grid_of(((f"  {name}", fact) for name, fact in facts.items()), style="dim"), Text(""))


def _attempt_blocks(shown: Iterable[Attempt]) -> Iterator[RenderableType]:
    for key, listed in groupby(shown, lambda each: each.verdict.run.key):
        yield cell(key, style="bold")
        verdicts = ((each.attempt_no, f"{each.verdict.run.run_id} {describe_verdict(each)}") for each in listed)
        yield from (grid_of(verdicts, justify="right"), Text(""))
