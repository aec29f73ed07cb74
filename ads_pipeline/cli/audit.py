"""Lists logged control actions, verdicts, terminal failures and parked accounts and queries. Read-only."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby, islice

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.explain.why import describe_verdict
from ads_pipeline.cli.output import (
    CELL_PADDING,
    OutputConsole,
    cell,
    count_of,
    format_instant,
    iso_instant,
    new_table,
    write_json,
)
from ads_pipeline.cli.parsing import open_ledger
from ads_pipeline.cli.states import unknown_query_note
from ads_pipeline.domain.partition import PartitionKey, parse_key, validate_name
from ads_pipeline.domain.retry import Terminal
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import Attempt, LoggedAction, StateFilter
from ads_pipeline.pipeline.operator_actions import OperatorActions
from ads_pipeline.settings import Settings

Blocks = Sequence[Table | Text]


def list_actions(settings: Settings, *, after: str | None, limit: int, as_json: bool) -> None:
    """Write the logged control actions, newest first."""
    with open_ledger(settings) as ledger:
        page = ledger.list_actions(after=None if after is None else _logged_action(ledger, after)[0], limit=limit + 1)
    shown = page[:limit]
    objects = (asdict(each) | {"performed_at": iso_instant(each.performed_at)} for each in shown)
    notes = [count_of(len(shown), "action"), *_next_page_hint(page[limit:], shown[-1].action_id if shown else "")]
    _write(objects, [each for entry in shown for each in _action_blocks(entry)], notes, as_json=as_json)


def list_action_partitions(
    settings: Settings, action_id: str, *, after: str | None, limit: int, as_json: bool
) -> None:
    """Write the partitions that an action changed, with the status of each before it."""
    start = None if after is None else parse_key(after)
    with open_ledger(settings) as ledger:
        logged = _logged_action(ledger, action_id)
        page = ledger.list_changed_partitions([each.action_id for each in logged], after=start, limit=limit + 1)
    shown = page[:limit]
    table = new_table(customer="left", query="fold", day="left", before="left")
    for key, before in shown:
        table.add_row(*map(cell, (*_key_cells(key), before or "absent")))
    objects = (asdict(key) | {"action_id": action_id, "status_before": before} for key, before in shown)
    notes = [count_of(len(shown), "partition")]
    notes += _next_page_hint(page[limit:], str(shown[-1][0]) if shown else "")
    blocks = [each for part in logged for each in _action_blocks(part)]
    _write(objects, [*blocks, *_table_blocks(table, shown)], notes, as_json=as_json)


def list_terminal(
    settings: Settings, selection: StateFilter, *, after: str | None, limit: int, as_json: bool
) -> None:
    """Write the terminal partitions with the reason."""
    start = None if after is None else parse_key(after)
    with open_ledger(settings) as ledger:
        found = list(islice(_terminal_failures(settings, ledger, selection, start), limit + 1))
    shown = found[:limit]
    table = new_table(customer="left", query="fold", day="left", attempts="right", terminal="fold")
    for state, answer in shown:
        table.add_row(*map(cell, (*_key_cells(state.key), state.attempt_count, answer.explanation)))
    objects = (
        asdict(state.key)
        | {"attempt_count": state.attempt_count, "terminal": answer.reason, "why": answer.explanation}
        | {"error_message": state.error_message}
        for state, answer in shown
    )
    notes = [count_of(len(shown), "terminal failure"), *([] if shown else unknown_query_note(selection, settings))]
    notes += _next_page_hint(found[limit:], str(shown[-1][0].key) if shown else "")
    _write(objects, _table_blocks(table, shown), notes, as_json=as_json)


def list_attempts(
    settings: Settings, selection: StateFilter, *, after: str | None, limit: int, as_json: bool
) -> None:
    """Write the verdicts on matching partitions in the order they were recorded."""
    start = None if after is None else _parse_attempt(after)
    with open_ledger(settings) as ledger:
        page = ledger.list_attempts(selection, after=start, limit=limit + 1)
    shown = page[:limit]
    last = f"{shown[-1].run.key}/{shown[-1].attempt_no}" if shown else ""
    notes = [count_of(len(shown), "attempt"), *([] if shown else unknown_query_note(selection, settings))]
    notes += _next_page_hint(page[limit:], last)
    _write(map(_attempt_fields, shown), list(_attempt_blocks(shown)), notes, as_json=as_json)


def list_parked(settings: Settings, *, as_json: bool) -> None:
    """Write the parked accounts and queries."""
    with open_ledger(settings) as ledger:
        found = ledger.retry_queue.list_parkings(settings.google_apis.source)
    table = new_table(what="left", name="fold", since="left", why="fold")
    for each in found:
        what = "account" if each.scope == "customer" else each.scope
        at = "" if each.parked_at is None else format_instant(each.parked_at)
        table.add_row(*map(cell, (what, each.name, at, f"{each.error_class}: {each.why}")))
    objects = (asdict(each) | {"parked_at": iso_instant(each.parked_at)} for each in found)
    _write(objects, _table_blocks(table, found), [f"{len(found):,} parked"], as_json=as_json)


def _write(objects: Iterable[dict[str, object]], shown: Blocks, notes: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        write_json(objects)
        print(*notes, sep="\n", file=sys.stderr)  # noqa: T201 - standard output holds JSON only
        return
    console = OutputConsole()
    for each in shown:
        console.print(each)
    for note in notes:
        console.print(cell(note), soft_wrap=True)


def _table_blocks(table: Table, rows: Sequence[object]) -> Blocks:
    return [table, Text("")] if rows else []


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
    grid = Table.grid(padding=CELL_PADDING)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name in ("reason", "command", "filters", "action_id"):
        if getattr(entry, name):
            grid.add_row(cell(f"  {name.removesuffix('_id')}"), cell(getattr(entry, name)))
    yield from (grid, Text(""))


def _attempt_blocks(shown: Iterable[Attempt]) -> Iterator[Table | Text]:
    for key, listed in groupby(shown, lambda each: each.run.key):
        yield cell(key, style="bold")
        grid = Table.grid(padding=CELL_PADDING)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
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


def _key_cells(key: PartitionKey) -> tuple[object, ...]:
    return key.customer_id, key.query_name, key.logical_date
