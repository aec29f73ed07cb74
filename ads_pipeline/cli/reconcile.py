"""Says what differs between the ledger, the pointers and the tables, and mends it.

How a difference is found and mended is `reconciliation`'s. It loads Spark's client and DuckDB, so nothing that starts
at once imports it; Spark itself is started only when there is something to mend.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from rich.text import Text

from ads_pipeline.cli.output import Paper, cell, counted, listing, write_json
from ads_pipeline.cli.parsing import ledger_of, queries, writing_ledger_of
from ads_pipeline.errors import printable
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.pipeline.reconciliation import ReconcilePlanner, Reconciliation, Repair, RepairKind
from ads_pipeline.progress import silence, telling
from ads_pipeline.raw.landing import RawRuns
from ads_pipeline.settings import Settings
from ads_pipeline.spark_session import session
from ads_pipeline.warehouse.publication import Warehouse

LATER: Final = "another pass may mend it"
Plans = Mapping[str, Sequence[Repair]]


def plan(settings: Settings, *, query: Sequence[str] | None, as_json: bool) -> bool:
    """Write what differs, and say whether anything does. It changes nothing and starts no Spark."""
    names = queries(query, settings)
    with ledger_of(settings) as ledger:
        found = _plans(settings, ledger, names)
    repairs = [repair for listed in found.values() for repair in listed]
    if as_json:
        write_json(map(_fields, repairs))
    else:
        paper = Paper()
        for name, listed in found.items():
            _write_table(paper, name, listed)
    # Beside JSON, standard output is the program's.
    print(_tallied(repairs), file=sys.stderr if as_json else sys.stdout)
    return bool(repairs)


def mend(settings: Settings, *, query: Sequence[str] | None, as_json: bool) -> bool:
    """Mend what differs and write each repair, query by query; say whether anything is left, and why."""
    names = queries(query, settings)
    number, left = 0, 0
    with writing_ledger_of(settings) as ledger:
        differing = [name for name, repairs in _plans(settings, ledger, names).items() if repairs]
        for name, done, remaining in _mended(settings, ledger, differing):
            undone = {(repair.mend, repair.key) for repair in remaining}
            repairs = [repair for repair in done if (repair.mend, repair.key) not in undone]
            number, left = number + len(repairs), left + len(remaining)
            if as_json:
                write_json(map(_fields, repairs))
            else:
                _write_table(Paper(), name, repairs)
            for repair, why in remaining.items():
                print(f"left: {printable(f'{repair}: {why}')}", file=sys.stderr)  # noqa: T201 - a person reads it
    told = f"{counted(number, 'difference')} mended" if differing else "nothing differs"
    told += f", {left:,} left" if left else ""
    print(told, file=sys.stderr if as_json else sys.stdout)
    return left > 0


def _mended(
    settings: Settings, ledger: Ledger, names: Sequence[str]
) -> Iterator[tuple[str, Sequence[Repair], Mapping[Repair, str]]]:
    """What was carried out of each query, and what is left with what stood against it. Spark is started for these."""
    if not names:
        return
    source, warehouse = settings.google_apis.source, Warehouse(settings.warehouse_root)
    tell = telling(sys.stderr) if sys.stderr.isatty() else silence
    with session(settings) as spark:
        pipeline = Pipeline(
            spark=spark, raw=RawRuns(settings.raw_root), ledger=ledger, warehouse=warehouse, tell=tell
        )
        reconciliation = Reconciliation(ledger=ledger, warehouse=warehouse, pipeline=pipeline)
        for name in names:
            done = reconciliation.mend(source=source, query_name=name)
            problems = {run.key: str(error) for run, error in done.loading.damaged.items()}
            remaining = reconciliation.plan(source=source, query_name=name)
            yield name, done.repairs, {each: problems.get(each.key, LATER) for each in remaining}


def _plans(settings: Settings, ledger: LedgerReader, names: Sequence[str]) -> Plans:
    comparison = ReconcilePlanner(ledger=ledger, warehouse=Warehouse(settings.warehouse_root))
    source = settings.google_apis.source
    return {name: comparison.plan(source=source, query_name=name) for name in names}


def _tallied(repairs: Sequence[Repair]) -> str:
    counts = Counter(repair.mend for repair in repairs)
    parts = ", ".join(f"{counts[mend]:,} to {mend.name.lower()}" for mend in RepairKind if counts[mend])
    return f"{counted(len(repairs), 'difference')}: {parts}" if repairs else "nothing differs"


def _fields(repair: Repair) -> dict[str, object]:
    return asdict(repair.key) | {"mend": repair.mend.name.lower(), "why": repair.why}


def _write_table(paper: Paper, name: str, repairs: Sequence[Repair]) -> None:
    """The differences of a query, in the order in which they are mended."""
    if not repairs:
        return
    table = listing(mend="left", customer="left", day="left", why="fold")
    for repair in repairs:
        place = repair.mend.name.lower(), repair.key.customer_id, repair.key.logical_date, repair.why
        table.add_row(*map(cell, place))
    paper.print(cell(name, style="bold"), table, Text(""), sep="\n")
