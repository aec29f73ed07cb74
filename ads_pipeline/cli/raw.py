"""Lists the sealed runs of a window with what the ledger knows of them, and holds their payloads to their seals.

What a seal promises is `seal`'s to say, and what is damaged `raw`'s. It loads neither Spark nor DuckDB.
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

from ads_pipeline.cli.output import Paper, cell, counted, instant_of, listing, moment, write_json
from ads_pipeline.cli.parsing import Window, customers, ledger_of
from ads_pipeline.domain.partition import Run, checked_name
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.errors import RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.values import StateFilter
from ads_pipeline.progress import silence, telling
from ads_pipeline.raw.landing import DamagedRun, RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.settings import Settings

WIDE: Final = 120  # columns; below, the instant of extraction is left to --json and to the names of our own runs
DAYS: Final = 31


class Regard(StrEnum):
    """What the ledger knows of a sealed run."""

    CURRENT = "current"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    AWAITING = "awaiting verdict"
    UNREGISTERED = "unregistered"


COLOURS: Final = {
    Regard.CURRENT: "green",
    Regard.REJECTED: "red",
    Regard.AWAITING: "yellow",
    Regard.UNREGISTERED: "yellow",
}
Verdicts = Mapping[Run, tuple[Outcome | None, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawFilter:
    """Which sealed runs were asked for."""

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
class Others(Container[Run]):
    """Every run that was not asked for, so that its seal is not even read."""

    wanted: RawFilter
    judged: Container[Run]

    def __contains__(self, run: object) -> bool:
        if not isinstance(run, Run):
            return False
        wanted, key = self.wanted, run.key
        named = (wanted.customer_ids is None or key.customer_id in wanted.customer_ids) and (
            wanted.query_names is None or key.query_name in wanted.query_names
        )
        return not named or run in self.judged


def wanted_of(
    settings: Settings,
    *,
    customer: Sequence[str] | None,
    query: Sequence[str] | None,
    days: Window,
    unjudged: bool,
) -> RawFilter:
    """What was asked for; unless it is said, the last month. A query that the query file lacks may be looked for."""
    until = days.until or max(datetime.now(UTC).date(), days.since or date.min)
    named = customers(customer)
    return RawFilter(
        source=settings.google_apis.source,
        since=days.since or until - timedelta(days=DAYS - 1),
        until=until,
        customer_ids=None if named is None else frozenset(named),
        query_names=frozenset(checked_name("query_name", each) for each in query) if query else None,
        unjudged=unjudged,
    )


def show(settings: Settings, wanted: RawFilter, *, as_json: bool) -> None:
    """Write the sealed runs as they are found, by customer, query and day; then what has no name, and a tally."""
    verdicts = _verdicts(settings, wanted)
    tally = Tally()
    runs = tally.of(_found(settings, wanted, verdicts), verdicts)
    if as_json:
        write_json(_fields(found, regard) for found, regard in runs)
        write_json(_fields(damage, None) for damage in tally.nameless)
        print(tally, file=sys.stderr)  # noqa: T201 - standard output is the program's
        return
    paper = Paper()
    for place, listed in groupby(runs, lambda each: _place(each[0])):
        _write_group(paper, place, list(listed))
    _write_damaged(paper, tally.nameless)
    paper.print(cell(tally), soft_wrap=True)


def verify(settings: Settings, wanted: RawFilter, *, as_json: bool) -> bool:
    """Read every payload and hold it to its seal; write what is damaged, and say whether anything is."""
    verdicts = _verdicts(settings, wanted) if wanted.unjudged else {}
    raw, found = RawRuns(settings.raw_root), list(_found(settings, wanted, verdicts))
    damaged = []
    tell = telling(sys.stderr) if sys.stderr.isatty() else silence
    with tell("verifying", len(found)) as done:
        for each in found:
            damage = _damage(raw, each)
            damaged += [] if damage is None else [damage]
            done(1)
    number = f"{len(damaged):,}" if damaged else "none"
    told = f"{number} of {counted(len(found), 'sealed run')} damaged"
    if as_json:
        write_json(_fields(damage, None) for damage in damaged)
        print(told, file=sys.stderr)  # noqa: T201 - as above
    else:
        paper = Paper()
        _write_damaged(paper, damaged)
        paper.print(cell(told))
    return bool(damaged)


class Tally:
    """Counts runs as they pass by, and keeps what has no run's name."""

    def __init__(self) -> None:
        self.nameless: list[DamagedRun] = []
        self._regards: Counter[Regard] = Counter()
        self._damaged = 0

    def of(
        self, found: Iterable[Seal | DamagedRun], verdicts: Verdicts
    ) -> Iterator[tuple[Seal | DamagedRun, Regard]]:
        for each in found:
            if each.run is None:
                self.nameless.append(each)
                continue
            regard = _regard(verdicts.get(each.run))
            self._regards[regard] += 1
            self._damaged += isinstance(each, DamagedRun)
            yield each, regard

    def __str__(self) -> str:
        parts = ", ".join(f"{self._regards[regard]:,} {regard}" for regard in Regard if self._regards[regard])
        runs = counted(self._regards.total(), "sealed run") + (f": {parts}" if parts else "")
        damaged = [f"{self._damaged:,} damaged"] if self._damaged else []
        nameless = [f"{counted(len(self.nameless), 'path')} without a run's name"] if self.nameless else []
        return "; ".join([runs, *damaged, *nameless])


def _verdicts(settings: Settings, wanted: RawFilter) -> Verdicts:
    with ledger_of(settings) as ledger:
        return ledger.verdicts(wanted.partitions)


def _found(settings: Settings, wanted: RawFilter, verdicts: Verdicts) -> Iterator[Seal | DamagedRun]:
    judged = {run for run, (outcome, _current) in verdicts.items() if outcome is not None} if wanted.unjudged else ()
    return RawRuns(settings.raw_root).find(
        source=wanted.source, since=wanted.since, until=wanted.until, known=Others(wanted=wanted, judged=judged)
    )


def _damage(raw: RawRuns, found: Seal | DamagedRun) -> DamagedRun | None:
    if isinstance(found, DamagedRun):
        return found
    try:
        raw.verify(found.run)
    except (RunDamaged, RunNotSealed, UnsafePath) as error:  # it may have been tampered with since it was found
        return DamagedRun(path=found.run.path, problem=error.problem, run=found.run)
    return None


def _regard(verdict: tuple[Outcome | None, bool] | None) -> Regard:
    match verdict:
        case None:
            return Regard.UNREGISTERED
        case (None, _):
            return Regard.AWAITING
        case (Outcome.REJECTED, _):
            return Regard.REJECTED
        case (_, is_current):
            return Regard.CURRENT if is_current else Regard.ACCEPTED


def _place(found: Seal | DamagedRun) -> str:
    return "" if found.run is None else f"{found.run.key.customer_id} {found.run.key.query_name}"


def _write_group(paper: Paper, place: str, listed: Sequence[tuple[Seal | DamagedRun, Regard]]) -> None:
    """The runs of one customer and query; what is wrong with those that are damaged stands below."""
    wide = {"extracted": "left"} if paper.width >= WIDE else {}
    table = listing(day="left", run="fold", rows="right", bytes="right", v="left", ledger="left", **wide)
    for found, regard in listed:
        if found.run is None:
            continue
        named = cell(found.run.key.logical_date), cell(found.run.run_id)
        known = cell(regard, style=COLOURS.get(regard, ""))
        if isinstance(found, DamagedRun):
            table.add_row(*named, cell("damaged", style="red"), Text(""), Text(""), known)
            continue
        size = None if found.payload_bytes is None else f"{found.payload_bytes:,}"
        told = cell(f"{found.record_count:,}"), cell(size), cell(found.facts.schema_version)
        more = [cell(moment(found.facts.extracted_at))] if wide else []
        table.add_row(*named, *told, known, *more)
    paper.print(cell(place, style="bold"), table, Text(""), sep="\n")
    _write_damaged(paper, [found for found, _regard in listed if isinstance(found, DamagedRun)])


def _write_damaged(paper: Paper, damaged: Iterable[DamagedRun]) -> None:
    for damage in damaged:
        paper.print(cell(f"{damage.path}: {damage.problem}"), Text(""), sep="\n")


def _fields(found: Seal | DamagedRun, regard: Regard | None) -> dict[str, object]:
    """Everything that is known of a sealed run; of what is damaged, what is wrong with it and no more."""
    fields: dict[str, object] = {} if found.run is None else asdict(found.run.key) | {"run_id": found.run.run_id}
    if isinstance(found, DamagedRun):
        fields |= {"path": found.path, "damage": found.problem}
    else:
        facts = asdict(found.facts) | {"extracted_at": instant_of(found.facts.extracted_at)}
        counts = {name: getattr(found, name) for name in ("record_count", "payload_bytes", "payload_sha256")}
        fields |= {"path": found.run.path, "damage": None} | counts | facts
    return fields | ({} if regard is None else {"ledger": regard})
