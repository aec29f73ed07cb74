"""Finds sealed runs that have no verdict, in given partitions or in a range of days.

The search compares sealed runs with the ledger and uses no watermark, because a run that started earlier may be
sealed later. A search that remembers the one before looks only into the folders of days that have changed since.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run, parse_run_path
from ads_pipeline.errors import BadName
from ads_pipeline.ledger.state.run_history import RunHistory
from ads_pipeline.raw.discovery import ChangedDay, DamagedRun, Found, RunWithoutSeal
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal
from ads_pipeline.raw.source import Landed

DAYS_READ_ONE_BY_ONE: Final = 1_000  # of more changed days, one walk and one query of the ledger are cheaper
FORGET_AFTER: Final = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjudgedRuns:
    """Sealed runs without a verdict, and paths below raw whose names are invalid."""

    runs: tuple[Run, ...]
    misnamed: tuple[DamagedRun, ...]


@dataclass(slots=True)
class SearchMemory:
    """What earlier searches of this process have seen of the days, for searches one after the other.

    Every half hour it is emptied, because some file systems show an old time of change for a while, and because a
    ledger may be restored from a backup. `waiting` are the partitions to look at again: those that have runs without
    a verdict or without a seal, or an invalid name.
    """

    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    fingerprints: dict[str, int] = field(default_factory=dict)
    waiting: set[PartitionKey] = field(default_factory=set)
    _since: datetime | None = None

    def forget_if_old(self) -> None:
        now = self.clock()
        if self._since is None or now - self._since >= FORGET_AFTER:
            self._since = now
            self.fingerprints.clear()
            self.waiting.clear()


class SealedRuns:
    """The source of a deployment whose extractors run outside Dagster."""

    fetches = False

    def __init__(self, *, raw: RawRuns, runs: RunHistory) -> None:
        self._raw, self._runs = raw, runs

    def land(self, partitions: Sequence[PartitionKey]) -> Landed:
        """Return registered runs in ledger order, then unregistered runs in the order of their extraction."""
        known = self._runs.judged_by_run(partitions)
        judged = _select_judged(known)
        sealed = (each for key in partitions for each in self._raw.list_runs(key, known=judged))
        unjudged = {each.run: each for each in sorted(sealed, key=_extraction_order) if each.run is not None}
        registered = [unjudged.pop(run) for run in known if run in unjudged]
        return Landed(runs=(*registered, *unjudged.values()))

    def find_unjudged(
        self, *, source: str, since: date, until: date, memory: SearchMemory | None = None
    ) -> UnjudgedRuns:
        """Find the sealed runs of these days that have no verdict."""
        memory = memory or SearchMemory()
        memory.forget_if_old()
        # The fingerprints are read before the folders, so that a run that is sealed in between is found next time.
        listed = list(self._raw.find_changed_days(source=source, since=since, until=until, seen=memory.fingerprints))
        changed = {_parse_key(each): each.fingerprint for each in listed if isinstance(each, ChangedDay)}
        misnamed = [each for each in listed if isinstance(each, DamagedRun)]
        again = {key for key in memory.waiting if since <= key.logical_date <= until}
        if len(changed) > DAYS_READ_ONE_BY_ONE:
            found = self._search_window(source, since, until)
        else:
            found = self._search_days({*changed, *again})
        unsettled = {_find_key(each) for each in found}
        memory.waiting -= again
        memory.waiting |= {key for key in unsettled if key is not None}
        memory.fingerprints |= {key.path: seen for key, seen in changed.items() if seen is not None}
        sealed = [each for each in found if not isinstance(each, RunWithoutSeal)]
        misnamed += [each for each in sealed if isinstance(each, DamagedRun) and each.run is None]
        in_order = sorted(sealed, key=_extraction_order)
        return UnjudgedRuns(
            runs=tuple(each.run for each in in_order if each.run is not None), misnamed=tuple(misnamed)
        )

    def _search_window(self, source: str, since: date, until: date) -> list[Found]:
        judged = _select_judged(self._runs.judged_by_run_between(source=source, since=since, until=until))
        return list(self._raw.find_folders(source=source, since=since, until=until, known=judged))

    def _search_days(self, keys: Iterable[PartitionKey]) -> list[Found]:
        ordered = sorted(keys)
        judged = _select_judged(self._runs.judged_by_run(ordered))
        return [each for key in ordered for each in self._raw.list_folders(key, known=judged)]


def _select_judged(known: Mapping[Run, bool]) -> set[Run]:
    return {run for run, is_judged in known.items() if is_judged}


def _parse_key(day: ChangedDay) -> PartitionKey:
    return parse_run_path(f"{day.path}/run_id=r").key


def _find_key(found: Found) -> PartitionKey | None:
    """The partition that a run is in. None for an invalid name of a folder above it."""
    if found.run is not None:
        return found.run.key
    with suppress(BadName):
        return parse_run_path(f"{found.path.rpartition('/')[0]}/run_id=r").key
    return None


def _extraction_order(found: Seal | DamagedRun) -> tuple[str, str]:
    """The extraction time, then the name. Damaged runs have no readable time and come first."""
    return found.facts.extracted_at.isoformat() if isinstance(found, Seal) else "", str(found.run)
