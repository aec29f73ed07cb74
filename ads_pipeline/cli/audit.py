"""The `audit` commands: list logged control actions, verdicts, terminal failures and parked accounts and queries."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.explain.why import describe_verdict
from ads_pipeline.cli.options import After, AsJson, Customers, Limit, Queries, Since, Until
from ads_pipeline.cli.output import (
    cell,
    count_of,
    format_instant,
    iso_instant,
    key_cells,
    new_grid,
    new_table,
    partition_table,
    table_blocks,
    write_results,
)
from ads_pipeline.cli.parsing import open_ledger, parse_filter
from ads_pipeline.cli.states import unknown_query_note
from ads_pipeline.domain.partition import PartitionKey, parse_key, validate_name
from ads_pipeline.domain.retry import Terminal
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import Attempt, LoggedAction, StateFilter
from ads_pipeline.pipeline.operator_actions import OperatorActions
from ads_pipeline.settings import Settings, read_settings

ActionId = Annotated[
    str | None, typer.Option("--action", metavar="ACTION_ID", help="List the partitions that this action changed.")
]
audit: Final = typer.Typer(no_args_is_help=True, help="List control actions, verdicts and their results.")


@audit.command("actions")
def list_actions(
    *, action: ActionId = None, after: After = None, limit: Limit = 100, as_json: AsJson = False
) -> None:
    """List the control actions of operators and of the retry policy, newest first.

    Each with its time, operator, command, filters, reason and number of changed partitions.
    """
    settings = read_settings(os.environ)
    if action is not None:
        _list_changed_partitions(settings, action, after=after, limit=limit, as_json=as_json)
        return
    with open_ledger(settings) as ledger:
        page = ledger.list_actions(after=None if after is None else _logged_action(ledger, after)[0], limit=limit + 1)
    shown = page[:limit]
    objects = (asdict(each) | {"performed_at": iso_instant(each.performed_at)} for each in shown)
    notes = [count_of(len(shown), "action"), *_next_page_hint(page[limit:], shown[-1].action_id if shown else "")]
    write_results(objects, (each for entry in shown for each in _action_blocks(entry)), notes, as_json=as_json)


def _list_changed_partitions(
    settings: Settings, action_id: str, *, after: str | None, limit: int, as_json: bool
) -> None:
    """Write the partitions that an action changed, with the status of each before it."""
    start = None if after is None else parse_key(after)
    with open_ledger(settings) as ledger:
        logged = _logged_action(ledger, action_id)
        page = ledger.list_changed_partitions([each.action_id for each in logged], after=start, limit=limit + 1)
    shown = page[:limit]
    table = partition_table(before="left")
    for key, before in shown:
        table.add_row(*key_cells(key), cell(before or "absent"))
    objects = (asdict(key) | {"action_id": action_id, "status_before": before} for key, before in shown)
    notes = [count_of(len(shown), "partition")]
    notes += _next_page_hint(page[limit:], str(shown[-1][0]) if shown else "")
    blocks = [each for part in logged for each in _action_blocks(part)]
    write_results(objects, [*blocks, *table_blocks(table)], notes, as_json=as_json)


@audit.command("terminal")
def list_terminal(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the failed partitions that are terminal, with the reason.

    They are marked, too old, or have failed too often. "state retry --clear-terminal" retries them.
    """
    settings = read_settings(os.environ)
    selection = parse_filter(settings, customer=customer, query=query, since=since, until=until)
    start = None if after is None else parse_key(after)
    with open_ledger(settings) as ledger:
        found = list(islice(_terminal_failures(settings, ledger, selection, start), limit + 1))
    shown = found[:limit]
    table = partition_table(attempts="right", terminal="fold")
    for state, answer in shown:
        table.add_row(*key_cells(state.key), cell(state.attempt_count), cell(answer.explanation))
    objects = (
        asdict(state.key)
        | {"attempt_count": state.attempt_count, "terminal": answer.reason, "why": answer.explanation}
        | {"error_message": state.error_message}
        for state, answer in shown
    )
    notes = [count_of(len(shown), "terminal failure"), *([] if shown else unknown_query_note(selection, settings))]
    notes += _next_page_hint(found[limit:], str(shown[-1][0].key) if shown else "")
    write_results(objects, table_blocks(table), notes, as_json=as_json)


@audit.command("attempts")
def list_attempts(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    after: After = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the verdicts on the matching partitions, in the order recorded.

    Each with its outcome and its effect on the partition; a rejection also with its error class and message.
    """
    settings = read_settings(os.environ)
    selection = parse_filter(settings, customer=customer, query=query, since=since, until=until)
    start = None if after is None else _parse_attempt(after)
    with open_ledger(settings) as ledger:
        page = ledger.list_attempts(selection, after=start, limit=limit + 1)
    shown = page[:limit]
    last = f"{shown[-1].run.key}/{shown[-1].attempt_no}" if shown else ""
    notes = [count_of(len(shown), "attempt"), *([] if shown else unknown_query_note(selection, settings))]
    notes += _next_page_hint(page[limit:], last)
    write_results(map(_attempt_fields, shown), _attempt_blocks(shown), notes, as_json=as_json)


@audit.command("parked")
def list_parked(*, as_json: AsJson = False) -> None:
    """List the parked accounts and queries, with time and reason.

    "state release" resumes fetching.
    """
    settings = read_settings(os.environ)
    with open_ledger(settings) as ledger:
        found = ledger.retry_queue.list_parkings(settings.google_apis.source)
    table = new_table(what="left", name="fold", since="left", why="fold")
    for each in found:
        what = "account" if each.scope == "customer" else each.scope
        at = "" if each.parked_at is None else format_instant(each.parked_at)
        table.add_row(*map(cell, (what, each.name, at, f"{each.error_class}: {each.why}")))
    objects = (asdict(each) | {"parked_at": iso_instant(each.parked_at)} for each in found)
    write_results(objects, table_blocks(table), [f"{len(found):,} parked"], as_json=as_json)


def _logged_action(ledger: LedgerReader, action_id: str) -> list[LoggedAction]:
    found = ledger.action_parts(validate_name("action_id", action_id))
    if not found:
        raise BadName("action_id", action_id, 'there is no such action; "ads-pipeline audit actions" lists them')
    return found


def _terminal_failures(
    settings: Settings, ledger: LedgerReader, selection: StateFilter, after: PartitionKey | None
) -> Iterator[tuple[PartitionState, Terminal]]:
    """Yield page by page, because most failed partitions may not be terminal."""
    actions = OperatorActions(ledger=ledger, policy=settings.retry_policy, today=datetime.now(UTC).date())
    failed = replace(selection, statuses=frozenset({Status.FAILED}))
    while page := ledger.list_states(failed, after=after):
        found = actions.find_terminal(page)
        yield from ((state, found[state.key]) for state in page if state.key in found)
        after = page[-1].key


def _parse_attempt(word: str) -> tuple[PartitionKey, int]:
    """Parse source/customer_id/query_name/YYYY-MM-DD/number."""
    partition, _, number = word.rpartition("/")
    if not (number.isascii() and number.isdigit()):
        raise BadName("attempt", word, "an attempt is source/customer_id/query_name/YYYY-MM-DD/number")
    return parse_key(partition), int(number)


def _action_blocks(entry: LoggedAction) -> Iterator[Table | Text]:
    changed = count_of(entry.partitions_changed, "partition")
    yield cell(f"{format_instant(entry.performed_at)}  {entry.action} by {entry.operator}, {changed}", style="bold")
    grid = new_grid(style="dim")
    for name in ("reason", "command", "filters", "action_id"):
        if getattr(entry, name):
            grid.add_row(cell(f"  {name.removesuffix('_id')}"), cell(getattr(entry, name)))
    yield from (grid, Text(""))


def _attempt_blocks(shown: Iterable[Attempt]) -> Iterator[Table | Text]:
    for key, listed in groupby(shown, lambda each: each.run.key):
        yield cell(key, style="bold")
        grid = new_grid(justify="right")
        for each in listed:
            grid.add_row(cell(each.attempt_no), cell(f"{each.run.run_id} {describe_verdict(each)}"))
        yield from (grid, Text(""))


def _attempt_fields(attempt: Attempt) -> dict[str, object]:
    own = {name: value for name, value in asdict(attempt).items() if name != "run"}
    judged = {"run_id": attempt.run.run_id, "judged_at": iso_instant(attempt.judged_at)}
    return asdict(attempt.run.key) | own | judged


def _next_page_hint(rest: Sequence[object], last: str) -> list[str]:
    """How to get the next page, if there is one."""
    return ["more follow; continue with", f"  --after {last}"] if rest else []
