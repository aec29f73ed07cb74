"""The checks of an examination: each looks at one thing in which raw, ledger, warehouse and Dagster may disagree.

They are listed as data, in the order in which they are told. How they are run is `examination`'s; mending what they
find is done by the commands that they name.
"""

import os
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.doctor import dagster_records
from ads_pipeline.doctor.examination import Deployment, DeploymentCheck, Finding, bad, look
from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.ledger.consistency.inspection import KnownRun, MisplacedPointer, OpenRun
from ads_pipeline.ledger.events.event_reader import EventReader
from ads_pipeline.pipeline.seal_comparison import RAW_DATA_MISSING, check_seal, compare_with_seal
from ads_pipeline.quoting import printable
from ads_pipeline.raw.landing import TEMPORARY, DamagedRun
from ads_pipeline.raw.seal import Seal

MOST_SKEW: Final = timedelta(seconds=5)
MOST_LAG: Final = timedelta(seconds=10)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
LANDINGS: Final = f"*/customer_id=*/query_name=*/logical_date=*/{TEMPORARY}*"
_FOLDERS: Final = ("raw", "warehouse")
_NEW_RUN: Final = "seal a run of it under a new run_id"


def home(site: Deployment) -> Iterator[Finding]:
    """The folders are there, may be written by us and by nobody else, and the disk has room."""
    top = site.settings.home
    if not top.is_dir():
        yield bad(top, "the home is no folder", "make it, or mend ADS_PIPELINE_HOME")
        return
    for folder in (top, *(top / name for name in _FOLDERS if (top / name).exists())):
        if not folder.is_dir():
            yield bad(folder, "it is no folder", "move it away")
            continue
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            yield bad(folder, "it cannot be read and written by this user", f"chmod u+rwx {_path(folder)}")
        if folder.stat().st_mode & stat.S_IWOTH:
            yield look(folder, "everybody on this machine may change what is in it", f"chmod o-w {_path(folder)}")
    free = shutil.disk_usage(top).free
    if free < site.enough_room:
        step = "make room; the schedule maintenance removes what no reader needs"
        yield bad(top, f"only {free / (1 << 20):,.0f} MiB are free on its disk", step)


def clocks(site: Deployment) -> Iterator[Finding]:
    """This machine and the database agree on the time: one measures leases and lags, the other waits for them."""
    before = site.clock()
    there = site.ledger.clock()
    after = site.clock()
    skew = max(before - there, there - after)
    if skew > MOST_SKEW:
        problem = f"the clocks of this machine and of the database are {skew.total_seconds():,.0f} s apart"
        yield look("the clock", problem, "set both by NTP")


def states(site: Deployment) -> Iterator[Finding]:
    """The state of each partition follows from its verdicts and acts."""
    for key, problem in site.ledger.contradictions():
        step = "find out what wrote to the database directly, and restore the ledger from a backup or a copy"
        yield bad(key, problem, step)


def raw_runs(site: Deployment) -> Iterator[Finding]:
    """What is sealed is registered, and what is registered is sealed as it was then.

    Both sides come in the order of the runs' paths. Whatever looks wrong is looked at again before it is told: runs
    are sealed and registered meanwhile.
    """
    for source in sorted({site.settings.google_apis.source, *site.ledger.sources()}):
        sealed = site.raw.find(source=source, since=date.min, until=date.max)
        for found, known in _side_by_side(sealed, site.ledger.known(source)):
            if isinstance(found, DamagedRun) and found.run is None:
                step = "rename it as the README says, or move it out of raw"
                yield look(f"raw/{found.path}", f"it has no run's name: {found.problem}", step)
            elif known is None and found is not None:
                yield from _unregistered(site, found)
            elif known is not None:
                yield from _unlike(site, found, known)


def pointers(site: Deployment) -> Iterator[Finding]:
    """Readers are pointed at the current run of a success, or at an accepted one while that is being loaded."""
    return map(_astray, site.ledger.astray())


def tables(site: Deployment) -> Iterator[Finding]:
    """The warehouse's tables hold what the ledger says that they hold; demotions are looked at by themselves."""
    # They load Spark's client, which no other check needs.
    from ads_pipeline.pipeline.reconciliation import ReconcilePlanner, RepairKind  # noqa: PLC0415
    from ads_pipeline.warehouse.publication import Warehouse  # noqa: PLC0415

    comparison = ReconcilePlanner(ledger=site.ledger, warehouse=Warehouse(site.settings.warehouse_root))
    for name in sorted(site.settings.google_apis.queries):
        for repair in comparison.plan(source=site.settings.google_apis.source, query_name=name):
            if repair.kind is not RepairKind.DEMOTE:
                weight = bad if repair.kind is RepairKind.REMOVE else look
                yield weight(repair.key, repair.reason, _reconcile(name))


def demotions(site: Deployment) -> Iterator[Finding]:
    """No demotion is left half-way: readers lack the rows already, and the failure does not show."""
    for run, started_at in site.ledger.unfinished():
        weight = bad if site.now - started_at > HOUR else look
        problem = f"its demotion began at {_at(started_at)} and is not finished"
        yield weight(run, problem, _reconcile(run.key.query_name))


def landings(site: Deployment) -> Iterator[Finding]:
    """No landing is left behind that was never sealed."""
    for path in sorted(site.settings.raw_root.glob(LANDINGS)):
        begun = datetime.fromtimestamp(path.lstat().st_mtime, tz=UTC)
        if site.clock() - begun > DAY:
            problem = f"a landing that was not sealed since {_at(begun)}"
            yield look(path.relative_to(site.settings.home), problem, f"rm -r {_path(path)}")


def runs(site: Deployment) -> Iterator[Finding]:
    """Whoever began a run is alive, or said that it ended."""
    for run in site.ledger.open_runs():
        if _silent(run, site.now):
            leased = f", and its lease ended at {_at(run.leased_until)}" if run.leased_until else ""
            problem = f"it has not ended and was last heard of at {_at(run.last_at)}{leased}"
            yield look(f"run {run.run_id}", problem, f"ads-pipeline events tail {run.run_id}")


def dagster(site: Deployment) -> Iterator[Finding]:
    """What is over in Dagster has ended here, and what Dagster takes for running is alive."""
    known = {run.run_id: run for run in site.ledger.open_runs()}
    found = dagster_records.statuses(site.settings.home, site.settings.postgres_url, sorted(known))
    for run_id, status in sorted(found.items()):
        run = known[run_id]
        if status in dagster_records.OVER and site.now - run.last_at > HOUR:
            step = "have Dagster's daemon running, and the sensor run_endings switched on"
            yield look(f"run {run_id}", f"it is open here, and {status} in Dagster", step)
        elif status not in dagster_records.OVER and _silent(run, site.now):
            problem = f"it is {status} in Dagster, and was last heard of at {_at(run.last_at)}"
            yield bad(f"run {run_id}", problem, "terminate it in Dagster; its partitions are then asked for again")


def snapshots(site: Deployment) -> Iterator[Finding]:
    """The snapshots of runs are up to their events."""
    with EventReader.opened(site.settings.database_url) as events:
        lag = events.get_lag()
    if lag > MOST_LAG:
        problem = f"the snapshots are {lag.total_seconds():,.0f} s behind the events"
        yield look("the log of events", problem, "ads-pipeline events follow --once")


def _dagster_absent(site: Deployment) -> str | None:
    kept = dagster_records.kept(site.settings.home, site.settings.postgres_url)
    return None if kept else "Dagster keeps no records here yet"


CHECKS: Final = (
    DeploymentCheck(name="home", promise="the home is ours to write, and its disk has room", find=home),
    DeploymentCheck(name="clocks", promise="this machine and the database agree on the time", find=clocks),
    DeploymentCheck(name="states", promise="every state follows from its verdicts and acts", find=states, slow=True),
    DeploymentCheck(
        name="raw", promise="every sealed run is registered, and as it was then", find=raw_runs, slow=True
    ),
    DeploymentCheck(name="pointers", promise="readers are pointed at current runs", find=pointers),
    DeploymentCheck(name="tables", promise="the tables hold what the ledger says", find=tables, slow=True),
    DeploymentCheck(name="demotions", promise="no demotion is left half-way", find=demotions),
    DeploymentCheck(name="landings", promise="no landing is left unsealed", find=landings),
    DeploymentCheck(name="runs", promise="every run that has not ended is alive", find=runs),
    DeploymentCheck(
        name="dagster", promise="Dagster agrees which runs are over", find=dagster, absent=_dagster_absent
    ),
    DeploymentCheck(name="snapshots", promise="the snapshots are up to the events", find=snapshots),
)


def _side_by_side(
    sealed: Iterable[Seal | DamagedRun], known: Iterable[KnownRun]
) -> Iterator[tuple[Seal | DamagedRun | None, KnownRun | None]]:
    """Each run that either side has, with what both have of it."""
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


def _unregistered(site: Deployment, found: Seal | DamagedRun) -> Iterator[Finding]:
    if found.run is None or site.ledger.known_again(found.run) is not None:
        return
    problem = "sealed, and the ledger was never told of it"
    if isinstance(found, DamagedRun):
        problem += f"; it is damaged: {found.problem}"
    yield look(found.run, problem, f"materialize raw/{found.run.key.query_name} in Dagster, or wait for raw_arrivals")


def _unlike(site: Deployment, found: Seal | DamagedRun | None, known: KnownRun) -> Iterator[Finding]:
    """What raw holds against a registered run. Damage is no news of a run that was rejected."""
    registered = known.registered
    run = registered.run
    if compare_with_seal(registered, found) is None:
        return
    problem, now = check_seal(registered, site.raw), site.ledger.known_again(run)
    if problem is None or now is None or (problem != RAW_DATA_MISSING and now.outcome is Outcome.REJECTED):
        return
    if now.current:
        yield bad(run, f"{problem}; it is current, and cannot be loaded", f"put it back, or {_NEW_RUN}")
    elif now.outcome is None:
        yield look(run, f"{problem}; it awaits its verdict", f"put it back, or {_NEW_RUN}")
    else:
        yield look(run, problem, "put it back, or let it be: readers do not have it")


def _astray(pointer: MisplacedPointer) -> Finding:
    run, reconcile = pointer.run, _reconcile(pointer.run.key.query_name)
    if pointer.status is not Status.SUCCESS:
        step = f"{reconcile}; its next load moves the pointer"
        return bad(run.key, f"readers are pointed at {run.run_id}, and the partition is {pointer.status}", step)
    if pointer.outcome is not Outcome.ACCEPTED:
        return bad(run.key, f"readers are pointed at {run.run_id}, which is not accepted", reconcile)
    if pointer.current_run_id == run.run_id:
        return bad(run.key, f"its pointer says of {run.run_id} what its registration does not say", reconcile)
    problem = f"readers are pointed at {run.run_id}, and {pointer.current_run_id} is current"
    return look(run.key, problem, f"wait for states_to_load, or {reconcile}")


def _silent(run: OpenRun, now: datetime) -> bool:
    """Whether nobody can be working in it any more: its lease is over, or nothing was heard of it for a day."""
    return run.leased_until < now if run.leased_until else now - run.last_at > DAY


def _reconcile(query_name: str) -> str:
    return f"ads-pipeline reconcile --query {query_name}"


def _at(instant: datetime) -> str:
    return f"{instant.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _path(path: Path) -> str:
    return printable(shlex.quote(str(path)))
