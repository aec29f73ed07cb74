"""Says what is wanted now, and parks or releases the accounts and queries for which nothing is to be fetched.

Extractors poll it and people read it. Whose turn it is where room is short, is for the policy and its sensor to say.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from ads_pipeline.cli.actions.arguments import ActionArguments, build_filter, build_request, check_customers
from ads_pipeline.cli.explain.forecast import describe_parking
from ads_pipeline.cli.output import OutputConsole, cell, count_of, iso_instant, new_table, write_json
from ads_pipeline.cli.parsing import open_control_actions, open_ledger
from ads_pipeline.domain.partition import PartitionKey, validate_name
from ads_pipeline.domain.retry import Lane
from ads_pipeline.errors import BadCommand
from ads_pipeline.ledger.control.retry_queue import Parking
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.quoting import printable
from ads_pipeline.settings import Settings

NO_LIMIT: Final = 1_000_000_000  # what narrows is looked at here, so nothing may be cut off before
PARKED_BY_OPERATOR: Final = "parked_by_hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRow:
    """A partition that is wanted now: as which kind of work, since when, and why."""

    key: PartitionKey
    lane: Lane
    kind: str
    since: datetime
    why: str


def print_due(settings: Settings, filters: Mapping[str, Any], *, limit: int, as_json: bool) -> None:
    """Write what is wanted now, fresh days first and in each lane the longest wanted first; then what is parked."""
    with open_ledger(settings) as ledger:
        wanted = build_filter(settings, ledger, **filters)
        found = _due(settings, ledger, wanted, limit=NO_LIMIT if any(filters.values()) else limit + 1)
        parked = ledger.retry_queue.list_parkings(settings.google_apis.source)
    notes = [_tallied(found[:limit]), *(f"parked: {describe_parking(each)}" for each in parked)]
    if len(found) > limit:
        notes.insert(1, "more are due; --limit shows more of them")
    if as_json:
        write_json(_fields(each) for each in found[:limit])
        print(*notes, sep="\n", file=sys.stderr)  # noqa: T201 - standard output is the program's
        return
    paper = OutputConsole()
    if found:
        paper.print(_table(found[:limit]), Text(""), sep="\n")
    for note in notes:
        paper.print(cell(note))


def park(settings: Settings, arguments: ActionArguments) -> None:
    """Have nothing fetched for an account or a query until it is released."""
    parking, order = _parking(settings, arguments), build_request(arguments)
    with open_ledger(settings) as ledger:
        if parking.scope == "customer":
            check_customers([parking.name], settings, ledger)
        else:
            settings.query(parking.name)
        known = _parked(ledger, parking)
    if known:
        OutputConsole().print(cell(f"nothing to park: {describe_parking(known)}"))
        return
    with open_control_actions(settings) as desk:
        done = desk.park(parking, order)
    _tell("parked" if done else "somebody else has parked", parking, order.action_id)


def release(settings: Settings, arguments: ActionArguments) -> None:
    """Let an account or a query that was parked be fetched again."""
    parking, order = _parking(settings, arguments), build_request(arguments)
    with open_ledger(settings) as ledger:
        known = _parked(ledger, parking)
        if known is None and parking.scope == "customer":
            check_customers([parking.name], settings, ledger)
        elif known is None:
            settings.query(parking.name)
    if known is None:
        OutputConsole().print(cell(f"nothing to release: {_name(parking)} is not parked"))
        return
    with open_control_actions(settings) as desk:
        done = desk.release(parking, order)
    _tell("released" if done else "somebody else has released", parking, order.action_id)


def _parking(settings: Settings, asked: ActionArguments) -> Parking:
    """What is to be parked or released, by the one word that names it."""
    words = [("customer", "customer_id", each) for each in asked.customer]
    words += [("query", "query_name", each) for each in asked.query]
    if len(words) != 1:
        raise BadCommand("name either an account by --customer or a query by --query, and not both")
    ((scope, rule, name),) = words
    return Parking(
        source=settings.google_apis.source,
        scope=scope,
        name=validate_name(rule, name),
        error_class=PARKED_BY_OPERATOR,
        why=printable(asked.reason),
    )


def _parked(ledger: LedgerReader, parking: Parking) -> Parking | None:
    place = parking.scope, parking.name
    return next(
        (each for each in ledger.retry_queue.list_parkings(parking.source) if (each.scope, each.name) == place), None
    )


def _tell(done: str, parking: Parking, action_id: str) -> None:
    paper = OutputConsole()
    paper.print(cell(f"{done} {_name(parking)}"), cell(f"act {action_id}"), sep="\n")


def _name(parking: Parking) -> str:
    return f"{'account' if parking.scope == 'customer' else 'query'} {parking.name}"


def _due(settings: Settings, ledger: LedgerReader, wanted: StateFilter, *, limit: int) -> list[DueRow]:
    """Requests and failures that are due, lane by lane."""
    schedule, today = ledger.retry_queue, datetime.now(UTC).date()
    place: Mapping[str, Any] = {"source": settings.google_apis.source, "today": today, "limit": limit}
    found = []
    for lane in Lane:
        requests = schedule.find_due_requests(settings.retry_policy, lane, **place)
        why = {action_id: _ordered(ledger, action_id) for action_id in {each.action_id for each in requests}}
        of_lane = [
            DueRow(key=each.key, lane=lane, kind=each.kind, since=each.requested_at, why=why[each.action_id])
            for each in requests
        ]
        keys = schedule.find_due(settings.retry_policy, lane, **place)
        plans = schedule.find_scheduled(keys)
        of_lane += [
            DueRow(key=key, lane=lane, kind="failed", since=plan.due_at, why=plan.why)
            for key, plan in ((key, plans.get(key)) for key in keys)
            if plan is not None and plan.due_at is not None
        ]
        found += sorted((each for each in of_lane if _matches(each.key, wanted)), key=lambda each: each.since)
    return found


def _ordered(ledger: LedgerReader, action_id: str) -> str:
    """Who asked for it and why."""
    return next((f"{each.operator}: {each.reason}" for each in ledger.action_parts(action_id)), f"act {action_id}")


def _matches(key: PartitionKey, wanted: StateFilter) -> bool:
    return (
        (wanted.customer_ids is None or key.customer_id in wanted.customer_ids)
        and (wanted.query_names is None or key.query_name in wanted.query_names)
        and (wanted.since is None or key.logical_date >= wanted.since)
        and (wanted.until is None or key.logical_date <= wanted.until)
    )


def _tallied(found: Sequence[DueRow]) -> str:
    if not found:
        return "nothing is due"
    lanes = ", ".join(f"{number:,} {lane}" for lane in Lane if (number := sum(each.lane is lane for each in found)))
    return f"{count_of(len(found), 'partition')} due: {lanes}"


def _table(found: Sequence[DueRow]) -> Any:
    table = new_table(customer="left", query="fold", day="left", kind="left", since="left", why="fold")
    for each in found:
        place = each.key.customer_id, each.key.query_name, each.key.logical_date
        table.add_row(*map(cell, (*place, each.kind, f"{each.since:%m-%d %H:%M}Z", each.why)))
    return table


def _fields(due: DueRow) -> dict[str, object]:
    told = {"lane": due.lane, "kind": due.kind, "since": iso_instant(due.since), "why": due.why}
    return asdict(due.key) | told
