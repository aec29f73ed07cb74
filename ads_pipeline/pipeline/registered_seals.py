"""Registers sealed runs in the ledger, which gives each run its ordinal, and compares them with their seals later.

It reads seals and not payloads. Judging is in `validation`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from ads_pipeline.domain.errors import RunChanged, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.ledger.state.run_registration import Registrations

RAW_DATA_MISSING: Final = "its raw data is gone"
SEAL_CHANGED: Final = "its seal is not the one it was registered with"


class SealRegister:
    """Registers sealed runs and keeps their seals, so that later steps of a Dagster run do not read them again."""

    def __init__(self, *, raw: RawRuns, registrations: Registrations) -> None:
        self._raw, self._registrations = raw, registrations
        self._kept: dict[Run, SealedRun | DamagedRun] = {}

    def register(self, found: Iterable[SealedRun | DamagedRun]) -> None:
        """Register runs in the order given, intact ones first, and keep their seals. Repeating it changes nothing."""
        self._kept |= self._register({each.run: each for each in found if each.run is not None})

    def get_or_register(
        self, runs: Iterable[Run]
    ) -> tuple[dict[Run, SealedRun | DamagedRun], dict[Run, RunNotSealed]]:
        """Return what is registered of these runs, and the runs that have no seal.

        Runs that were not kept are read and registered. They are not kept either, to bound memory.
        """
        found: dict[Run, SealedRun | DamagedRun] = {}
        unsealed: dict[Run, RunNotSealed] = {}
        for run in dict.fromkeys(runs):
            try:
                found[run] = self._kept.get(run) or find_run(self._raw, run)
            except RunNotSealed as error:
                unsealed[run] = error
        found |= self._register({run: each for run, each in found.items() if run not in self._kept})
        return found, unsealed

    def read_seal(self, run: Run) -> SealedRun:
        """Return the run's seal. RunNotSealed, or RunDamaged with the reason."""
        kept = self._kept.get(run)
        return kept if isinstance(kept, SealedRun) else self._raw.read_seal(run)

    def _register(self, found: Mapping[Run, SealedRun | DamagedRun]) -> dict[Run, SealedRun | DamagedRun]:
        """Register runs and return them. A run that is registered with another seal is returned as damaged."""
        intact = [each for each in found.values() if isinstance(each, SealedRun)]
        damaged = [run for run, each in found.items() if isinstance(each, DamagedRun)]
        changed = self._register_unchanged([*intact, *damaged]) if found else frozenset[str]()
        return {
            run: DamagedRun(path=run.path, problem=SEAL_CHANGED, run=run)
            if str(run) in changed and isinstance(each, SealedRun)
            else each
            for run, each in found.items()
        }

    def _register_unchanged(self, runs: Sequence[SealedRun | Run]) -> frozenset[str]:
        """Register all runs but those that are registered with another seal; return the names of those."""
        try:
            self._registrations.register(runs)
        except RunChanged as error:
            changed = frozenset(error.runs)
            self._registrations.register([each for each in runs if _name(each) not in changed])
            return changed
        return frozenset()


def _name(found: SealedRun | Run) -> str:
    return str(found if isinstance(found, Run) else found.run)


def check_seal(registered: RegisteredRun, raw: RawRuns) -> str | None:
    """Read the run's seal and compare it with the registration; the problem, or None when they agree."""
    try:
        return compare_with_seal(registered, find_run(raw, registered.run))
    except RunNotSealed:
        return compare_with_seal(registered, None)


def find_run(raw: RawRuns, run: Run) -> SealedRun | DamagedRun:
    """Read the run's seal, or find what is wrong with the run. RunNotSealed when it has no seal."""
    try:
        return raw.read_seal(run)
    except (RunDamaged, UnsafePath) as error:
        return DamagedRun(path=run.path, problem=error.problem, run=run)


def compare_with_seal(registered: RegisteredRun, found: SealedRun | DamagedRun | None) -> str | None:
    """Compare a registration with what was found on disk; the problem, or None when they agree.

    A damaged run agrees with a registration that recorded the damage.
    """
    match found:
        case None:
            return RAW_DATA_MISSING
        case DamagedRun(problem=problem):
            return None if registered.record_count is None else problem
    sealed = (found.facts.schema_version, found.record_count, found.payload_sha256)
    recorded = (registered.schema_version, registered.record_count, registered.payload_sha256)
    return None if sealed == recorded else SEAL_CHANGED
