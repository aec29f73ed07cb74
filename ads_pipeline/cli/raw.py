"""Lists sealed runs with their state in the ledger, and verifies payloads against their seals.

Imports neither Spark nor DuckDB, for a fast start.
"""

import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Final

from rich.text import Text

from ads_pipeline.cli.output import OutputConsole, cell, count_of, format_instant, iso_instant, new_table, write_json
from ads_pipeline.cli.parsing import DateWindow, open_ledger, parse_customers
from ads_pipeline.domain.partition import Run, validate_name
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.errors import RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.progress import no_progress, progress_on
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.settings import Settings

WIDE_COLUMNS: Final = 120  # columns; narrower tables leave out the extraction time
DEFAULT_DAYS: Final = 31


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
class RawFilter:
    """Which sealed runs to list or verify."""

    source: str
    since: date
    until: date
    customer_ids: frozenset[str] | None
    query_names: frozenset[str] | None
    unjudged: bool

    @property
    def partitions(self) -> StateFilter:
        return StateFilter(
            source=self.source,
            customer_ids=self.customer_ids,
            query_names=self.query_names,
            since=self.since,
            until=self.until,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrequestedRuns(Container[Run]):
    """Contains every run to skip, so that its seal is not read."""

    selection: RawFilter
    judged: Container[Run]

    def __contains__(self, run: object) -> bool:
        if not isinstance(run, Run):
            return False
        selection, key = self.selection, run.key
        is_selected = (selection.customer_ids is None or key.customer_id in selection.customer_ids) and (
            selection.query_names is None or key.query_name in selection.query_names
        )
        return not is_selected or run in self.judged


def raw_filter(
    settings: Settings,
    *,
    customer: Sequence[str] | None,
    query: Sequence[str] | None,
    days: DateWindow,
    unjudged: bool,
) -> RawFilter:
    """The filter for these options, by default the last 31 days. A query may be missing from the query file."""
    until = days.until or max(datetime.now(UTC).date(), days.since or date.min)
    customer_ids = parse_customers(customer)
    return RawFilter(
        source=settings.google_apis.source,
        since=days.since or until - timedelta(days=DEFAULT_DAYS - 1),
        until=until,
        customer_ids=None if customer_ids is None else frozenset(customer_ids),
        query_names=frozenset(validate_name("query_name", each) for each in query) if query else None,
        unjudged=unjudged,
    )


def list_runs(settings: Settings, selection: RawFilter, *, as_json: bool) -> None:
    """Write sealed runs by customer, query and day as they are found, then invalid directories and counts."""
    verdicts = _verdicts(settings, selection)
    tally = Tally()
    runs = tally.count(_find_runs(settings, selection, verdicts), verdicts)
    if as_json:
        write_json(_run_fields(found, verdict) for found, verdict in runs)
        write_json(_run_fields(damage, None) for damage in tally.invalid_names)
        print(tally, file=sys.stderr)  # noqa: T201 - standard output holds JSON only
        return
    console = OutputConsole()
    for title, group in groupby(runs, lambda each: _group_title(each[0])):
        _write_group(console, title, list(group))
    _write_damaged(console, tally.invalid_names)
    console.print(cell(tally), soft_wrap=True)


def verify(settings: Settings, selection: RawFilter, *, as_json: bool) -> bool:
    """Compare every payload with its seal and write the damaged runs; return whether there are any."""
    verdicts = _verdicts(settings, selection) if selection.unjudged else {}
    raw, found = RawRuns(settings.raw_root), list(_find_runs(settings, selection, verdicts))
    damaged = []
    report_progress = progress_on(sys.stderr) if sys.stderr.isatty() else no_progress
    with report_progress("verifying", len(found)) as advance:
        for each in found:
            damage = _verify_run(raw, each)
            damaged += [] if damage is None else [damage]
            advance(1)
    number = f"{len(damaged):,}" if damaged else "none"
    summary = f"{number} of {count_of(len(found), 'sealed run')} damaged"
    if as_json:
        write_json(_run_fields(damage, None) for damage in damaged)
        print(summary, file=sys.stderr)  # noqa: T201 - as above
    else:
        console = OutputConsole()
        _write_damaged(console, damaged)
        console.print(cell(summary))
    return bool(damaged)


class Tally:
    """Counts runs while they are runs, and collects directories with invalid names."""

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


def _verdicts(settings: Settings, selection: RawFilter) -> Verdicts:
    with open_ledger(settings) as ledger:
        return ledger.last_verdicts(selection.partitions)


def _find_runs(settings: Settings, selection: RawFilter, verdicts: Verdicts) -> Iterator[Seal | DamagedRun]:
    judged = (
        {run for run, (outcome, _current) in verdicts.items() if outcome is not None} if selection.unjudged else ()
    )
    return RawRuns(settings.raw_root).find_runs(
        source=selection.source,
        since=selection.since,
        until=selection.until,
        known=UnrequestedRuns(selection=selection, judged=judged),
    )


def _verify_run(raw: RawRuns, found: Seal | DamagedRun) -> DamagedRun | None:
    if isinstance(found, DamagedRun):
        return found
    try:
        raw.verify(found.run)
    except (RunDamaged, RunNotSealed, UnsafePath) as error:  # the run may have changed since it was runs
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


def _write_group(
    console: OutputConsole, title: str, runs: Sequence[tuple[Seal | DamagedRun, RunLedgerState]]
) -> None:
    """Write the runs of one customer and query, then the problems of damaged ones."""
    wide = {"extracted": "left"} if console.width >= WIDE_COLUMNS else {}
    table = new_table(day="left", run="fold", rows="right", bytes="right", v="left", ledger="left", **wide)
    for found, verdict in runs:
        if found.run is None:
            continue
        name = cell(found.run.key.logical_date), cell(found.run.run_id)
        ledger_state = cell(verdict, style=COLOURS.get(verdict, ""))
        if isinstance(found, DamagedRun):
            table.add_row(*name, cell("damaged", style="red"), Text(""), Text(""), ledger_state)
            continue
        size = None if found.payload_bytes is None else f"{found.payload_bytes:,}"
        facts = cell(f"{found.record_count:,}"), cell(size), cell(found.facts.schema_version)
        extracted = [cell(format_instant(found.facts.extracted_at))] if wide else []
        table.add_row(*name, *facts, ledger_state, *extracted)
    console.print(cell(title, style="bold"), table, Text(""), sep="\n")
    _write_damaged(console, [found for found, _state in runs if isinstance(found, DamagedRun)])


def _write_damaged(console: OutputConsole, damaged: Iterable[DamagedRun]) -> None:
    for damage in damaged:
        console.print(cell(f"{damage.path}: {damage.problem}"), Text(""), sep="\n")


def _run_fields(found: Seal | DamagedRun, state: RunLedgerState | None) -> dict[str, object]:
    """The fields of a sealed run; for a damaged one only its path and the problem."""
    fields: dict[str, object] = {} if found.run is None else asdict(found.run.key) | {"run_id": found.run.run_id}
    if isinstance(found, DamagedRun):
        fields |= {"path": found.path, "damage": found.problem}
    else:
        facts = asdict(found.facts) | {"extracted_at": iso_instant(found.facts.extracted_at)}
        counts = {name: getattr(found, name) for name in ("record_count", "payload_bytes", "payload_sha256")}
        fields |= {"path": found.run.path, "damage": None} | counts | facts
    return fields | ({} if state is None else {"ledger": state})
