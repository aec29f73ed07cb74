"""Says what differs between the ledger, the pointers and the tables, and mends it.

How a difference is found and mended is `reconciliation`'s. It loads Spark's client and DuckDB, so nothing that starts
at once imports it; Spark itself is started only when there is something to mend.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain

from rich.text import Text

from ads_pipeline.cli.tables import Paper, cell, counted, listing, write_json
from ads_pipeline.cli.words import ledger_of, queries, writing_ledger_of
from ads_pipeline.errors import AdsPipelineError, printable
from ads_pipeline.ledger.reader import LedgerReader
from ads_pipeline.ledger.writer import Ledger
from ads_pipeline.partition import PartitionKey
from ads_pipeline.pipeline import Pipeline
from ads_pipeline.progress import silence, telling
from ads_pipeline.raw import RawRuns
from ads_pipeline.reconciliation import Comparison, Mend, Reconciliation, Repair
from ads_pipeline.sessions import session
from ads_pipeline.settings import Settings
from ads_pipeline.warehouse.publication import Warehouse

Plans = Mapping[str, Sequence[Repair]]


def plan(settings: Settings, *, query: Sequence[str] | None, as_json: bool) -> bool:
    """Write what differs, and say whether anything does. It changes nothing and starts no Spark."""
    names = queries(query, settings)
    with ledger_of(settings) as ledger:
        found = _plans(settings, ledger, names)
    number = sum(map(len, found.values()))
    told = f"{counted(number, 'difference')}: {_tallied(found)}" if number else "nothing differs"
    if as_json:
        write_json(_fields(repair) for repair in _all(found))
        print(told, file=sys.stderr)  # noqa: T201 - standard output is the program's
    else:
        _write(found, told)
    return number > 0


def mend(settings: Settings, *, query: Sequence[str] | None, as_json: bool) -> bool:
    """Mend what differs and write each repair; say whether anything is left, and why."""
    names = queries(query, settings)
    with writing_ledger_of(settings) as ledger:
        differing = [name for name, repairs in _plans(settings, ledger, names).items() if repairs]
        done, problems = _mended(settings, ledger, differing) if differing else ({}, {})
        left = _plans(settings, ledger, differing)
    remaining = [*_all(left)]
    number = sum(repair not in remaining for repair in _all(done))
    told = f"{counted(number, 'difference')} mended" if differing else "nothing differs"
    if as_json:
        write_json(_fields(repair) | {"mended": repair not in remaining} for repair in _all(done))
        print(told, file=sys.stderr)  # noqa: T201 - as above
    else:
        _write({name: [each for each in done[name] if each not in remaining] for name in done}, told)
    for repair in remaining:
        why = problems.get(repair.key, "another pass may mend it")
        print(f"left: {printable(f'{repair}: {why}')}", file=sys.stderr)  # noqa: T201 - a person reads it
    return bool(remaining)


def _mended(
    settings: Settings, ledger: Ledger, names: Sequence[str]
) -> tuple[Plans, Mapping[PartitionKey, AdsPipelineError]]:
    """What was carried out of each query, and what stood against loading the rest."""
    done: dict[str, Sequence[Repair]] = {}
    problems: dict[PartitionKey, AdsPipelineError] = {}
    warehouse = Warehouse(settings.warehouse_root)
    tell = telling(sys.stderr) if sys.stderr.isatty() else silence
    with session(settings) as spark:
        pipeline = Pipeline(
            spark=spark, raw=RawRuns(settings.raw_root), ledger=ledger, warehouse=warehouse, tell=tell
        )
        reconciliation = Reconciliation(ledger=ledger, warehouse=warehouse, pipeline=pipeline)
        for name in names:
            reconciled = reconciliation.mend(source=settings.google_apis.source, query_name=name)
            done[name] = reconciled.repairs
            problems |= {run.key: error for run, error in reconciled.loading.damaged.items()}
    return done, problems


def _plans(settings: Settings, ledger: LedgerReader, names: Sequence[str]) -> Plans:
    comparison = Comparison(ledger=ledger, warehouse=Warehouse(settings.warehouse_root))
    source = settings.google_apis.source
    return {name: comparison.plan(source=source, query_name=name) for name in names}


def _all(plans: Plans) -> Iterator[Repair]:
    return chain.from_iterable(plans.values())


def _tallied(plans: Plans) -> str:
    counts = Counter(repair.mend for repair in _all(plans))
    return ", ".join(f"{counts[mend]:,} to {mend.name.lower()}" for mend in Mend if counts[mend])


def _fields(repair: Repair) -> dict[str, object]:
    return asdict(repair.key) | {"mend": repair.mend.name.lower(), "why": repair.why}


def _write(plans: Plans, told: str) -> None:
    """A table a query, in the order in which its differences are mended."""
    paper = Paper()
    for name, repairs in plans.items():
        if not repairs:
            continue
        table = listing(mend="left", customer="left", day="left", why="fold")
        for repair in repairs:
            place = repair.mend.name.lower(), repair.key.customer_id, repair.key.logical_date, repair.why
            table.add_row(*map(cell, place))
        paper.print(cell(name, style="bold"), table, Text(""), sep="\n")
    paper.print(cell(told))
