"""Measures how the CPU cost of a partition grows with the ledger: recording, searching and planning, on SQLite.

The same batch of 1,000 partitions is recorded in a ledger of a thousand partitions and in one of a million. SQLite
works in this process, so its CPU time is measured as well.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline_tests.benchmarks.ratios import Figure
from ads_pipeline_tests.builders import acceptance, sealed_run
from ads_pipeline_tests.ledger.large_ledgers import FIRST_DAY, QUERIES, SOURCE, LedgerShape, fill_ledger

SMALL: Final = LedgerShape(queries=1, customers=500, days=2)
LARGE: Final = LedgerShape(queries=4, customers=500, days=500)
ROUNDS: Final = 9
LIMIT: Final = 1.3
_NUMBERS: Final = count(1)


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="growth") as home, ExitStack() as stack:
        ledgers = {}
        for name, shape in {"small": SMALL, "large": LARGE}.items():
            url = f"sqlite:///{Path(home) / name}.db"
            engine = database.open_engine(url)
            database.migrate(engine)
            engine.dispose()
            fill_ledger(url, shape)
            ledgers[name] = stack.enter_context(Ledger.opened(url)), _choose_keys(shape)
        for step, work in {
            "registering 1,000 runs": _register,
            "registering and recording 1,000 verdicts": _record,
            "all of a batch: also which runs are judged, and what the tables should hold": _do_all,
        }.items():
            yield _compare(step, work, ledgers)


def _compare(
    step: str,
    work: Callable[[Ledger, list[PartitionKey]], object],
    ledgers: dict[str, tuple[Ledger, list[PartitionKey]]],
) -> Figure:
    seconds: dict[str, list[float]] = {name: [] for name in ledgers}
    for _ in range(ROUNDS):
        for name, (ledger, keys) in ledgers.items():
            started = time.process_time()
            work(ledger, keys)
            seconds[name].append(time.process_time() - started)
    small, large = (statistics.median(seconds[name][1:]) for name in ("small", "large"))
    name = f"{step}: CPU beside 1,000,000 partitions ({large * 1000:.0f} ms) to beside 1,000 ({small * 1000:.0f} ms)"
    return Figure(name=name, value=large / small, unit="times", limit=LIMIT)


def _choose_keys(shape: LedgerShape) -> list[PartitionKey]:
    """A thousand partitions of one query, on the last two days."""
    first = FIRST_DAY + timedelta(days=shape.days - 2)
    return [
        PartitionKey(
            source=SOURCE,
            customer_id=str(1_000_000_000 + 7 * customer),
            query_name=QUERIES[0],
            logical_date=first + timedelta(days=day),
        )
        for day in range(2)
        for customer in range(500)
    ]


def _register(ledger: Ledger, keys: list[PartitionKey]) -> list[Run]:
    run_id = f"29990101T000000000Z-{next(_NUMBERS):08d}"
    runs = [Run(key=key, run_id=run_id) for key in keys]
    ledger.registrations.register([sealed_run(run, 5) for run in runs])
    return runs


def _record(ledger: Ledger, keys: list[PartitionKey]) -> None:
    ledger.verdicts.record([acceptance(run, 5) for run in _register(ledger, keys)])


def _do_all(ledger: Ledger, keys: list[PartitionKey]) -> None:
    ledger.runs.judged_by_run(keys)
    _record(ledger, keys)
    days = [key.logical_date for key in keys]
    ledger.publications.expected_contents(
        DayWindow(source=SOURCE, query_name=keys[0].query_name, since=min(days), until=max(days))
    )
