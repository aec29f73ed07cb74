"""Makes a lost ledger anew from an export of its logs, and holds each run of the export to its seal on disk.

What was sealed or judged after the export is not lost: raw has the runs, and they are judged as if they were new. How
logs become states is `ledger`'s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ads_pipeline.domain.freshness import Tenancy
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import RegisteredRun
from ads_pipeline.errors import RunDamaged, RunNotSealed, UnsafePath
from ads_pipeline.ledger.archive import Archive
from ads_pipeline.ledger.database import newest_revision
from ads_pipeline.ledger.rebuilding import Refilled, refill
from ads_pipeline.progress import ProgressReporter, silence
from ads_pipeline.raw.landing import DamagedRun, RawRuns
from ads_pipeline.raw.seal import Seal

GONE = "its raw data is gone"
CHANGED = "its seal is not the one it was registered with"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A run of the log that raw does not bear out. What the log says of it is used all the same."""

    run: Run
    problem: str

    def __str__(self) -> str:
        return f"{self.run}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What the ledger was made of, and which of its runs raw does not bear out."""

    refilled: Refilled
    remarks: tuple[Remark, ...]


def rebuild(url: str, path: Path, *, raw: RawRuns, space: Tenancy, tell: ProgressReporter = silence) -> Rebuilt:
    """Make the ledger anew where there is none. The export is read to its end before anything is written."""
    archive, revision = Archive(path), newest_revision()
    counts = archive.counts(revision=revision)
    remarks: list[Remark] = []
    with tell("holding runs to their seals", counts["runs"]) as done:
        for registered in _runs(archive, revision):
            problem = problem_of(registered, raw)
            remarks += [] if problem is None else [Remark(run=registered.run, problem=problem)]
            done(1)
    with tell("writing the ledger", sum(counts.values())) as done:
        refilled = refill(url, archive, space=space, done=done)
    return Rebuilt(refilled=refilled, remarks=tuple(remarks))


def problem_of(registered: RegisteredRun, raw: RawRuns) -> str | None:
    """What raw holds against what is registered of a run; None when they agree, also on its being damaged."""
    run = registered.run
    try:
        found: Seal | DamagedRun | None = raw.seal(run)
    except RunNotSealed:
        found = None
    except (RunDamaged, UnsafePath) as error:
        found = DamagedRun(path=run.path, problem=error.problem, run=run)
    return held_against(registered, found)


def held_against(registered: RegisteredRun, found: Seal | DamagedRun | None) -> str | None:
    """The same, of what was found where the run must be."""
    match found:
        case None:
            return GONE
        case DamagedRun(problem=problem):
            return None if registered.record_count is None else problem
    return None if _facts(found) == _registered(registered) else CHANGED


def _facts(seal: Seal) -> tuple[object, ...]:
    return seal.facts.schema_version, seal.record_count, seal.payload_sha256


def _registered(registered: RegisteredRun) -> tuple[object, ...]:
    return registered.schema_version, registered.record_count, registered.payload_sha256


def _runs(archive: Archive, revision: str) -> Iterator[RegisteredRun]:
    """The runs of the export; all of it is read, so what is wrong anywhere shows."""
    for part, row in archive.rows(revision=revision):
        if part.name == "runs":
            yield _run(row)


def _run(row: dict[str, Any]) -> RegisteredRun:
    key = PartitionKey(**{name: row[name] for name in ("source", "customer_id", "query_name", "logical_date")})
    facts = {name: row[name] for name in ("ordinal", "schema_version", "record_count", "payload_sha256")}
    return RegisteredRun(run=Run(key=key, run_id=row["run_id"]), **facts)
