"""Executes `state due`, `state park` and `state release`.

`state due` lists partitions that need a new run now. The retry sensor, not this list, limits how many start at once.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.table import Table

from ads_pipeline.cli.actions.arguments import ActionArguments, build_filter, build_request, check_customers
from ads_pipeline.cli.explain.forecast import describe_parking
from ads_pipeline.cli.options import AsJson, Customers, Limit, Queries, Since, Until
from ads_pipeline.cli.output import (
    OutputConsole,
    cell,
    count_of,
    iso_instant,
    key_cells,
    partition_table,
    table_blocks,
    write_results,
)
from ads_pipeline.cli.parsing import is_selected, open_control_actions, open_ledger
from ads_pipeline.domain.partition import PartitionKey, validate_name
from ads_pipeline.domain.retry import Lane
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger.control.retry_queue import Parking
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.quoting import printable
from ads_pipeline.settings import Settings, read_settings

NO_LIMIT: Final = 1_000_000_000  # filters are applied after the query, so the query must not cut rows off
PARKED_BY_OPERATOR: Final = "parked_by_operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRow:
    """A partition that needs a new run now, with the kind of work, when it became due, and why."""

    key: PartitionKey
    lane: Lane
    kind: str
    since: datetime
    why: str


def list_due(
    *,
    customer: Customers = None,
    query: Queries = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
    as_json: AsJson = False,
) -> None:
    """List the partitions that need a new run now: open requests, and failures whose retry is due.

    Fresh days come first, then backfills; within each, the longest due first. Parked accounts and queries follow.
    The command changes nothing, so extractors may poll it.
    """
    settings = read_settings(os.environ)
    filters: Mapping[str, Any] = {"customer": customer, "query": query, "since": since, "until": until}
    with open_ledger(settings) as ledger:
        selection = build_filter(settings, ledger, **filters)
        due = _find_due(settings, ledger, selection, limit=NO_LIMIT if any(filters.values()) else limit + 1)
        parkings = ledger.retry_queue.list_parkings(settings.google_apis.source)
    shown = due[:limit]
    notes = [_summarize(shown), *(f"parked: {describe_parking(parking)}" for parking in parkings)]
    if len(due) > limit:
        notes.insert(1, "more are due; --limit shows more")
    write_results(
        map(_json_fields, shown), table_blocks(_build_table(shown)), notes, as_json=as_json, wrap_notes=True
    )


def park(settings: Settings, arguments: ActionArguments) -> None:
    """Stop fetching an account or a query until it is released."""
    parking, request = _build_parking(settings, arguments), build_request(arguments)
    with open_ledger(settings) as ledger:
        if parking.scope == "customer":
            check_customers([parking.name], settings, ledger)
        else:
            settings.query(parking.name)
        existing = _find_parking(ledger, parking)
    if existing:
        OutputConsole().print(cell(f"nothing to park: {describe_parking(existing)}"))
        return
    with open_control_actions(settings) as actions:
        is_new = actions.park(parking, request)
    _print_result("parked" if is_new else "already parked:", parking, request.action_id)


def release(settings: Settings, arguments: ActionArguments) -> None:
    """Resume fetching a parked account or query."""
    parking, request = _build_parking(settings, arguments), build_request(arguments)
    with open_ledger(settings) as ledger:
        existing = _find_parking(ledger, parking)
        if existing is None and parking.scope == "customer":
            check_customers([parking.name], settings, ledger)
        elif existing is None:
            settings.query(parking.name)
    if existing is None:
        OutputConsole().print(cell(f"nothing to release: {_describe_scope(parking)} is not parked"))
        return
    with open_control_actions(settings) as actions:
        was_parked = actions.release(parking, request)
    _print_result("released" if was_parked else "already released:", parking, request.action_id)


def _build_parking(settings: Settings, arguments: ActionArguments) -> Parking:
    """The one account or query that the options name. Raises BadCommand for none or several."""
    given = [("customer", "customer_id", name) for name in arguments.customer or ()]
    given += [("query", "query_name", name) for name in arguments.query or ()]
    if len(given) != 1:
        raise BadCommand("give either an account by --customer or a query by --query, not both")
    ((scope, rule, name),) = given
    return Parking(
        source=settings.google_apis.source,
        scope=scope,
        name=validate_name(rule, name),
        error_class=PARKED_BY_OPERATOR,
        why=printable(arguments.reason),
    )


def _find_parking(ledger: LedgerReader, parking: Parking) -> Parking | None:
    parkings = ledger.retry_queue.list_parkings(parking.source)
    return next((each for each in parkings if (each.scope, each.name) == (parking.scope, parking.name)), None)


def _print_result(result: str, parking: Parking, action_id: str) -> None:
    OutputConsole().print(cell(f"{result} {_describe_scope(parking)}"), cell(f"action {action_id}"), sep="\n")


def _describe_scope(parking: Parking) -> str:
    return f"{'account' if parking.scope == 'customer' else 'query'} {parking.name}"


def _find_due(settings: Settings, ledger: LedgerReader, selection: StateFilter, *, limit: int) -> list[DueRow]:
    """The due requests and retries that match, lane by lane."""
    queue, today = ledger.retry_queue, datetime.now(UTC).date()
    options: Mapping[str, Any] = {"source": settings.google_apis.source, "today": today, "limit": limit}
    due = []
    for lane in Lane:
        requests = queue.find_due_requests(settings.retry_policy, lane, **options)
        action_ids = {request.action_id for request in requests}
        why = {action_id: _describe_action(ledger, action_id) for action_id in action_ids}
        rows = [
            DueRow(key=each.key, lane=lane, kind=each.kind, since=each.requested_at, why=why[each.action_id])
            for each in requests
        ]
        keys = queue.find_due(settings.retry_policy, lane, **options)
        scheduled = queue.find_scheduled(keys)
        rows += [
            DueRow(key=key, lane=lane, kind="failed", since=retry.due_at, why=retry.why)
            for key, retry in ((key, scheduled.get(key)) for key in keys)
            if retry is not None and retry.due_at is not None
        ]
        due += sorted((row for row in rows if is_selected(row.key, selection)), key=lambda row: row.since)
    return due


def _describe_action(ledger: LedgerReader, action_id: str) -> str:
    """The operator and the reason of a request."""
    logged = ledger.audit.parts(action_id)
    return next((f"{part.operator}: {part.reason}" for part in logged), f"action {action_id}")


def _summarize(due: Sequence[DueRow]) -> str:
    if not due:
        return "nothing is due"
    counts = {lane: sum(row.lane is lane for row in due) for lane in Lane}
    lanes = ", ".join(f"{count:,} {lane}" for lane, count in counts.items() if count)
    return f"{count_of(len(due), 'partition')} due: {lanes}"


def _build_table(due: Sequence[DueRow]) -> Table:
    table = partition_table(kind="left", since="left", why="fold")
    for row in due:
        table.add_row(*key_cells(row.key), cell(row.kind), cell(f"{row.since:%m-%d %H:%M}Z"), cell(row.why))
    return table


def _json_fields(row: DueRow) -> dict[str, object]:
    return asdict(row.key) | {"lane": row.lane, "kind": row.kind, "since": iso_instant(row.since), "why": row.why}
