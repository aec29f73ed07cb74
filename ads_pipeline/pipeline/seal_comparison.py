"""Compares a registered run with its seal on disk."""

from typing import Final

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.errors import RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.raw.discovery import DamagedRun
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal

RAW_DATA_MISSING: Final = "its raw data is gone"
SEAL_CHANGED: Final = "its seal is not the one it was registered with"


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
