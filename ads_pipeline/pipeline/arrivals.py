"""Finds sealed runs that have no verdict, in given partitions or in a range of days.

The search compares all sealed runs with the ledger and uses no watermark, because a run that started earlier may be
sealed later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal


class Source(Protocol):
    """Supplies sealed runs of partitions, either by extracting them or by finding what other extractors sealed."""

    @property
    def can_fetch(self) -> bool:
        """Whether the source extracts runs itself, so that a repeated request can produce a new run."""
        ...

    def collect(self, partitions: Sequence[PartitionKey]) -> list[Run]:
        """Return the sealed runs of these partitions that have no verdict, oldest first in each partition."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjudgedRuns:
    """Sealed runs without a verdict, and paths below raw whose names are invalid."""

    runs: tuple[Run, ...]
    misnamed: tuple[DamagedRun, ...]


class SealedRuns:
    """The source of a deployment whose extractors run outside Dagster."""

    can_fetch = False

    def __init__(self, *, raw: RawRuns, runs: RunHistory) -> None:
        self._raw, self._runs = raw, runs

    def collect(self, partitions: Sequence[PartitionKey]) -> list[Run]:
        """Return registered runs in ledger order, then unregistered runs in the order of their extraction."""
        known = self._runs.judged_by_run(partitions)
        registered = [run for run, is_judged in known.items() if not is_judged]
        sealed = [each for key in partitions for each in self._raw.list_runs(key)]
        return registered + [run for run in _sort_by_extraction(sealed) if run not in known]

    def find_unjudged(self, *, source: str, since: date, until: date) -> UnjudgedRuns:
        """Find the sealed runs of these days that have no verdict."""
        known = self._runs.judged_by_run_between(source=source, since=since, until=until)
        judged = {run for run, is_judged in known.items() if is_judged}
        sealed = list(self._raw.find_runs(source=source, since=since, until=until, known=judged))
        misnamed = tuple(each for each in sealed if isinstance(each, DamagedRun) and each.run is None)
        return UnjudgedRuns(runs=tuple(_sort_by_extraction(sealed)), misnamed=misnamed)


def _sort_by_extraction(sealed: Iterable[Seal | DamagedRun]) -> list[Run]:
    """Sort by extraction time, then by name. Damaged runs have no readable time and come first."""
    timed = [
        (each.facts.extracted_at.isoformat() if isinstance(each, Seal) else "", str(each.run), each.run)
        for each in sealed
        if each.run is not None
    ]
    return [run for _time, _name, run in sorted(timed, key=lambda each: each[:2])]
