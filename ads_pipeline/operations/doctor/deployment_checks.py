"""The checks of `ads-pipeline doctor`: each compares two of raw, ledger, warehouse and Dagster.

`CHECKS` lists them in the order of the report; `examination` runs them.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ads_pipeline.domain.errors import FilesDamaged, LogDamaged
from ads_pipeline.domain.partition import PartitionKey, find_customer_problem
from ads_pipeline.domain.quoting import quoted
from ads_pipeline.domain.transitions import Outcome, Status
from ads_pipeline.ledger.consistency.inspection import MisplacedPointer, OpenRun
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.operations.doctor import dagster_records
from ads_pipeline.operations.doctor.dagster_daemon import check_daemon, check_sensors
from ads_pipeline.operations.doctor.dagster_settings import list_differences
from ads_pipeline.operations.doctor.day_checks import (
    check_days,
    describe_days_that_need_you,
    find_steps,
)
from ads_pipeline.operations.doctor.examination import (
    SLOW_LIMIT,
    Deployment,
    DeploymentCheck,
    Finding,
    Peer,
    format_time,
    make_error,
    make_note,
    make_warning,
)
from ads_pipeline.operations.doctor.folder_checks import check_home, check_lake
from ads_pipeline.operations.doctor.raw_checks import check_landings, check_raw_runs
from ads_pipeline.settings.environment import DAGSTER_SETTINGS

if TYPE_CHECKING:
    from ads_pipeline.lake.warehouse.file_damage import DamagedFile
    from ads_pipeline.lake.warehouse.table_values import WarehouseTable
    from ads_pipeline.pipeline.reconciliation import ReconcilePlan, ReconcilePlanner

MAX_CLOCK_SKEW: Final = timedelta(seconds=5)
MAX_TABLE_LAG: Final = timedelta(minutes=10)  # the tick that writes the tables comes every 20 seconds
RECONCILE: Final = "ads-pipeline reconcile"
MAX_SNAPSHOT_LAG: Final = timedelta(seconds=10)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
_DELETE_CUSTOMER: Final = (
    "delete it on the page of any asset, by 'Delete partitions' in the menu beside 'Materialize'"
)


def check_clocks(deployment: Deployment) -> Iterator[Finding]:
    """Check that this machine and the database agree on the time, which leases depend on."""
    before = deployment.clock()
    database_time = deployment.ledger.read_clock()
    after = deployment.clock()
    skew = max(before - database_time, database_time - after)
    if skew > MAX_CLOCK_SKEW:
        problem = f"the clocks of this machine and the database differ by {skew.total_seconds():,.0f} s"
        yield make_warning("the clock", problem, "synchronize both with NTP")


def check_states(deployment: Deployment) -> Iterator[Finding]:
    """Check that the state of each partition follows from its logged verdicts and control actions."""
    for key, problem in deployment.ledger.find_contradictions():
        step = "find out what wrote to the database directly, and restore the ledger from a backup or a copy"
        yield make_error(key, problem, step)


def check_pointers(deployment: Deployment) -> Iterator[Finding]:
    """Check that each pointer names the current run, or an accepted run while the current one is being loaded."""
    return map(_describe_pointer, deployment.ledger.find_misplaced_pointers())


def check_tables(deployment: Deployment) -> Iterator[Finding]:
    """Check that the Delta tables hold what the ledger expects. Demotions have their own check."""
    # These modules import PySpark, which no other check needs.
    from ads_pipeline.lake.warehouse.replacement import Warehouse  # noqa: PLC0415
    from ads_pipeline.pipeline.reconciliation import ReconcilePlanner  # noqa: PLC0415

    source, warehouse = deployment.settings.google_apis.source, Warehouse(deployment.settings.warehouse_location)
    planner = ReconcilePlanner(publications=deployment.ledger.publications, warehouse=warehouse)
    for name in sorted(deployment.settings.google_apis.queries):
        try:
            yield from _check_table(deployment, planner, warehouse.table(source, name))
        except LogDamaged as error:
            yield make_error(error.path, error.damage, error.advice)


def _check_table(deployment: Deployment, planner: "ReconcilePlanner", table: "WarehouseTable") -> Iterator[Finding]:
    from ads_pipeline.pipeline.reconciliation import RepairKind  # noqa: PLC0415

    reconcile = _reconcile_command(table.query_name)
    if files := planner.warehouse.count_column_statistics(source=table.source, query_name=table.query_name):
        problem = f"statistics in its log make pandas and other readers drop rows; files: {files:,}"
        yield make_error(table, problem, reconcile)
    plan = planner.plan(DayWindow(source=table.source, query_name=table.query_name))
    steps = find_steps(deployment, {repair.key for repair in plan.repairs})
    for damaged in plan.damaged:
        yield _describe_damaged_file(table, damaged, plan, steps)
    for repair in plan.repairs:
        if repair.kind not in {RepairKind.DEMOTE, RepairKind.WITHDRAW, RepairKind.RELOAD}:
            make_finding = make_error if repair.kind is RepairKind.REMOVE else make_warning
            yield make_finding(repair.key, repair.reason, steps.get(repair.key) or reconcile)


def _describe_damaged_file(
    table: "WarehouseTable", damaged: "DamagedFile", plan: "ReconcilePlan", steps: Mapping[PartitionKey, str]
) -> Finding:
    """A damaged data file. `steps` has the next command of each partition that raw cannot load again."""
    from ads_pipeline.lake.warehouse.file_damage import name_held  # noqa: PLC0415

    held = plan.list_held(damaged)
    where = f"{table}/{damaged.file.path}"
    problem = f"{damaged.problem}; {name_held(damaged.file, [key.customer_id for key in held])}"
    reconcile, lost = _reconcile_command(table.query_name), [key for key in held if key in steps]
    if not lost:
        return make_error(where, problem, reconcile)
    names = str(lost[0]) if len(lost) == 1 else f"{len(lost):,} partitions, such as {lost[0]},"
    rest = f"; {reconcile} loads the others of the file, and reports what is left" if len(lost) < len(held) else ""
    return make_error(where, f"{problem}; the run of {names} cannot be loaded again", f"{steps[lost[0]]}{rest}")


def check_completeness(deployment: Deployment) -> Iterator[Finding]:
    """Check that `days` and the tables beside it say what the ledger says, but for changes of the last minutes."""
    from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables  # noqa: PLC0415 - it loads Arrow

    ledger, settings = deployment.ledger, deployment.settings
    tables = CompletenessTables(ledger=ledger, settings=settings, now=lambda: deployment.now)
    for each in tables.all if ledger.publications.last_loads(settings.google_apis.source) else ():
        try:
            behind = each.count_behind(before=deployment.now - MAX_TABLE_LAG)
        except (LogDamaged, FilesDamaged) as error:
            yield make_error(each.table, error.problem, RECONCILE)
            continue
        if behind is None:
            yield make_warning(each.table, "the table is missing", RECONCILE)
        elif behind:
            yield make_warning(each.table, f"the table is behind the ledger; rows: {behind:,}", RECONCILE)


def check_demotions(deployment: Deployment) -> Iterator[Finding]:
    """Check that no demotion or withdrawal is unfinished: its rows are hidden, but the status is still success."""
    for run, started_at, action in deployment.ledger.list_unfinished_removals():
        make_finding = make_error if deployment.now - started_at > HOUR else make_warning
        problem = f"its {action} began at {format_time(started_at)} and is not finished"
        yield make_finding(run, problem, _reconcile_command(run.key.query_name))


def check_runs(deployment: Deployment) -> Iterator[Finding]:
    """Check that each open run is alive."""
    for run in deployment.ledger.list_open_runs():
        if _is_lost(run, deployment.now):
            lease = f"; its lease expired at {format_time(run.lease_expires_at)}" if run.lease_expires_at else ""
            problem = f"it has no last event; the newest is from {format_time(run.last_event_at)}{lease}"
            yield make_warning(f"run {run.engine_run_id}", problem, f"ads-pipeline events tail {run.engine_run_id}")


def check_dagster(deployment: Deployment) -> Iterator[Finding]:
    """Check that finished Dagster runs are closed in the event log and that unfinished ones are alive."""
    open_runs = {run.engine_run_id: run for run in deployment.ledger.list_open_runs()}
    statuses = dagster_records.read_statuses(
        deployment.settings.home, deployment.settings.postgres_url, sorted(open_runs)
    )
    for engine_run_id, status in sorted(statuses.items()):
        run = open_runs[engine_run_id]
        if status in dagster_records.FINISHED_STATUSES and deployment.now - run.last_event_at > HOUR:
            step = "start the Dagster daemon and turn on the sensor run_completion"
            yield make_warning(f"run {engine_run_id}", f"it is {status} in Dagster but open in the event log", step)
        elif status not in dagster_records.FINISHED_STATUSES and _is_lost(run, deployment.now):
            problem = f"it is {status} in Dagster, but its newest event is from {format_time(run.last_event_at)}"
            yield make_error(
                f"run {engine_run_id}", problem, "terminate it in Dagster; sensors then run its partitions again"
            )


def check_customers(deployment: Deployment) -> Iterator[Finding]:
    """Check the names of the customers in Dagster, whose UI accepts any text."""
    for name in dagster_records.read_customers(deployment.settings.home, deployment.settings.postgres_url):
        problem = find_customer_problem(name)
        if problem is not None:
            problem = f"every run leaves out its partitions, because the name breaks the rule: {problem}"
            yield make_warning(f"customer {quoted(name)}", problem, _DELETE_CUSTOMER)


def check_discovery(deployment: Deployment) -> Iterator[Finding]:
    """Check that the last discovery has read an account."""
    source = deployment.settings.google_apis.source
    failed = deployment.ledger.accounts.find_failed_discoveries(source)
    if failed is not None:
        last = f"; the last one that did was at {format_time(failed.last_read_at)}" if failed.last_read_at else ""
        problem = f"since {format_time(failed.since)} no discovery has read an account{last}: {failed.why}"
        yield make_error(f"the accounts of {source}", problem, "correct it, then run ads-pipeline accounts discover")


def check_holds(deployment: Deployment) -> Iterator[Finding]:
    """Check that no hold stops the calls to the source or about an account."""
    for hold in deployment.ledger.quota.list_holds(deployment.settings.google_apis.source):
        if hold.until > deployment.now or hold.is_outage:
            since = "" if hold.since is None else f"since {format_time(hold.since)} "
            problem = (
                f"{since}nothing is fetched, until {format_time(hold.until)}; then one call tries it: {hold.why}"
            )
            yield make_warning(f"{hold.scope} {hold.name}", problem, hold.release_command)


def _find_discovery_skip_reason(deployment: Deployment) -> str | None:
    return None if deployment.settings.google_ads else "nothing is fetched from Google Ads"


def check_dagster_settings(deployment: Deployment) -> Iterator[Finding]:
    """List the settings of the deployment's dagster.yaml that are not those of this release."""
    path = deployment.dagster_settings
    try:
        differences = list_differences(path)
    except ValueError as error:
        yield make_error(path, str(error), f"correct it, or copy {DAGSTER_SETTINGS} to it")
        return
    if differences:
        step = f"compare it with {DAGSTER_SETTINGS}; a setting that differs on purpose can stay"
        yield make_note(path, "; ".join(differences), step)


def check_snapshots(deployment: Deployment) -> Iterator[Finding]:
    """Check that the run snapshots are up to date."""
    lag = deployment.ledger.events.get_lag()
    if lag > MAX_SNAPSHOT_LAG:
        problem = f"the run snapshots are {lag.total_seconds():,.0f} s behind the events"
        yield make_warning("the event log", problem, "ads-pipeline reconcile")


def _find_settings_skip_reason(deployment: Deployment) -> str | None:
    return None if deployment.dagster_settings.is_file() else "Dagster has no configuration of its own here"


def _find_dagster_skip_reason(deployment: Deployment) -> str | None:
    has_records = dagster_records.has_records(deployment.settings.home, deployment.settings.postgres_url)
    return None if has_records else "Dagster has no records yet"


_DagsterCheck: Final = partial(DeploymentCheck, find_skip_reason=_find_dagster_skip_reason)
_FetchCheck: Final = partial(DeploymentCheck, find_skip_reason=_find_discovery_skip_reason)
CHECKS: Final = (
    DeploymentCheck("home", "the home is writable by this user only; its disk has space", check_home, peer=None),
    DeploymentCheck("lake", "the lake is writable, and no file in it is overwritten", check_lake, peer=Peer.LAKE),
    DeploymentCheck("clocks", "this machine and the database agree on the time", check_clocks),
    DeploymentCheck("states", "every state follows from its verdicts and actions", check_states, slow=True),
    DeploymentCheck(
        "raw", "sealed runs are registered and match their registration", check_raw_runs, slow=True, peer=Peer.LAKE
    ),
    DeploymentCheck("pointers", "pointers name current runs", check_pointers),
    DeploymentCheck(
        "tables", "the Delta tables hold what the ledger expects", check_tables, slow=True, peer=Peer.LAKE
    ),
    DeploymentCheck(
        "completeness", "the table days says what the ledger says", check_completeness, slow=True, peer=Peer.LAKE
    ),
    DeploymentCheck("days", "no day is blocked", check_days, describe=describe_days_that_need_you, limit=SLOW_LIMIT),
    DeploymentCheck("demotions", "no demotion or withdrawal is unfinished", check_demotions),
    DeploymentCheck("landings", "no interrupted landing left files", check_landings, peer=Peer.LAKE),
    DeploymentCheck("runs", "every open run is alive", check_runs),
    _DagsterCheck("dagster", "Dagster and the event log agree on finished runs", check_dagster),
    _DagsterCheck("daemon", "one daemon of Dagster runs, and all its parts work", check_daemon),
    _DagsterCheck("sensors", "the newest tick of every sensor and schedule did not fail", check_sensors),
    _DagsterCheck("customers", "the names of the customers in Dagster are valid", check_customers),
    _FetchCheck("discovery", "the last discovery of accounts has read one", check_discovery),
    _FetchCheck("holds", "no hold stops the fetches of the source or of an account", check_holds),
    DeploymentCheck(
        "instance",
        "the settings in dagster.yaml are those of this release",
        check_dagster_settings,
        peer=None,
        find_skip_reason=_find_settings_skip_reason,
    ),
    DeploymentCheck("snapshots", "the run snapshots are up to date", check_snapshots),
)


def _describe_pointer(pointer: MisplacedPointer) -> Finding:
    run, reconcile = pointer.run, _reconcile_command(pointer.run.key.query_name)
    if pointer.status is not Status.SUCCESS:
        step = f"{reconcile}; the next load moves the pointer"
        return make_error(run.key, f"its pointer names {run.run_id}, but the partition is {pointer.status}", step)
    if pointer.outcome is not Outcome.ACCEPTED:
        return make_error(run.key, f"its pointer names {run.run_id}, which is not accepted", reconcile)
    if pointer.current_run_id == run.run_id:
        return make_error(run.key, f"its pointer and its registration differ about {run.run_id}", reconcile)
    problem = f"its pointer names {run.run_id}, but {pointer.current_run_id} is current"
    return make_warning(run.key, problem, f"wait for states_to_load, or {reconcile}")


def _is_lost(run: OpenRun, now: datetime) -> bool:
    """True if the lease of the run expired, or a run without a lease emitted no event for a day."""
    return run.lease_expires_at < now if run.lease_expires_at else now - run.last_event_at > DAY


def _reconcile_command(query_name: str) -> str:
    return f"ads-pipeline reconcile --query {query_name}"
