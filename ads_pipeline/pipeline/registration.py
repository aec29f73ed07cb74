"""Registers sealed runs in the ledger, which gives each run its ordinal.

It reads seals and not payloads. Judging is in `pipeline.judging`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ads_pipeline.domain.partition import Run
from ads_pipeline.errors import RunChanged, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.state.registration import Registrations
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline.pipeline.seal_comparison import SEAL_CHANGED
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal

DAMAGED = (RunDamaged, UnsafePath)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult:
    """Registered runs, either intact or damaged, and runs that were not registered because they have no seal."""

    seals: tuple[Seal, ...]
    damaged: dict[Run, str]
    unsealed: dict[Run, RunNotSealed]


def register_runs(runs: Iterable[Run], *, raw: RawRuns, registrations: Registrations) -> RegistrationResult:
    """Register sealed runs in the order given; a repeated call changes nothing.

    A run is damaged when its seal is invalid or differs from the seal it was registered with.
    """
    seals: dict[Run, Seal] = {}
    damaged: dict[Run, str] = {}
    unsealed: dict[Run, RunNotSealed] = {}
    for run in dict.fromkeys(runs):
        try:
            seals[run] = raw.read_seal(run)
        except RunNotSealed as error:
            unsealed[run] = error
        except DAMAGED as error:
            damaged[run] = error.problem
    described = [_describe(seal) for seal in seals.values()] + [RunRegistration(run=run) for run in damaged]
    changed = _register_unchanged(described, registrations)
    damaged |= {run: SEAL_CHANGED for run in changed if run in seals}
    intact = tuple(seal for run, seal in seals.items() if run not in changed)
    return RegistrationResult(seals=intact, damaged=damaged, unsealed=unsealed)


def _register_unchanged(described: list[RunRegistration], registrations: Registrations) -> set[Run]:
    """Register all runs but those that are registered with another seal; return those."""
    try:
        registrations.register(described)
    except RunChanged as error:
        changed = {each.run for each in described if str(each.run) in error.runs}
        registrations.register([each for each in described if each.run not in changed])
        return changed
    return set()


def _describe(seal: Seal) -> RunRegistration:
    return RunRegistration(
        run=seal.run,
        schema_version=seal.facts.schema_version,
        record_count=seal.record_count,
        payload_sha256=seal.payload_sha256,
    )
