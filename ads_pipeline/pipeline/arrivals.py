"""Finds sealed runs that have no verdict, in given partitions or in a range of days.

The search compares all sealed runs with the ledger and uses no watermark, because a run that started earlier may be
sealed later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.raw.source import Landed


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjudgedRuns:
    """Sealed runs without a verdict, and paths below raw whose names are invalid."""

    runs: tuple[Run, ...]
    misnamed: tuple[DamagedRun, ...]


class SealedRuns:
    """The source of a deployment whose extractors run outside Dagster."""

    fetches = False

    def __init__(self, *, raw: RawRuns, runs: RunHistory) -> None:
        self._raw, self._runs = raw, runs

    def land(self, partitions: Sequence[PartitionKey]) -> Landed:
        """Return registered runs in ledger order, then unregistered runs in the order of their extraction."""
        known = self._runs.judged_by_run(partitions)
        judged = {run for run, is_judged in known.items() if is_judged}
        sealed = (each for key in partitions for each in self._raw.list_runs(key, known=judged))
        unjudged = {each.run: each for each in sorted(sealed, key=_extraction_order) if each.run is not None}
        registered = [unjudged.pop(run) for run in known if run in unjudged]
        return Landed(runs=(*registered, *unjudged.values()))

    def find_unjudged(self, *, source: str, since: date, until: date) -> UnjudgedRuns:
        """Find the sealed runs of these days that have no verdict."""
        known = self._runs.judged_by_run_between(source=source, since=since, until=until)
        judged = {run for run, is_judged in known.items() if is_judged}
        sealed = self._raw.find_runs(source=source, since=since, until=until, known=judged)
        found = sorted(sealed, key=_extraction_order)
        misnamed = tuple(each for each in found if isinstance(each, DamagedRun) and each.run is None)
        return UnjudgedRuns(runs=tuple(each.run for each in found if each.run is not None), misnamed=misnamed)


def _extraction_order(found: Seal | DamagedRun) -> tuple[str, str]:
    """The extraction time, then the name. Damaged runs have no readable time and come first."""
    return found.facts.extracted_at.isoformat() if isinstance(found, Seal) else "", str(found.run)
