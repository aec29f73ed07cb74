"""The `raw` commands: list sealed runs with their state in the ledger, and verify payloads against their seals.

Imports neither Spark nor DuckDB, for a fast start.
"""

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import chain, groupby, starmap
from typing import Annotated, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.options import DATE_FORMAT, AsJson, Customers, Queries
from ads_pipeline.cli.output import (
    OutputConsole,
    cell,
    count_of,
    format_instant,
    iso_instant,
    new_table,
    terminal_progress,
    write_results,
)
from ads_pipeline.cli.parsing import is_selected, open_ledger, parse_filter
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.errors import RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.settings import Settings, read_settings

WIDE_COLUMNS: Final = 120  # columns; narrower tables leave out the extraction time
DEFAULT_DAYS: Final = 31
Unjudged = Annotated[bool, typer.Option("--unjudged", help="Only runs that have no verdict yet.")]
FirstDay = Annotated[
    str | None,
    typer.Option("--since", metavar=DATE_FORMAT, help="First logical date. Default: 30 days before the last one."),
]
LastDay = Annotated[
    str | None, typer.Option("--until", metavar=DATE_FORMAT, help="Last logical date. Default: today.")
]
raw_runs: Final = typer.Typer(no_args_is_help=True, help="List raw runs, and verify them against their seals.")


class RunLedgerState(StrEnum):
    """The state of a sealed run in the ledger."""

    CURRENT = "current"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    AWAITING = "awaiting verdict"
    UNREGISTERED = "unregistered"


COLOURS: Final = {
    RunLedgerState.CURRENT: "green",
    RunLedgerState.REJECTED: "red",
    RunLedgerState.AWAITING: "yellow",
    RunLedgerState.UNREGISTERED: "yellow",
}
Verdicts = Mapping[Run, tuple[Outcome | None, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRuns(Container[Run]):
    """Contains every run to skip, so that its seal is not read."""

    selection: StateFilter
    judged: Container[Run]

    def __contains__(self, run: object) -> bool:
        return isinstance(run, Run) and (not is_selected(run.key, self.selection) or run in self.judged)


def list_runs(settings: Settings, selection: StateFilter, *, unjudged: bool, as_json: bool) -> bool:
    """List sealed runs (by default of the last 31 days) with their state in the ledger.

    "ledger" is current (the run readers should get), accepted, rejected, awaiting verdict, or unregistered. "v" is
    the schema version. Damaged runs and invalid directory names are listed below with the reason. Payloads are not
    read.
    """
    verdicts, tally = _verdicts(settings, selection), Tally()
    runs = tally.count(_find_runs(settings, selection, verdicts, unjudged=unjudged), verdicts)
    lines = chain(starmap(_run_fields, runs), (_run_fields(damage) for damage in tally.invalid_names))
    write_results(lines, _run_blocks(runs, tally.invalid_names), [tally], as_json=as_json)
    return False


def verify(settings: Settings, selection: StateFilter, *, unjudged: bool, as_json: bool) -> bool:
    """Read the payloads of sealed runs and compare every byte with the seal.

    It lists each damaged run with the reason. Exit code: 0 when no run is damaged, else 1; an invalid directory name
    counts as damage.
    """
    verdicts = _verdicts(settings, selection) if unjudged else {}
    raw, found = RawRuns(settings.raw_root), list(_find_runs(settings, selection, verdicts, unjudged=unjudged))
    damaged = []
    with terminal_progress()("verifying", len(found)) as advance:
        for each in found:
            damage = _verify_run(raw, each)
            damaged += [] if damage is None else [damage]
            advance(1)
    number = f"{len(damaged):,}" if damaged else "none"
    summary = f"{number} of {count_of(len(found), 'sealed run')} damaged"
    write_results(map(_run_fields, damaged), _damage_blocks(damaged), [summary], as_json=as_json)
    return bool(damaged)


def _add_command(name: str, function: Callable[..., bool]) -> None:
    """Add a command with the filter options. It calls the function and exits with code 1 when that returns True."""

    @raw_runs.command(name, help=function.__doc__)
    def command(
        *,
        customer: Customers = None,
        query: Queries = None,
        since: FirstDay = None,
        until: LastDay = None,
        unjudged: Unjudged = False,
        as_json: AsJson = False,
    ) -> None:
        settings = read_settings(os.environ)
        given = parse_filter(settings, customer=customer, query=query, since=since, until=until)
        last = given.until or max(datetime.now(UTC).date(), given.since or date.min)
        first = given.since or last - timedelta(days=DEFAULT_DAYS - 1)
        if function(settings, replace(given, since=first, until=last), unjudged=unjudged, as_json=as_json):
            raise typer.Exit(1)


_add_command("list", list_runs)
_add_command("verify", verify)


class Tally:
    """Counts runs while they are listed, and collects directories with invalid names."""

    def __init__(self) -> None:
        self.invalid_names: list[DamagedRun] = []
        self._counts: Counter[RunLedgerState] = Counter()
        self._damaged = 0

    def count(
        self, found: Iterable[Seal | DamagedRun], verdicts: Verdicts
    ) -> Iterator[tuple[Seal | DamagedRun, RunLedgerState]]:
        for each in found:
            if each.run is None:
                self.invalid_names.append(each)
                continue
            verdict = _ledger_verdict(verdicts.get(each.run))
            self._counts[verdict] += 1
            self._damaged += isinstance(each, DamagedRun)
            yield each, verdict

    def __str__(self) -> str:
        parts = ", ".join(
            f"{self._counts[verdict]:,} {verdict}" for verdict in RunLedgerState if self._counts[verdict]
        )
        runs = count_of(self._counts.total(), "sealed run") + (f": {parts}" if parts else "")
        damaged = [f"{self._damaged:,} damaged"] if self._damaged else []
        invalid_names = (
            [f"{count_of(len(self.invalid_names), 'path')} with an invalid name"] if self.invalid_names else []
        )
        return "; ".join([runs, *damaged, *invalid_names])


def _verdicts(settings: Settings, selection: StateFilter) -> Verdicts:
    with open_ledger(settings) as ledger:
        return ledger.runs.last_verdicts(selection)


def _find_runs(
    settings: Settings, selection: StateFilter, verdicts: Verdicts, *, unjudged: bool
) -> Iterator[Seal | DamagedRun]:
    judged = {run for run, (outcome, _current) in verdicts.items() if outcome is not None} if unjudged else ()
    return RawRuns(settings.raw_root).find_runs(
        source=settings.google_apis.source,
        since=selection.since or date.min,
        until=selection.until or date.max,
        known=SkippedRuns(selection=selection, judged=judged),
    )


def _verify_run(raw: RawRuns, found: Seal | DamagedRun) -> DamagedRun | None:
    if isinstance(found, DamagedRun):
        return found
    try:
        raw.verify(found.run)
    except (RunDamaged, RunNotSealed, UnsafePath) as error:  # the run may have changed since it was listed
        return DamagedRun(path=found.run.path, problem=error.problem, run=found.run)
    return None


def _ledger_verdict(verdict: tuple[Outcome | None, bool] | None) -> RunLedgerState:
    match verdict:
        case None:
            return RunLedgerState.UNREGISTERED
        case (None, _):
            return RunLedgerState.AWAITING
        case (Outcome.REJECTED, _):
            return RunLedgerState.REJECTED
        case (_, is_current):
            return RunLedgerState.CURRENT if is_current else RunLedgerState.ACCEPTED


def _group_title(found: Seal | DamagedRun) -> str:
    return "" if found.run is None else f"{found.run.key.customer_id} {found.run.key.query_name}"


def _run_blocks(
    runs: Iterable[tuple[Seal | DamagedRun, RunLedgerState]], invalid_names: Iterable[DamagedRun]
) -> Iterator[RenderableType]:
    """A table for each customer and query, each with the problems of its damaged runs; then the invalid names."""
    wide = {"extracted": "left"} if OutputConsole().width >= WIDE_COLUMNS else {}
    for title, group in groupby(runs, lambda each: _group_title(each[0])):
        members = list(group)
        table = new_table(day="left", run="fold", rows="right", bytes="right", v="left", ledger="left", **wide)
        for found, state in members:
            table.add_row(*_run_cells(found, state)[: len(table.columns)])
        yield from (cell(title, style="bold"), table, Text(""))
        yield from _damage_blocks(found for found, _state in members if isinstance(found, DamagedRun))
    yield from _damage_blocks(invalid_names)


def _run_cells(found: Seal | DamagedRun, state: RunLedgerState) -> list[Text]:
    run, ledger_state = found.run, cell(state, style=COLOURS.get(state, ""))
    name = [cell(run and run.key.logical_date), cell(run and run.run_id)]
    if isinstance(found, DamagedRun):
        return [*name, cell("damaged", style="red"), Text(""), Text(""), ledger_state]
    size = None if found.payload_bytes is None else f"{found.payload_bytes:,}"
    facts = cell(f"{found.record_count:,}"), cell(size), cell(found.facts.schema_version)
    return [*name, *facts, ledger_state, cell(format_instant(found.facts.extracted_at))]


def _damage_blocks(damaged: Iterable[DamagedRun]) -> Iterator[RenderableType]:
    for damage in damaged:
        yield from (cell(f"{damage.path}: {damage.problem}"), Text(""))


def _run_fields(found: Seal | DamagedRun, state: RunLedgerState | None = None) -> dict[str, object]:
    """The fields of a sealed run; for a damaged one only its path and the problem."""
    fields: dict[str, object] = {} if found.run is None else asdict(found.run.key) | {"run_id": found.run.run_id}
    if isinstance(found, DamagedRun):
        fields |= {"path": found.path, "damage": found.problem}
    else:
        facts = asdict(found.facts) | {"extracted_at": iso_instant(found.facts.extracted_at)}
        counts = {name: getattr(found, name) for name in ("record_count", "payload_bytes", "payload_sha256")}
        fields |= {"path": found.run.path, "damage": None} | counts | facts
    return fields | ({} if state is None else {"ledger": state})
