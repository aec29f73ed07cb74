"""The command `state due`: the partitions that need a new run now.

The retry sensor, not this list, limits how many start at once.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from ads_pipeline.domain.fetching.retry_policy import Lane
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.ledger.ledger import LedgerReader
from ads_pipeline.ledger.sql.ledger_values import StateFilter
from ads_pipeline.operations.cli.command_line.options import AsJson, Filters, Limit
from ads_pipeline.operations.cli.command_line.output import PARTITION_COLUMNS, Column, fields_of, write_list
from ads_pipeline.operations.cli.command_line.parsing import is_selected, open_ledger
from ads_pipeline.operations.cli.state.selection import select_known
from ads_pipeline.settings.environment import Settings

NO_LIMIT: Final = 1_000_000_000  # filters are applied after the query, so the query must not cut rows off
COLUMNS: Final = (
    *PARTITION_COLUMNS,
    Column("kind", "kind"),
    Column("since", lambda row: f"{row['since']:%m-%d %H:%M}Z"),
    Column("why", "why", wrap=True, below=True),
)


def list_due(settings: Settings, filters: Filters, *, limit: Limit = 100, as_json: AsJson = False) -> None:
    """List the partitions that need a new run now: open requests, and failures whose retry is due.

    Fresh days come first, then backfills; within each, the longest due first. Parked accounts and queries follow.
    The command changes nothing, so extractors may poll it.
    """
    with open_ledger(settings) as ledger:
        selection = select_known(filters, settings, ledger)
        due = _find_due(settings, ledger, selection, limit=NO_LIMIT if str(filters) else limit + 1)
        parkings = ledger.retry_queue.list_parkings(settings.google_apis.source)
    shown = due[:limit]
    notes = [_summarize(shown, filters), *(f"parked: {parking}" for parking in parkings)]
    if len(due) > limit:
        notes.insert(1, "more are due; --limit shows more")
    write_list(shown, COLUMNS, notes, as_json=as_json)


def _find_due(
    settings: Settings, ledger: LedgerReader, selection: StateFilter, *, limit: int
) -> list[dict[str, Any]]:
    """The due requests and retries that match, lane by lane."""
    queue, policy = ledger.retry_queue, settings.retry_policy
    given: Mapping[str, Any] = {
        "source": settings.google_apis.source,
        "today": datetime.now(UTC).date(),
        "limit": limit,
    }
    due: list[dict[str, Any]] = []
    for lane in Lane:
        requests = queue.find_due_requests(policy, lane, **given)
        why = {action_id: _describe_action(ledger, action_id) for action_id in {each.action_id for each in requests}}
        rows: list[dict[str, Any]] = [
            fields_of(each.key, lane=lane, kind=each.kind, since=each.requested_at, why=why[each.action_id])
            for each in requests
            if is_selected(each.key, selection)
        ]
        rows += [
            fields_of(retry.key, lane=lane, kind="failed", since=retry.due_at, why=retry.why)
            for retry in queue.find_due(policy, lane, **given)
            if is_selected(retry.key, selection)
        ]
        due += sorted(rows, key=lambda row: row["since"])
    return due


def _describe_action(ledger: LedgerReader, action_id: str) -> str:
    """The operator and the reason of a request."""
    logged = ledger.audit.parts(action_id)
    return next((f"{part.operator}: {part.reason}" for part in logged), f"action {action_id}")


def _summarize(due: Sequence[Mapping[str, Any]], filters: Filters) -> str:
    if not due:
        return f"nothing that matches {filters} is due" if str(filters) else "nothing is due"
    counts = {lane: sum(row["lane"] is lane for row in due) for lane in Lane}
    lanes = ", ".join(f"{count:,} {lane}" for lane, count in counts.items() if count)
    return f"{count_of(len(due), 'partition')} due: {lanes}"
