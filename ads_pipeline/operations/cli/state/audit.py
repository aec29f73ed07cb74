"""The command `audit`: the control actions of operators and of the retry policy, from their log."""

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.errors import BadName
from ads_pipeline.domain.partition import parse_key, validate_name
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import LoggedAction
from ads_pipeline.operations.cli.command_line.options import Page
from ads_pipeline.operations.cli.command_line.output import (
    PARTITION_COLUMNS,
    Column,
    cell,
    fields_of,
    format_instant,
    grid_of,
    table_of,
    write_results,
)
from ads_pipeline.operations.cli.command_line.parsing import open_ledger
from ads_pipeline.settings.environment import Settings

CHANGED_COLUMNS: Final = (*PARTITION_COLUMNS, Column("before", lambda row: row["status_before"] or "absent"))


def list_actions(settings: Settings, page: Page, *, action: str | None, as_json: bool) -> None:
    """Write the actions, newest first, or the partitions that one action changed."""
    with open_ledger(settings) as ledger:
        if action is not None:
            _list_changed_partitions(ledger, action, page, as_json=as_json)
            return
        start = None if page.after is None else _logged_action(ledger, page.after)[0]
        shown, more = page.cut(ledger.audit.page(after=start, limit=page.limit + 1), lambda each: each.action_id)
    blocks = (each for entry in shown for each in _action_blocks(entry))
    write_results(map(fields_of, shown), blocks, [count_of(len(shown), "action"), *more], as_json=as_json)


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
        raise BadName("action_id", action_id, 'there is no such action; "ads-pipeline audit" lists them')
    return found


def _action_blocks(entry: LoggedAction) -> Iterator[RenderableType]:
    changed = count_of(entry.partitions_changed, "partition")
    yield cell(f"{format_instant(entry.performed_at)}  {entry.action} by {entry.operator}, {changed}", style="bold")
    facts = {"reason": entry.reason, "command": entry.command, "filters": entry.filters, "action": entry.action_id}
    yield from (grid_of(((f"  {name}", fact) for name, fact in facts.items()), style="dim"), Text(""))
