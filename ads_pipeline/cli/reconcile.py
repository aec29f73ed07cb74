"""Lists and repairs differences between the ledger, the pointers and the Delta tables.

Importing it loads Spark's client and DuckDB. Spark itself starts only when something needs repair.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, starmap
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from ads_pipeline.cli.output import cell, count_of, new_table, terminal_progress, write_results
from ads_pipeline.cli.parsing import open_ledger, open_ledger_for_writing, parse_queries
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.pipeline.reconciliation import ReconcilePlanner, Reconciliation, Repair, RepairKind
from ads_pipeline.quoting import printable
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.spark_session import spark_session
from ads_pipeline.warehouse.publication import Warehouse

LATER: Final = "run reconcile again"
Plans = Mapping[str, Sequence[Repair]]


def plan(settings: Settings, *, query: Sequence[str] | None, as_json: bool) -> bool:
    """Write the differences and return whether there are any. Changes nothing and starts no Spark."""
    names = parse_queries(query, settings)
    with open_ledger(settings) as ledger:
        plans = _plans(settings, ledger, names)
    repairs = [repair for differences in plans.values() for repair in differences]
    blocks = chain.from_iterable(starmap(_repair_blocks, plans.items()))
    write_results(map(_repair_fields, repairs), blocks, [_count_summary(repairs)], as_json=as_json)
    return bool(repairs)


def repair(settings: Settings, *, query: Sequence[str] | None, as_json: bool) -> bool:
    """Repair differences query by query and write each repair; return whether any difference is left."""
    names = parse_queries(query, settings)
    number, left = 0, 0
    with open_ledger_for_writing(settings) as ledger:
        differing = [name for name, repairs in _plans(settings, ledger, names).items() if repairs]
        for name, done, remaining in _repair_queries(settings, ledger, differing):
            undone = {(repair.kind, repair.key) for repair in remaining}
            repairs = [repair for repair in done if (repair.kind, repair.key) not in undone]
            number, left = number + len(repairs), left + len(remaining)
            write_results(map(_repair_fields, repairs), _repair_blocks(name, repairs), (), as_json=as_json)
            for difference, cause in remaining.items():
                print(f"left: {printable(f'{difference}: {cause}')}", file=sys.stderr)  # noqa: T201
    summary = f"{count_of(number, 'difference')} repaired" if differing else "nothing differs"
    summary += f", {left:,} left" if left else ""
    write_results((), (), [summary], as_json=as_json)
    return left > 0


def _repair_queries(
    settings: Settings, ledger: Ledger, names: Sequence[str]
) -> Iterator[tuple[str, Sequence[Repair], Mapping[Repair, str]]]:
    """Repair each query; yield its repairs and the remaining differences with their causes. Starts Spark."""
    if not names:
        return
    source, warehouse = settings.google_apis.source, Warehouse(settings.warehouse_root)
    with spark_session(settings) as spark:
        pipeline = Pipeline(
            spark=spark,
            raw=RawRuns(settings.raw_root),
            ledger=ledger,
            warehouse=warehouse,
            report_progress=terminal_progress(),
        )
        reconciliation = Reconciliation(publications=ledger.publications, warehouse=warehouse, pipeline=pipeline)
        for name in names:
            done = reconciliation.repair(source=source, query_name=name)
            problems = {run.key: str(error) for run, error in done.loading.unreadable.items()}
            remaining = reconciliation.plan(source=source, query_name=name)
            yield name, done.repairs, {each: problems.get(each.key, LATER) for each in remaining}


def _plans(settings: Settings, ledger: LedgerReader, names: Sequence[str]) -> Plans:
    planner = ReconcilePlanner(publications=ledger.publications, warehouse=Warehouse(settings.warehouse_root))
    source = settings.google_apis.source
    return {name: planner.plan(source=source, query_name=name) for name in names}


def _count_summary(repairs: Sequence[Repair]) -> str:
    counts = Counter(repair.kind for repair in repairs)
    parts = ", ".join(f"{counts[kind]:,} to {kind.name.lower()}" for kind in RepairKind if counts[kind])
    return f"{count_of(len(repairs), 'difference')}: {parts}" if repairs else "nothing differs"


def _repair_fields(repair: Repair) -> dict[str, object]:
    return asdict(repair.key) | {"repair": repair.kind.name.lower(), "why": repair.reason}


def _repair_blocks(name: str, repairs: Sequence[Repair]) -> list[RenderableType]:
    """The differences of a query in the order of their repair; nothing without differences."""
    table = new_table(repair="left", customer="left", day="left", why="fold")
    for repair in repairs:
        cells = repair.kind.name.lower(), repair.key.customer_id, repair.key.logical_date, repair.reason
        table.add_row(*map(cell, cells))
    return [cell(name, style="bold"), table, Text("")] if repairs else []
