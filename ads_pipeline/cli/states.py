"""Shows what the ledger says of each partition. It loads neither Spark nor DuckDB, so it starts at once."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from ads_pipeline.cli.explain.forecast import lines, prospects
from ads_pipeline.cli.output import Paper, cell, counted, instant_of, listing, write_json
from ads_pipeline.cli.parsing import Window, customers, ledger_of
from ads_pipeline.domain.freshness import DisplayStatus, StaleReason
from ads_pipeline.domain.partition import PartitionKey, checked_name, parse_key
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.ledger.status.status_table import StatusTable
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.pipeline.staleness import PartitionStaleness, StalenessCalculator
from ads_pipeline.settings import Settings

MOST: Final = 10_000  # of a status are counted: a million would take longer than the page
WIDE: Final = 120  # columns; below, the run and the time are left to --json
DATA: Final = {
    DisplayStatus.MATERIALIZED: "current",
    DisplayStatus.STALE: "stale",
    DisplayStatus.LAST_ATTEMPT_FAILED: "bad rerun",
    DisplayStatus.NEVER_MATERIALIZED: "never",
}
REASONS: Final = {
    StaleReason.FRESHNESS_POLICY: "reread due",
    StaleReason.UPSTREAM_CHANGED: "not loaded",
    StaleReason.CODE_CHANGED: "old code",
}
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
    start, now = None if after is None else parse_key(after), datetime.now(UTC)
    with ledger_of(settings) as ledger:
        page = ledger.page(wanted, after=start, limit=limit)
        tally = ledger.tally(wanted, most=MOST)
        current = StalenessCalculator(settings.policies, ledger.code_versions(settings.google_apis.source)).of(
            ledger, (state.key for state in page), now=now
        )
        ahead = prospects(ledger, page, settings.retries, now=now)
        beyond = ledger.tally(wanted, after=page[-1].key, most=MOST) if len(page) == limit else {}
    notes = [_tallied(tally), *([] if any(tally.values()) else unknown(wanted, settings))]
    if any(beyond.values()):
        notes += [f"{_total(beyond)} more follow; go on with", f"  --after {page[-1].key}"]
    if as_json:
        write_json(fields_of(state, current[state.key]) | ahead[state.key].fields() for state in page)
        print(*notes, sep="\n", file=sys.stderr)  # noqa: T201 - standard output is the program's
    else:
        _write_table(page, current, dict(lines(ahead, now)), notes)


def publish(settings: Settings) -> None:
    """Sweep the ledger's statuses and publish them as Parquet; say how many there are and where."""
    from ads_pipeline.ledger.status.status_file import publish  # noqa: PLC0415

    with ledger_of(settings) as ledger, StatusTable.opened(settings.database_url, space=settings.space) as book:
        swept = StalenessCalculator(settings.policies, ledger.code_versions(settings.google_apis.source)).sweep(
            book, now=datetime.now(UTC)
        )
        written = publish(book.every(), settings.status_file)
    told = f"{counted(written, 'row')} in {settings.status_file}; {swept:,} changed since the last sweep"
    Paper().print(cell(told), soft_wrap=True)


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


def _tallied(tally: Mapping[Status, int]) -> str:
    if not any(tally.values()):
        return "no recorded partition matches"
    parts = ", ".join(f"{_up_to(tally[status])} {status}" for status in COLOURS if tally[status])
    return f"{_total(tally)} {'partition' if sum(tally.values()) == 1 else 'partitions'}: {parts}"


def _total(tally: Mapping[Status, int]) -> str:
    least = sum(min(count, MOST) for count in tally.values())
    return f"more than {least:,}" if any(count > MOST for count in tally.values()) else f"{least:,}"


def _up_to(count: int) -> str:
    return f"more than {MOST:,}" if count > MOST else f"{count:,}"


def unknown(wanted: StateFilter, settings: Settings) -> list[str]:
    """A query that the query file lacks: where nothing matches, it may be misspelt."""
    known = settings.google_apis.queries
    odd = sorted((wanted.query_names or frozenset()) - known.keys())
    return [f"{odd[0]} is no query of {settings.queries_file}: {', '.join(sorted(known))}"] if odd else []


def fields_of(state: PartitionState, current: PartitionStaleness) -> dict[str, object]:
    """Every field, flat: the state's in the order of the ledger's table, then how current each asset is."""
    own = {name: value for name, value in asdict(state).items() if name != "key"}
    fields = asdict(state.key) | own | {"updated_at": instant_of(state.updated_at)}
    for asset, look in (("raw", current.raw), ("warehouse", current.warehouse)):
        status = look.status
        fields |= {
            f"{asset}_display_status": look.display,
            f"{asset}_stale_since": instant_of(look.stale.since if look.stale else None),
            f"{asset}_stale_reasons": list(look.reasons),
            f"{asset}_last_materialization_run_id": status and status.last_materialization_run_id,
            f"{asset}_last_materialization_at": instant_of(status.last_materialization_at if status else None),
            f"{asset}_last_attempt_run_id": status and status.last_attempt_run_id,
            f"{asset}_last_attempt_at": instant_of(status.last_attempt_at if status else None),
            f"{asset}_last_attempt_outcome": look.last_attempt,
        }
    return fields


def _data(current: PartitionStaleness) -> str:
    """How current the data are, in a word or two."""
    look = current.telling
    if look.display is DisplayStatus.STALE and look.stale:
        return REASONS[look.stale.reason]
    if look is current.warehouse and look.display is DisplayStatus.NEVER_MATERIALIZED:
        return REASONS[StaleReason.UPSTREAM_CHANGED]
    return DATA[look.display]


def _message(state: PartitionState) -> str:
    named = (state.error_message or "").startswith(str(state.key))  # as the validator's messages are
    return state.error_message or "" if named else f"{state.key}: {state.error_message}"


def _write_table(
    page: Sequence[PartitionState],
    current: Mapping[PartitionKey, PartitionStaleness],
    ahead: Mapping[PartitionKey, str],
    notes: Sequence[str],
) -> None:
    paper = Paper()
    wide = dict.fromkeys(("updated", "run"), "left") if paper.width >= WIDE else {}
    last = {"data": "left"} | wide
    table = listing(customer="left", query="fold", day="left", status="left", rows="right", attempts="right", **last)
    for state in page:
        key, changed = state.key, state.updated_at
        more = (changed and f"{changed:%Y-%m-%d %H:%M}Z", state.current_run_id) if wide else ()
        rows = None if state.record_count is None else f"{state.record_count:,}"
        status = cell(state.status, style=COLOURS[state.status])
        left = (key.customer_id, key.query_name, key.logical_date)
        told = (rows, f"{state.attempt_count:,}", _data(current[key]), *more)
        table.add_row(*map(cell, left), status, *map(cell, told))
    if page:
        paper.print(table, Text(""), sep="\n")
    for state in page:
        said = [*([_message(state)] if state.error_message else []), *filter(None, [ahead.get(state.key)])]
        if said:
            said[0] = said[0] if state.error_message else f"{state.key}: {said[0]}"
            paper.print(*map(cell, said), Text(""), sep="\n")
    for note in notes:
        paper.print(cell(note), soft_wrap=True)
