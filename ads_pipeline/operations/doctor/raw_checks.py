"""Checks of raw runs: the ledger's registrations beside the sealed files, and directories without a seal."""

from collections.abc import Iterable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.sealed_run import SealedRun
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.lake.raw.discovery import DamagedRun
from ads_pipeline.lake.storage.open_store import is_bucket
from ads_pipeline.ledger.consistency.inspection import InspectedRun
from ads_pipeline.operations.doctor.day_checks import find_steps
from ads_pipeline.operations.doctor.examination import (
    Deployment,
    Finding,
    format_time,
    make_error,
    make_warning,
    quote_path,
)
from ads_pipeline.pipeline.registered_seals import RAW_DATA_MISSING, check_seal, compare_with_seal

DAY: Final = timedelta(days=1)
_RESTORE: Final = "restore its files, or seal a new run of the partition"


def check_raw_runs(deployment: Deployment) -> Iterator[Finding]:
    """Check that sealed runs are registered and that registered runs still match their seals.

    Both sides are sorted by the path of the run. Each difference is read again before it is reported, because runs
    may be sealed and registered during the check.
    """
    for source in sorted({deployment.settings.google_apis.source, *deployment.ledger.list_sources()}):
        sealed = deployment.raw.find_runs(source=source, since=date.min, until=date.max)
        for found, known in _merge(sealed, deployment.ledger.list_runs(source)):
            if isinstance(found, DamagedRun) and found.run is None:
                step = "rename it as docs/raw-format.md describes, or move it out of raw"
                yield make_warning(f"raw/{found.path}", f"its name is not valid for a run: {found.problem}", step)
            elif known is None and found is not None:
                yield from _check_unregistered(deployment, found)
            elif known is not None:
                yield from _check_registered(deployment, found, known)


def check_landings(deployment: Deployment) -> Iterator[Finding]:
    """Check that no interrupted landing left files without a seal."""
    raw = deployment.raw
    for path, modified_at in raw.find_unsealed(deployment.clock() - DAY):
        problem = f"it was not sealed since {format_time(modified_at)}"
        full = f"{raw.location}/{path}"
        step = f"delete the objects below {full}" if is_bucket(full) else f"rm -r {quote_path(Path(full))}"
        yield make_warning(f"raw/{path}", problem, step)


def _merge(
    sealed: Iterable[SealedRun | DamagedRun], known: Iterable[InspectedRun]
) -> Iterator[tuple[SealedRun | DamagedRun | None, InspectedRun | None]]:
    """Merge two sorted iterables: pair the seal and the registration of each run; either may be None."""
    others = iter(known)
    other = next(others, None)
    for found in sealed:
        if found.run is None:
            yield found, None
            continue
        while other is not None and other.registered.run < found.run:
            yield None, other
            other = next(others, None)
        if other is not None and other.registered.run == found.run:
            yield found, other
            other = next(others, None)
        else:
            yield found, None
    while other is not None:
        yield None, other
        other = next(others, None)


def _check_unregistered(deployment: Deployment, found: SealedRun | DamagedRun) -> Iterator[Finding]:
    if found.run is None or deployment.ledger.inspect_run(found.run) is not None:
        return
    problem = "it is sealed but not registered"
    if isinstance(found, DamagedRun):
        problem += f"; it is damaged: {found.problem}"
    yield make_warning(found.run, problem, _registration_step(deployment, found.run.key))


def _registration_step(deployment: Deployment, key: PartitionKey) -> str:
    apis = deployment.settings.google_apis
    if key.query_name not in apis.queries:
        return f"add {key.query_name} to the query file; raw_arrivals then finds the run"
    if key.logical_date < apis.start_date:
        return f"set start_date in the query file to {key.logical_date} or earlier; raw_arrivals then finds the run"
    wait = "wait for raw_arrivals, which searches a month of older days a minute"
    return f"materialize raw/{key.query_name} in Dagster, or {wait}"


def _check_registered(
    deployment: Deployment, found: SealedRun | DamagedRun | None, known: InspectedRun
) -> Iterator[Finding]:
    """Compare a registered run with its seal. Damage of a rejected run is not reported."""
    registered = known.registered
    run = registered.run
    if compare_with_seal(registered, found) is None:
        return
    problem, current = check_seal(registered, deployment.raw), deployment.ledger.inspect_run(run)
    if problem is None or current is None or (problem != RAW_DATA_MISSING and current.outcome is Outcome.REJECTED):
        return
    if current.is_current:
        command = find_steps(deployment, [run.key]).get(run.key)
        step = f"restore its files, or: {command}" if command else _RESTORE
        yield make_error(run, f"{problem}; it is the current run and cannot be loaded again", step)
    elif current.outcome is None:
        yield make_warning(run, f"{problem}; it awaits its verdict", _RESTORE)
    else:
        yield make_warning(run, problem, "restore its files, or ignore it: readers do not see this run")
