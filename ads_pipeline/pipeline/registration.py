"""Tells the ledger of sealed runs, by what their seals say; which of them are damaged is found here first.

Registering is what gives runs their order. Whether they are any good is for the validator to say.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ads_pipeline.domain.partition import Run
from ads_pipeline.errors import RunChanged, RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.values import RunRegistration
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.raw.seal import Seal

DAMAGED = (RunDamaged, UnsafePath)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationResult:
    """Runs the ledger knows now, sound or damaged, and those that it was not told of because there is no seal."""

    seals: tuple[Seal, ...]
    damaged: dict[Run, str]
    unsealed: dict[Run, RunNotSealed]


def register(runs: Iterable[Run], *, raw: RawRuns, ledger: Ledger) -> RegistrationResult:
    """Register what is sealed, in the order given; may be repeated. One that is known by another seal is damaged."""
    seals: dict[Run, Seal] = {}
    damaged: dict[Run, str] = {}
    unsealed: dict[Run, RunNotSealed] = {}
    for run in dict.fromkeys(runs):
        try:
            seals[run] = raw.seal(run)
        except RunNotSealed as error:
            unsealed[run] = error
        except DAMAGED as error:
            damaged[run] = error.problem
    landings = [_landing(seal) for seal in seals.values()] + [RunRegistration(run=run) for run in damaged]
    changed = _known_by_another_seal(landings, ledger)
    damaged |= {run: "its seal is not the one it was registered with" for run in changed if run in seals}
    sound = tuple(seal for run, seal in seals.items() if run not in changed)
    return RegistrationResult(seals=sound, damaged=damaged, unsealed=unsealed)


def _known_by_another_seal(landings: list[RunRegistration], ledger: Ledger) -> set[Run]:
    """Registers all the others."""
    try:
        ledger.register(landings)
    except RunChanged as error:
        changed = {landing.run for landing in landings if str(landing.run) in error.runs}
        ledger.register([landing for landing in landings if landing.run not in changed])
        return changed
    return set()


def _landing(seal: Seal) -> RunRegistration:
    return RunRegistration(
        run=seal.run,
        schema_version=seal.facts.schema_version,
        record_count=seal.record_count,
        payload_sha256=seal.payload_sha256,
    )
