"""Lists what was done and what came of it: acts of operators, verdicts, terminal failures, what is parked.

It only reads. What is known of one partition is `why`'s to tell.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import groupby, islice

from rich.table import Table
from rich.text import Text

from ads_pipeline.cli.explain.why import verdict_words
from ads_pipeline.cli.output import GAP, Paper, cell, counted, instant_of, listing, moment, write_json
from ads_pipeline.cli.parsing import ledger_of
from ads_pipeline.cli.states import unknown
from ads_pipeline.domain.partition import PartitionKey, checked_name, parse_key
from ads_pipeline.domain.retry import Terminal
from ads_pipeline.domain.transitions import PartitionState, Status
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.values import Attempt, LoggedAction, StateFilter
from ads_pipeline.pipeline.operator_actions import OperatorActions
from ads_pipeline.settings import Settings

Shown = Sequence[Table | Text]


def acts(settings: Settings, *, after: str | None, limit: int, as_json: bool) -> None:
    """Write operators' acts, newest first."""
    with ledger_of(settings) as ledger:
        page = ledger.all_acts(after=None if after is None else _parts(ledger, after)[0], limit=limit + 1)
    shown = page[:limit]
    objects = (asdict(each) | {"acted_at": instant_of(each.acted_at)} for each in shown)
    notes = [counted(len(shown), "act"), *_going_on(page[limit:], shown[-1].act_id if shown else "")]
    _write(objects, [each for act in shown for each in _block(act)], notes, as_json=as_json)


def act(settings: Settings, act_id: str, *, after: str | None, limit: int, as_json: bool) -> None:
    """Write the partitions that an act changed, with what each was before it."""
    start = None if after is None else parse_key(after)
    with ledger_of(settings) as ledger:
        logged = _parts(ledger, act_id)
        page = ledger.acted([each.act_id for each in logged], after=start, limit=limit + 1)
    shown = page[:limit]
    table = listing(customer="left", query="fold", day="left", before="left")
    for key, before in shown:
        table.add_row(*map(cell, (*_place(key), before or "absent")))
    objects = (asdict(key) | {"act_id": act_id, "status_before": before} for key, before in shown)
    notes = [counted(len(shown), "partition")]
    notes += _going_on(page[limit:], str(shown[-1][0]) if shown else "")
    blocks = [each for part in logged for each in _block(part)]
    _write(objects, [*blocks, *_ruled(table, shown)], notes, as_json=as_json)


def terminal(settings: Settings, wanted: StateFilter, *, after: str | None, limit: int, as_json: bool) -> None:
    """Write the failed partitions that get no more attempts by themselves, and why."""
    start = None if after is None else parse_key(after)
    with ledger_of(settings) as ledger:
        found = list(islice(_terminal(settings, ledger, wanted, start), limit + 1))
    shown = found[:limit]
    table = listing(customer="left", query="fold", day="left", attempts="right", terminal="fold")
    for state, answer in shown:
        table.add_row(*map(cell, (*_place(state.key), state.attempt_count, answer.why)))
    objects = (
        asdict(state.key)
        | {"attempt_count": state.attempt_count, "terminal": answer.reason, "why": answer.why}
        | {"error_message": state.error_message}
        for state, answer in shown
    )
    notes = [counted(len(shown), "terminal failure"), *([] if shown else unknown(wanted, settings))]
    notes += _going_on(found[limit:], str(shown[-1][0].key) if shown else "")
    _write(objects, _ruled(table, shown), notes, as_json=as_json)


def attempts(settings: Settings, wanted: StateFilter, *, after: str | None, limit: int, as_json: bool) -> None:
    """Write the verdicts on the partitions that match, in the order recorded."""
    start = None if after is None else _attempt_named(after)
    with ledger_of(settings) as ledger:
        page = ledger.attempts_on(wanted, after=start, limit=limit + 1)
    shown = page[:limit]
    last = f"{shown[-1].run.key}/{shown[-1].attempt_no}" if shown else ""
    notes = [counted(len(shown), "attempt"), *([] if shown else unknown(wanted, settings))]
    notes += _going_on(page[limit:], last)
    _write(map(_fields, shown), list(_by_partition(shown)), notes, as_json=as_json)


def parked(settings: Settings, *, as_json: bool) -> None:
    """Write the accounts and queries for which nothing is fetched."""
    with ledger_of(settings) as ledger:
        found = ledger.schedule.parkings(settings.google_apis.source)
    table = listing(what="left", name="fold", since="left", why="fold")
    for each in found:
        what = "account" if each.scope == "customer" else each.scope
        at = "" if each.parked_at is None else moment(each.parked_at)
        table.add_row(*map(cell, (what, each.name, at, f"{each.error_class}: {each.why}")))
    objects = (asdict(each) | {"parked_at": instant_of(each.parked_at)} for each in found)
    _write(objects, _ruled(table, found), [f"{len(found):,} parked"], as_json=as_json)


def _write(objects: Iterable[dict[str, object]], shown: Shown, notes: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        write_json(objects)
        print(*notes, sep="\n", file=sys.stderr)  # noqa: T201 - standard output is the program's
        return
    paper = Paper()
    for each in shown:
        paper.print(each)
    for note in notes:
        paper.print(cell(note), soft_wrap=True)


def _ruled(table: Table, rows: Sequence[object]) -> Shown:
    return [table, Text("")] if rows else []


def _parts(ledger: LedgerReader, act_id: str) -> list[LoggedAction]:
    found = ledger.act(checked_name("act_id", act_id))
    if not found:
        raise BadName("act_id", act_id, 'no act is logged under it; "ads-pipeline audit acts" lists them')
    return found


def _terminal(
    settings: Settings, ledger: LedgerReader, wanted: StateFilter, after: PartitionKey | None
) -> Iterator[tuple[PartitionState, Terminal]]:
    """Page by page, because most of what failed may not be terminal."""
    control = OperatorActions(ledger=ledger, policy=settings.retries, today=datetime.now(UTC).date())
    failed = replace(wanted, statuses=frozenset({Status.FAILED}))
    while page := ledger.page(failed, after=after):
        found = control.terminal(page)
        yield from ((state, found[state.key]) for state in page if state.key in found)
        after = page[-1].key


def _attempt_named(word: str) -> tuple[PartitionKey, int]:
    """The attempt that a page named as its last one."""
    partition, _, number = word.rpartition("/")
    if not (number.isascii() and number.isdigit()):
        raise BadName("attempt", word, "it is written source/customer_id/query_name/YYYY-MM-DD/number")
    return parse_key(partition), int(number)


def _block(act: LoggedAction) -> Iterator[Table | Text]:
    yield cell(
        f"{moment(act.acted_at)}  {act.act} by {act.operator}, {counted(act.partitions_changed, 'partition')}",
        style="bold",
    )
    grid = Table.grid(padding=GAP)
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name in ("reason", "command", "filters", "act_id"):
        if getattr(act, name):
            grid.add_row(cell(f"  {name.removesuffix('_id')}"), cell(getattr(act, name)))
    yield from (grid, Text(""))


def _by_partition(shown: Iterable[Attempt]) -> Iterator[Table | Text]:
    for key, listed in groupby(shown, lambda each: each.run.key):
        yield cell(key, style="bold")
        grid = Table.grid(padding=GAP)
        grid.add_column(justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        for each in listed:
            grid.add_row(cell(each.attempt_no), cell(f"{each.run.run_id} {verdict_words(each)}"))
        yield from (grid, Text(""))


def _fields(attempt: Attempt) -> dict[str, object]:
    own = {name: value for name, value in asdict(attempt).items() if name != "run"}
    judged = {"run_id": attempt.run.run_id, "judged_at": instant_of(attempt.judged_at)}
    return asdict(attempt.run.key) | own | judged


def _going_on(beyond: Sequence[object], place: str) -> list[str]:
    """How to go on behind what is shown, if there is more."""
    return ["more follow; go on with", f"  --after {place}"] if beyond else []


def _place(key: PartitionKey) -> tuple[object, ...]:
    return key.customer_id, key.query_name, key.logical_date
