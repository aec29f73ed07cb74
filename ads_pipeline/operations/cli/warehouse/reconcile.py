"""Lists and repairs differences between the ledger, the pointers and the Delta tables.

Importing it loads Spark's client and DuckDB. Spark itself starts only when something needs repair.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Final

from ads_pipeline.domain.errors import LedgerRefused, LogDamaged
from ads_pipeline.domain.partition import PartitionKey
from ads_pipeline.domain.quoting import count_of, printable
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.ledger.events.completed_runs import COMMAND_KILLED, RunCompletionLog
from ads_pipeline.ledger.events.snapshots import Follower
from ads_pipeline.ledger.ledger import Ledger, LedgerReader
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline.operations.cli.command_line.output import Column, fields_of, table_of, write_results
from ads_pipeline.operations.cli.command_line.parsing import open_ledger, open_ledger_for_writing
from ads_pipeline.operations.cli.command_line.spark_pipeline import open_pipeline
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.days.day_conditions import DayRules, describe_days
from ads_pipeline.pipeline.days.next_steps import find_next_commands
from ads_pipeline.pipeline.days.staleness import publish_statuses
from ads_pipeline.pipeline.reconciliation import (
    ReconcilePlan,
    ReconcilePlanner,
    ReconcileResult,
    Reconciliation,
    Repair,
    RepairKind,
)
from ads_pipeline.settings.environment import Settings

LATER: Final = "run reconcile again"
_STATISTICS_FOUND: Final = "the log has statistics of {}, with which pandas and other readers drop rows"
_STATISTICS_REMOVED: Final = "statistics of {} are removed from the log; with them, pandas and others dropped rows"
_LOADS: Final = {RepairKind.RELOAD: RepairKind.LOAD}  # once its file is dropped, a partition only has to be loaded
COLUMNS: Final = (
    Column("repair", "repair"),
    Column("customer", "customer_id"),
    Column("day", "logical_date"),
    Column("why", "why", wrap=True),
)


def plan(settings: Settings, names: Sequence[str], *, as_json: bool) -> bool:
    """Write the differences and return whether there are any. Changes nothing and starts no Spark."""
    warehouse, source = Warehouse(settings.warehouse_location), settings.google_apis.source
    names, unopened = _leave_out_unopened(settings, names)
    statistics = {name: warehouse.count_column_statistics(source=source, query_name=name) for name in names}
    with open_ledger(settings) as ledger:
        plans = _plan(settings, ledger, names)
    counts = Counter(repair.kind for planned in plans.values() for repair in planned.repairs)
    parts = ", ".join(f"{counts[kind]:,} to {kind.name.lower()}" for kind in RepairKind if counts[kind])
    notes = [f"{name}: {_STATISTICS_FOUND.format(count_of(n, 'file'))}" for name, n in statistics.items() if n]
    notes += [f"{name}: {each}" for name, planned in plans.items() for each in planned.damaged]
    summary = f"{count_of(counts.total(), 'difference')}: {parts}" if plans else _none(names)
    _write({name: planned.repairs for name, planned in plans.items()}, [*notes, summary], as_json=as_json)
    return bool(plans or notes or unopened)


def repair(settings: Settings, names: Sequence[str], *, as_json: bool) -> bool:
    """Repair differences query by query and write each repair; return whether any difference is left.

    First fold new events into the snapshots of runs; at the end write partition_status.parquet.
    """
    names, left = _leave_out_unopened(settings, names)
    number = 0
    notes = _remove_statistics(settings, names)
    with open_ledger_for_writing(settings) as ledger:
        _catch_up_events(ledger, settings)
        differing = list(_plan(settings, ledger, names))
        for name, result, remaining in _repair_queries(settings, ledger, differing):
            notes += [f"{name}: {each}; the table has it no more" for each in result.damaged]
            undone = {(_LOADS.get(repair.kind, repair.kind), repair.key) for repair in remaining}
            repairs = [each for each in result.repairs if (_LOADS.get(each.kind, each.kind), each.key) not in undone]
            number, left = number + len(repairs), left + len(remaining)
            _write({name: repairs}, (), as_json=as_json)
            steps = _find_steps(settings, ledger, [each.key for each in remaining])
            for difference, cause in remaining.items():
                text = printable(f"{difference}: {cause}")
                print(f"left: {text}; next: {steps[difference.key]}", file=sys.stderr)  # noqa: T201
        publish_statuses(ledger, settings.google_apis, settings.status_file, now=datetime.now(UTC))
        written = CompletenessTables(ledger=ledger, settings=settings).publish_all()
        notes += [
            f"{name}: {count_of(rows, 'row')} of the table written again" for name, rows in written.items() if rows
        ]
    summary = f"{count_of(number, 'difference')} repaired" if differing else _none(names)
    _write({}, [*notes, summary + (f", {left:,} left" if left else "")], as_json=as_json)
    return left > 0


def _catch_up_events(ledger: Ledger, settings: Settings) -> None:
    """Fold new events into the snapshots of runs, and close the runs of commands that were killed."""
    follower = Follower(ledger.events)
    follower.catch_up()
    with suppress(LedgerRefused):  # only some roles may close runs of others
        for run_id in RunCompletionLog(ledger.engine, tenancy=settings.tenancy).close_silent_commands():
            print(f"run {run_id} was closed as failed: {COMMAND_KILLED}", file=sys.stderr)  # noqa: T201
            follower.catch_up_run(run_id)


def _leave_out_unopened(settings: Settings, names: Sequence[str]) -> tuple[list[str], int]:
    """The queries whose tables can be opened, and how many others there are. Says why each cannot be."""
    warehouse, source = Warehouse(settings.warehouse_location), settings.google_apis.source
    opened = list[str]()
    for name in names:
        try:
            warehouse.list_files(source=source, query_name=name)
        except LogDamaged as error:
            print(f"left: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        else:
            opened.append(name)
    return opened, len(names) - len(opened)


def _remove_statistics(settings: Settings, names: Sequence[str]) -> list[str]:
    """Remove what makes readers drop rows from the logs of the tables. Says it once for each table."""
    warehouse, source = Warehouse(settings.warehouse_location), settings.google_apis.source
    removed = {name: warehouse.remove_column_statistics(source=source, query_name=name) for name in names}
    return [f"{name}: {_STATISTICS_REMOVED.format(count_of(n, 'file'))}" for name, n in removed.items() if n]


def _repair_queries(
    settings: Settings, ledger: Ledger, names: Sequence[str]
) -> Iterator[tuple[str, ReconcileResult, Mapping[Repair, str]]]:
    """Repair each query; yield its repairs and the remaining differences with their causes."""
    if not names:
        return
    with open_pipeline(settings, ledger) as pipeline:
        reconciliation = Reconciliation(
            publications=ledger.publications,
            warehouse=Warehouse(settings.warehouse_location),
            open_pipeline=lambda: pipeline,
        )
        for name in names:
            window = DayWindow(source=settings.google_apis.source, query_name=name)
            done = reconciliation.repair(window)
            problems = {run.key: str(error) for run, error in done.loading.not_loaded.items()}
            left = reconciliation.plan(window).repairs
            yield name, done, {each: problems.get(each.key, LATER) for each in left}


def _find_steps(settings: Settings, ledger: LedgerReader, keys: Sequence[PartitionKey]) -> dict[PartitionKey, str]:
    """The next command of each partition. One that is only waiting is repaired by the next pass."""
    described = describe_days(ledger, keys, DayRules.read(ledger, settings, now=datetime.now(UTC)))
    blocked = {key: day for key, day in described.items() if day.blocked_by is not None}
    commands = find_next_commands(ledger, blocked, settings.retry_policy)
    return {key: commands.get(key) or f"ads-pipeline state why {key.short_name}" for key in keys}


def _plan(settings: Settings, ledger: LedgerReader, names: Sequence[str]) -> dict[str, ReconcilePlan]:
    """The differences of each query that has any."""
    planner = ReconcilePlanner(publications=ledger.publications, warehouse=Warehouse(settings.warehouse_location))
    plans = {name: planner.plan(DayWindow(source=settings.google_apis.source, query_name=name)) for name in names}
    return {name: planned for name, planned in plans.items() if planned}


def _none(names: Sequence[str]) -> str:
    return f"nothing differs in {', '.join(names)}" if names else "no table can be opened"


def _write(plans: Mapping[str, Sequence[Repair]], notes: Sequence[str], *, as_json: bool) -> None:
    """Write the differences of each query in the order of their repair."""
    rows = {
        name: [fields_of(each.key, repair=each.kind.name.lower(), why=each.reason) for each in repairs]
        for name, repairs in plans.items()
    }
    blocks = (block for name, found in rows.items() for block in table_of(found, COLUMNS, title=name))
    write_results(chain.from_iterable(rows.values()), blocks, notes, as_json=as_json)
