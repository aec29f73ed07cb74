"""Finds what was sealed and awaits its verdict: in partitions that are asked for, or in a window of days.

Sealed runs are found by set difference, never by a watermark: a run that began earlier may be sealed later. What is
to be done with them is for `pipeline`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.raw.landing import DamagedRun, RawRuns
from ads_pipeline.raw.seal import Seal


class Source(Protocol):
    """Where the runs of partitions come from. An extractor lands new ones; what outsiders seal is only found."""

    @property
    def fetches(self) -> bool:
        """Whether it lands runs itself, so that asking for a partition again may bring another."""
        ...

    def land(self, partitions: Sequence[PartitionKey]) -> list[Run]:
        """The sealed runs of these partitions that await their verdict, oldest first in each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjudgedRuns:
    """Sealed runs without a verdict, and what lies in the raw folders under names that are no run's."""

    runs: tuple[Run, ...]
    nameless: tuple[DamagedRun, ...]


class SealedRuns:
    """The source of a deployment whose extractors seal runs by themselves."""

    fetches = False

    def __init__(self, *, raw: RawRuns, ledger: LedgerReader) -> None:
        self._raw, self._ledger = raw, ledger

    def land(self, partitions: Sequence[PartitionKey]) -> list[Run]:
        """Runs the ledger knows come first, in its order; then the new ones, by when they were extracted."""
        known = self._ledger.known_runs(partitions)
        awaiting = [run for run, is_judged in known.items() if not is_judged]
        found = [each for key in partitions for each in self._raw.runs(key)]
        return awaiting + [run for run in _by_extraction(found) if run not in known]

    def arrived(self, *, source: str, since: date, until: date) -> UnjudgedRuns:
        """What was sealed in these days, by whomever and whenever, and was never judged."""
        known = self._ledger.runs_by_day(source=source, since=since, until=until)
        judged = {run for run, is_judged in known.items() if is_judged}
        found = list(self._raw.find(source=source, since=since, until=until, known=judged))
        nameless = tuple(each for each in found if isinstance(each, DamagedRun) and each.run is None)
        return UnjudgedRuns(runs=tuple(_by_extraction(found)), nameless=nameless)


def _by_extraction(found: Iterable[Seal | DamagedRun]) -> list[Run]:
    """As good a guess at their order as any, and always the same. Damaged runs tell no time and come first."""
    timed = [
        (each.facts.extracted_at.isoformat() if isinstance(each, Seal) else "", str(each.run), each.run)
        for each in found
        if each.run is not None
    ]
    return [run for _time, _name, run in sorted(timed, key=lambda each: each[:2])]
