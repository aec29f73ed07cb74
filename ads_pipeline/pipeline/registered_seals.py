"""Registers sealed runs in the ledger, which gives each run its ordinal, and compares them with their seals later.

It reads seals and not payloads. Judging is in `validation`.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Final

from ads_pipeline.domain.errors import RunChanged, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.raw.seal import Seal
from ads_pipeline.ledger.sql.ledger_values import RunRegistration
from ads_pipeline.ledger.state.run_registration import Registrations

RAW_DATA_MISSING: Final = "its raw data is gone"
SEAL_CHANGED: Final = "its seal is not the one it was registered with"


class SealRegister:
    """Registers sealed runs and keeps their seals, so that later steps of a Dagster run do not read them again."""

    def __init__(self, *, raw: RawRuns, registrations: Registrations) -> None:
        self._raw, self._registrations = raw, registrations
        self._kept: dict[Run, Seal | DamagedRun] = {}

    def register(self, found: Iterable[Seal | DamagedRun]) -> None:
        """Register runs in the order given, intact ones first, and keep their seals. Repeating it changes nothing."""
        self._kept |= self._register({each.run: each for each in found if each.run is not None})

    def get_or_register(self, runs: Iterable[Run]) -> tuple[dict[Run, Seal | DamagedRun], dict[Run, RunNotSealed]]:
        """Return what is registered of these runs, and the runs that have no seal.

        Runs that were not kept are read and registered. They are not kept either, to bound memory.
        """
        found: dict[Run, Seal | DamagedRun] = {}
        unsealed: dict[Run, RunNotSealed] = {}
        for run in dict.fromkeys(runs):
            try:
                found[run] = self._kept.get(run) or find_run(self._raw, run)
            except RunNotSealed as error:
                unsealed[run] = error
        found |= self._register({run: each for run, each in found.items() if run not in self._kept})
        return found, unsealed

    def read_seal(self, run: Run) -> Seal:
        """Return the run's seal. RunNotSealed, or RunDamaged with the reason."""
        kept = self._kept.get(run)
        return kept if isinstance(kept, Seal) else self._raw.read_seal(run)

    def _register(self, found: Mapping[Run, Seal | DamagedRun]) -> dict[Run, Seal | DamagedRun]:
        """Register runs and return them. A run that is registered with another seal is returned as damaged."""
        described = sorted(starmap(_describe, found.items()), key=lambda each: each.record_count is None)
        changed = self._register_unchanged(described) if described else frozenset[Run]()
        return {
            run: DamagedRun(path=run.path, problem=SEAL_CHANGED, run=run)
            if run in changed and isinstance(each, Seal)
            else each
            for run, each in found.items()
        }

    def _register_unchanged(self, described: Sequence[RunRegistration]) -> set[Run]:
        """Register all runs but those that are registered with another seal; return those."""
        try:
            self._registrations.register(described)
        except RunChanged as error:
            changed = {each.run for each in described if str(each.run) in error.runs}
            self._registrations.register([each for each in described if each.run not in changed])
            return changed
        return set()


def _describe(run: Run, found: Seal | DamagedRun) -> RunRegistration:
    if isinstance(found, DamagedRun):
        return RunRegistration(run=run)
    return RunRegistration(
        run=run,
        schema_version=found.facts.schema_version,
        record_count=found.record_count,
        payload_sha256=found.payload_sha256,
        extracted_at=found.facts.extracted_at,
    )


def check_seal(registered: RegisteredRun, raw: RawRuns) -> str | None:
    """Read the run's seal and compare it with the registration; the problem, or None when they agree."""
    try:
        return compare_with_seal(registered, find_run(raw, registered.run))
    except RunNotSealed:
        return compare_with_seal(registered, None)


def find_run(raw: RawRuns, run: Run) -> Seal | DamagedRun:
    """Read the run's seal, or find what is wrong with the run. RunNotSealed when it has no seal."""
    try:
        return raw.read_seal(run)
    except (RunDamaged, UnsafePath) as error:
        return DamagedRun(path=run.path, problem=error.problem, run=run)


def compare_with_seal(registered: RegisteredRun, found: Seal | DamagedRun | None) -> str | None:
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
