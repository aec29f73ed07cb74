"""Shows what the ledger says of each partition. It loads neither Spark nor DuckDB, so it starts at once."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.text import Text

from ads_pipeline.cli.tables import Paper, cell, counted, listing, write_json
from ads_pipeline.cli.words import Window, customers, ledger_of
from ads_pipeline.ledger.records import StateFilter
from ads_pipeline.partition import checked_name, parse_key
from ads_pipeline.settings import Settings
from ads_pipeline.transitions import PartitionState, Status

WIDE: Final = 120  # columns; below, the run and the time are left to --json
COLOURS: Final = {Status.SUCCESS: "green", Status.FAILED: "red", Status.PENDING: "yellow"}


def inspect(
    settings: Settings,
    wanted: StateFilter,
    *,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Write a page of states, then how many there are and where the next page begins."""
    start = None if after is None else parse_key(after)
    with ledger_of(settings) as ledger:
        page = ledger.page(wanted, after=start, limit=limit)
        tally = ledger.tally(wanted)
        beyond = sum(ledger.tally(wanted, after=page[-1].key).values()) if len(page) == limit else 0
    notes = [_tallied(tally), *_unknown(wanted, settings, tally)]
    if beyond:
        notes += [f"{beyond:,} more follow; go on with", f"  --after {page[-1].key}"]
    if as_json:
        write_json(map(_fields, page))
        print(*notes, sep="\n", file=sys.stderr)  # noqa: T201 - standard output is the program's
    else:
        _write_table(page, notes)


def filter_of(
    settings: Settings,
    *,
    customer: Sequence[str] | None,
    query: Sequence[str] | None,
    status: Sequence[Status] | None,
    days: Window,
) -> StateFilter:
    """What was asked for. A query that the query file no longer defines may still be looked at."""
    named = customers(customer)
    return StateFilter(
        source=settings.google_apis.source,
        customer_ids=None if named is None else frozenset(named),
        query_names=frozenset(checked_name("query_name", each) for each in query) if query else None,
        statuses=frozenset(status) if status else None,
        since=days.since,
        until=days.until,
    )


def _tallied(tally: dict[Status, int]) -> str:
    total = sum(tally.values())
    if not total:
        return "no recorded partition matches"
    parts = ", ".join(f"{tally[status]:,} {status}" for status in COLOURS if tally[status])
    return f"{counted(total, 'partition')}: {parts}"


def _unknown(wanted: StateFilter, settings: Settings, tally: dict[Status, int]) -> list[str]:
    """A misspelt query looks like one that has no partitions."""
    unknown = sorted((wanted.query_names or frozenset()) - settings.google_apis.queries.keys())
    if any(tally.values()) or not unknown:
        return []
    return [f"{unknown[0]} is no query of {settings.queries_file}: {', '.join(sorted(settings.google_apis.queries))}"]


def _fields(state: PartitionState) -> dict[str, object]:
    """Every field, flat, in the order of the ledger's table."""
    own = {name: value for name, value in asdict(state).items() if name != "key"}
    changed = state.updated_at and state.updated_at.isoformat(timespec="microseconds")
    return asdict(state.key) | own | {"updated_at": changed}


def _write_table(page: Sequence[PartitionState], notes: Sequence[str]) -> None:
    paper = Paper()
    wide = dict.fromkeys(("updated", "run"), "left") if paper.width >= WIDE else {}
    table = listing(customer="left", query="fold", day="left", status="left", rows="right", attempts="right", **wide)
    for state in page:
        key, changed = state.key, state.updated_at
        more = (changed and f"{changed:%Y-%m-%d %H:%M}Z", state.current_run_id) if wide else ()
        rows = None if state.record_count is None else f"{state.record_count:,}"
        status = cell(state.status, style=COLOURS[state.status])
        left = (key.customer_id, key.query_name, key.logical_date)
        table.add_row(*map(cell, left), status, *map(cell, (rows, f"{state.attempt_count:,}", *more)))
    if page:
        paper.print(table, Text(""), sep="\n")
    for state in page:
        if state.error_message:
            named = state.error_message.startswith(str(state.key))  # as the validator's messages are
            said = state.error_message if named else f"{state.key}: {state.error_message}"
            paper.print(cell(said), Text(""), sep="\n")
    for note in notes:
        paper.print(cell(note), soft_wrap=True)
