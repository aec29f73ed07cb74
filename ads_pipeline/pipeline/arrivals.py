"""Finds sealed runs that have no verdict, in given partitions or in a range of days.

The search compares sealed runs with the ledger and uses no watermark, because a run that started earlier may be
sealed later. A search that remembers the one before looks only into the folders of days that have changed since. A
bucket has no folders whose change could be seen, so a search lists a part of it, and the next search the next part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Final

from ads_pipeline.domain.fetching.fetch_results import Backfill
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.lake.raw.discovery import DamagedRun, Found, RunWithoutSeal
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.run_source import Landed
from ads_pipeline.ledger.state.run_history import RunHistory

SENSOR_WINDOW: Final = timedelta(days=92)  # the days that each tick of a sensor searches
DAYS_READ_ONE_BY_ONE: Final = 1_000  # of more, if most days have changed, one walk over a disk is cheaper
FORGET_AFTER: Final = timedelta(minutes=30)
HasContract = Callable[[str, str], bool]  # of a query and a schema version


@dataclass(frozen=True, slots=True, kw_only=True)
class UnjudgedRuns:
    """Sealed runs without a verdict, and paths below raw whose names are invalid.

    `without_contract` are registered and cannot be judged until a contract for their schema version is declared.
    """

    runs: tuple[Run, ...]
    misnamed: tuple[DamagedRun, ...]
    without_contract: tuple[Run, ...] = ()


@dataclass(slots=True)
class SearchMemory:
    """The days that earlier searches of this process have seen, for searches one after the other.

    `fingerprints` are those of the days that have only judged runs; all other days are looked at again. Every half
    hour they are forgotten, because some file systems show an old time of change for a while, and because a ledger
    may be restored from a backup. `position` is where the last search of a bucket stopped.
    """

    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    fingerprints: dict[str, int] = field(default_factory=dict)
    position: str | None = None
    _since: datetime | None = None

    def forget_if_old(self) -> None:
        now = self.clock()
        if self._since is None or now - self._since >= FORGET_AFTER:
            self._since = now
            self.fingerprints.clear()


class SealedRuns:
    """The source of a deployment whose extractors run outside Dagster."""

    fetches = False

    def __init__(
        self, *, raw: RawRuns, runs: RunHistory, has_contract: HasContract = lambda _query, _version: True
    ) -> None:
        self._raw, self._runs, self._has_contract = raw, runs, has_contract

    def land(
        self,
        partitions: Sequence[PartitionKey],
        backfill: Backfill | None = None,  # noqa: ARG002 - nothing is fetched
    ) -> Landed:
        """Return registered runs in ledger order, then unregistered runs in the order of their extraction."""
        known = self._runs.judged_by_run(partitions)
        judged = _select_judged(known)
        sealed = self._raw.list_many(partitions, known=judged)
        unjudged = {each.run: each for each in sorted(sealed, key=_extraction_order) if each.run is not None}
        registered = [unjudged.pop(run) for run in known if run in unjudged]
        return Landed(runs=(*registered, *unjudged.values()))

    @property
    def is_searched_in_parts(self) -> bool:
        """Return whether a search with a memory looks at a part of the runs, whatever their days."""
        return self._raw.is_listed_in_parts

    def find_unjudged(
        self, *, source: str, since: date, until: date, memory: SearchMemory | None = None
    ) -> UnjudgedRuns:
        """Find the sealed runs of these days that have no verdict.

        With a memory, a search of a bucket lists the next part of it, and begins again after the last one.
        """
        if memory is None:
            memory = SearchMemory()
            found = self._search(source, since, until, memory)
            while memory.position is not None:
                found += self._search(source, since, until, memory)
        else:
            memory.forget_if_old()
            found = self._search(source, since, until, memory)
        sealed = sorted((each for each in found if not isinstance(each, RunWithoutSeal)), key=_extraction_order)
        misnamed = (each for each in sealed if isinstance(each, DamagedRun) and each.run is None)
        waiting = self._find_without_contract(sealed)
        return UnjudgedRuns(
            runs=tuple(each.run for each in sealed if each.run is not None and each.run not in waiting),
            misnamed=tuple(dict.fromkeys(misnamed)),
            without_contract=tuple(waiting),
        )

    def _find_without_contract(self, sealed: Iterable[SealedRun | DamagedRun]) -> dict[Run, None]:
        """The registered runs that no contract judges. Others are found, so that a run registers them."""
        runs = [each.run for each in sealed if isinstance(each, SealedRun) and not self._has_contract(*each.contract)]
        registered = self._runs.judged_by_run({run.key for run in runs}) if runs else {}
        return {run: None for run in runs if run in registered}

    def _search(self, source: str, since: date, until: date, memory: SearchMemory) -> list[Found]:
        # The fingerprints are read before the folders, so that a run that is sealed in between is found next time.
        changed = self._raw.find_changed_days(
            source=source, since=since, until=until, seen=memory.fingerprints, after=memory.position
        )
        is_most = len(changed.days) > max(DAYS_READ_ONE_BY_ONE, len(memory.fingerprints))
        if is_most and not self.is_searched_in_parts:
            found = self._search_window(source, since, until)
        else:
            known = self._runs.judged_by_run(sorted(day.key for day in changed.days))
            found = list(self._raw.read_days(changed.days, _select_judged(known)))
        unsettled = {_find_day(each) for each in found}
        memory.fingerprints |= {
            day.path: day.fingerprint
            for day in changed.days
            if day.fingerprint is not None and day.path not in unsettled
        }
        memory.position = changed.end
        return [*found, *changed.misnamed]

    def _search_window(self, source: str, since: date, until: date) -> list[Found]:
        judged = _select_judged(self._runs.judged_by_run_between(source=source, since=since, until=until))
        return list(self._raw.find_folders(source=source, since=since, until=until, known=judged))


def _select_judged(known: Mapping[Run, bool]) -> set[Run]:
    return {run for run, is_judged in known.items() if is_judged}


def _find_day(found: Found) -> str:
    """The path of the folder that a run, or an invalid name, is in."""
    return found.run.key.path if found.run is not None else found.path.rpartition("/")[0]


def _extraction_order(found: SealedRun | DamagedRun) -> tuple[str, str]:
    """The extraction time, then the name. Damaged runs have no readable time and come first."""
    return found.facts.extracted_at.isoformat() if isinstance(found, SealedRun) else "", str(found.run)
