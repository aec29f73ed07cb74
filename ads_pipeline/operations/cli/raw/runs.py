"""The `raw` commands: list sealed runs with their state in the ledger, and verify payloads.

Imports neither Spark nor DuckDB, for a fast start.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import groupby
from typing import Annotated, Any, Final, Self

import typer
from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.domain.errors import LedgerMissing, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.quoting import count_of
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.sql.ledger_values import JudgedRun, StateFilter
from ads_pipeline.operations.cli.command_line.options import DATE_FORMAT, AsJson, Filters
from ads_pipeline.operations.cli.command_line.output import (
    Column,
    Fields,
    cell,
    fields_of,
    table_of,
    terminal_progress,
    write_results,
)
from ads_pipeline.operations.cli.command_line.parsing import is_selected, open_ledger, open_raw
from ads_pipeline.pipeline.registered_seals import RAW_DATA_MISSING, compare_with_seal
from ads_pipeline.settings.environment import Settings

DEFAULT_DAYS: Final = 31
COLUMNS: Final = (
    Column("day", "logical_date"),
    Column("run", "run_id", wrap=True),
    Column("rows", lambda row: Text("damaged", style="red") if row["damage"] else row["record_count"]),
    Column("bytes", lambda row: row.get("payload_bytes")),
    Column("v", lambda row: row.get("schema_version")),
    Column("ledger", "ledger"),
    Column("extracted", lambda row: row.get("extracted_at"), from_width=120),
)
FirstDay = Annotated[
    str | None, typer.Option(metavar=DATE_FORMAT, help="First logical date. Default: 30 days before the last one.")
]
LastDay = Annotated[str | None, typer.Option(metavar=DATE_FORMAT, help="Last logical date. Default: today.")]
Unjudged = Annotated[bool, typer.Option("--unjudged", help="Only runs that have no verdict yet.")]
Verdicts = Mapping[Run, tuple[Outcome | None, bool]]


class RunLedgerState(StrEnum):
    """The state of a sealed run in the ledger."""

    CURRENT = "current"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    AWAITING = "awaiting verdict"
    UNREGISTERED = "unregistered"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilters(Filters):
    """The options that select sealed runs."""

    since: FirstDay = None
    until: LastDay = None
    unjudged: Unjudged = False

    def in_window(self) -> Self:
        """The same options with the first and the last day, by default the last 31 days."""
        days = self.days
        last = days.until or max(datetime.now(UTC).date(), days.since or date.min)
        first = days.since or last - timedelta(days=DEFAULT_DAYS - 1)
        return replace(self, since=str(first), until=str(last), logical_date=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRuns(Container[Run]):
    """Contains every run to skip, so that its seal is not read."""

    selection: StateFilter
    judged: Container[Run]

    def __contains__(self, run: object) -> bool:
        return isinstance(run, Run) and (not is_selected(run.key, self.selection) or run in self.judged)


def list_runs(settings: Settings, filters: RunFilters, *, as_json: AsJson = False) -> None:
    """List sealed runs (by default of the last 31 days) with their state in the ledger.

    "ledger" is current (the run readers should get), accepted, rejected, awaiting verdict, or unregistered. "v" is
    the schema version. Damaged runs and invalid directory names are listed below with the reason. Payloads are not
    read.
    """
    filters, counts = filters.in_window(), Counter[str]()
    verdicts = _read_verdicts(settings, filters)
    rows = _list_rows(_find_runs(settings, filters, verdicts), verdicts, counts)
    notes = (_summarize(counts, filters) for _once in "1")  # evaluated after the rows are counted
    write_results(rows if as_json else (), () if as_json else _list_blocks(rows), notes, as_json=as_json)


def verify(settings: Settings, filters: RunFilters, *, as_json: AsJson = False) -> bool:
    """Read the payloads of sealed runs and compare every byte with the seal, and with what was judged.

    An accepted run must have the seal that was registered and the payload that the validator read. A current run
    must exist. It lists each damaged run with the reason. Exit code: 0 when no run is damaged, else 1; an invalid
    directory name counts as damage.
    """
    filters = filters.in_window()
    verdicts = _read_known_verdicts(settings, filters)
    accepted = {} if filters.unjudged else _read_accepted(settings, verdicts)
    raw, found = open_raw(settings), list(_find_runs(settings, filters, verdicts))
    present = {each.run for each in found}
    current = [run for run in accepted if verdicts[run][1]]
    damaged = [
        _run_fields(DamagedRun(path=run.path, problem=RAW_DATA_MISSING, run=run))
        for run in current
        if run not in present
    ]
    with terminal_progress()("verifying", len(found)) as advance:
        for each in found:
            damage = _verify_run(raw, each, accepted)
            damaged += [] if damage is None else [_run_fields(damage)]
            advance(1)
    summary = f"{f'{len(damaged):,}' if damaged else 'none'} of {count_of(len(found), 'sealed run')} damaged"
    summary += "" if found else f": no sealed run matches {filters}"
    write_results(damaged, _damage_blocks(damaged), [summary], as_json=as_json)
    return bool(damaged)


def _read_verdicts(settings: Settings, filters: RunFilters) -> Verdicts:
    with open_ledger(settings) as ledger:
        return ledger.runs.last_verdicts(filters.select(settings))


def _find_runs(settings: Settings, filters: RunFilters, verdicts: Verdicts) -> Iterator[SealedRun | DamagedRun]:
    selection = filters.select(settings)
    judged = {run for run, (outcome, _current) in verdicts.items() if outcome is not None} if filters.unjudged else ()
    return open_raw(settings).find_runs(
        source=settings.google_apis.source,
        since=selection.since or date.min,
        until=selection.until or date.max,
        known=SkippedRuns(selection=selection, judged=judged),
    )


def _read_known_verdicts(settings: Settings, filters: RunFilters) -> Verdicts:
    """The verdicts; none on an extractor's machine, which has no ledger. Only --unjudged needs one."""
    try:
        return _read_verdicts(settings, filters)
    except LedgerMissing:
        if filters.unjudged:
            raise
        return {}


def _read_accepted(settings: Settings, verdicts: Verdicts) -> dict[Run, JudgedRun]:
    runs = [run for run, (outcome, _current) in verdicts.items() if outcome is Outcome.ACCEPTED]
    if not runs:
        return {}
    with open_ledger(settings) as ledger:
        return ledger.runs.judged_runs(runs)


def _verify_run(raw: RawRuns, found: SealedRun | DamagedRun, accepted: Mapping[Run, JudgedRun]) -> DamagedRun | None:
    if isinstance(found, DamagedRun):
        return found
    judged = accepted.get(found.run)
    try:
        seal = raw.verify(found.run, payload_sha256=None if judged is None else judged.payload_sha256)
        if judged is not None and (problem := compare_with_seal(judged.registered, seal)) is not None:
            return DamagedRun(path=found.run.path, problem=problem, run=found.run)
    except (RunDamaged, RunNotSealed, UnsafePath) as error:  # the run may have changed since it was listed
        return DamagedRun(path=found.run.path, problem=error.problem, run=found.run)
    return None


def _list_rows(found: Iterable[SealedRun | DamagedRun], verdicts: Verdicts, counts: Counter[str]) -> Iterator[Fields]:
    """Yield and count the runs, then the directories with an invalid name."""
    invalid_names = []
    for each in found:
        if each.run is None:
            invalid_names.append(_run_fields(each))
            continue
        state = _ledger_state(verdicts.get(each.run))
        counts[state] += 1
        counts["damaged"] += isinstance(each, DamagedRun)
        yield _run_fields(each) | {"ledger": state}
    counts["invalid"] = len(invalid_names)
    yield from invalid_names


def _summarize(counts: Counter[str], filters: RunFilters) -> str:
    states = ", ".join(f"{counts[state]:,} {state}" for state in RunLedgerState if counts[state])
    runs = filters.count(sum(counts[state] for state in RunLedgerState), "sealed run")
    parts = [f"{runs}: {states}" if states else runs]
    parts += [f"{counts['damaged']:,} damaged"] if counts["damaged"] else []
    parts += [f"{count_of(counts['invalid'], 'path')} with an invalid name"] if counts["invalid"] else []
    return "; ".join(parts)


def _ledger_state(verdict: tuple[Outcome | None, bool] | None) -> RunLedgerState:
    match verdict:
        case None:
            return RunLedgerState.UNREGISTERED
        case (None, _):
            return RunLedgerState.AWAITING
        case (Outcome.REJECTED, _):
            return RunLedgerState.REJECTED
        case (_, is_current):
            return RunLedgerState.CURRENT if is_current else RunLedgerState.ACCEPTED


def _list_blocks(rows: Iterable[Fields]) -> Iterator[RenderableType]:
    """A table for each customer and query, each with the problems of its damaged runs; then the invalid names."""
    for title, group in groupby(
        rows, lambda row: f"{row['customer_id']} {row['query_name']}" if "run_id" in row else ""
    ):
        members = list(group)
        yield from table_of(members, COLUMNS, title=title) if title else ()
        yield from _damage_blocks(members)


def _damage_blocks(rows: Iterable[Fields]) -> Iterator[RenderableType]:
    for row in rows:
        if row["damage"]:
            yield from (cell(f"{row['path']}: {row['damage']}"), Text(""))


def _run_fields(found: SealedRun | DamagedRun) -> dict[str, Any]:
    """The fields of a sealed run; for a damaged one only its path and the problem."""
    fields = {} if found.run is None else fields_of(found.run)
    if isinstance(found, DamagedRun):
        return fields | {"path": found.path, "damage": found.problem}
    counts = {name: getattr(found, name) for name in ("record_count", "payload_bytes", "payload_sha256")}
    return fields | {"path": found.run.path, "damage": None} | counts | asdict(found.facts)
