"""Measures what the completeness tables cost beside a million partitions: one change, a load, and a reader.

The load is that of a run of 1,000 partitions: what judging and loading them takes in the pipeline with a warm Spark.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Action
from ads_pipeline.lake.raw.landing import RawRuns
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.ledger.ledger import Ledger
from ads_pipeline.ledger.sql import database
from ads_pipeline.pipeline.completeness.completeness_tables import CompletenessTables
from ads_pipeline.pipeline.pipeline import Pipeline
from ads_pipeline.settings.environment import Settings, read_settings
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline_tests.benchmarks.ratios import Figure, cpu_seconds, measure_time
from ads_pipeline_tests.benchmarks.runs import write_runs
from ads_pipeline_tests.benchmarks.validator import local_spark
from ads_pipeline_tests.builders import acceptance, sealed_run
from ads_pipeline_tests.lake.warehouse.builders import connect_with_delta
from ads_pipeline_tests.ledger.builders import action_request
from ads_pipeline_tests.ledger.large_ledgers import FIRST_DAY, QUERIES, LedgerShape, fill_ledger

SHAPE: Final = LedgerShape(queries=4, customers=500, days=500)
ROUNDS: Final = 7
CHANGED: Final = 1_000
MOST_OF_A_LOAD: Final = 0.10
MOST_FOR_ONE_DAY, LONGEST_OPENING = 50.0, 0.2  # CPU milliseconds, seconds


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="completeness") as folder, ExitStack() as stack:
        load = _measure_load(Path(folder) / "load")
        settings = _fill(Path(folder) / "large")
        ledger = stack.enter_context(Ledger.opened(settings.database_url))
        last = FIRST_DAY + timedelta(days=SHAPE.days)
        now = datetime(last.year, last.month, last.day, 13, tzinfo=UTC)
        tables = CompletenessTables(ledger=ledger, settings=settings, now=lambda: now)
        started = time.process_time()
        tables.publish_all()
        built = time.process_time() - started
        yield from _measure_changes(ledger, tables, load)
        yield from _measure_reader(tables, built)


def _measure_changes(ledger: Ledger, tables: CompletenessTables, load: float) -> Iterator[Figure]:
    one = _measure(tables, lambda number: _withdraw(ledger, _choose_keys(0)[number], f"one-{number}"))
    yield Figure(
        name="CPU time of writing one changed day of 1,000,000 into the tables",
        value=one * 1000,
        unit="ms",
        limit=MOST_FOR_ONE_DAY,
    )
    thousand = _measure(tables, lambda number: _load(ledger, _choose_keys(1 + number), f"again-{number}"))
    yield Figure(
        name=f"CPU time of writing {CHANGED:,} loaded days of 1,000,000 into the tables "
        f"({thousand * 1000:.0f} ms), beside judging and loading them ({load:.2f} s)",
        value=thousand / load,
        unit="times",
        limit=MOST_OF_A_LOAD,
    )


def _measure_reader(tables: CompletenessTables, built: float) -> Iterator[Figure]:
    def open_and_count(_number: int) -> None:
        with connect_with_delta(tables.days.table.location) as connection:
            query = "SELECT count(*), count(*) FILTER (is_readable) FROM delta_scan(?)"
            assert connection.execute(query, [tables.days.table.uri]).fetchall()[0][0] > 10**6 * 0.9

    yield measure_time(
        f"opening days of 1,000,000 rows in a new DuckDB and counting them (first written in {built:.0f} CPU s)",
        open_and_count,
        rounds=ROUNDS,
        limit=LONGEST_OPENING,
    )


def _measure(tables: CompletenessTables, change: Callable[[int], object]) -> float:
    """The median CPU seconds of publishing a change. One round only warms up."""
    seconds = []
    for number in range(ROUNDS):
        change(number)
        started = time.process_time()
        tables.publish_or_log()
        seconds.append(time.process_time() - started)
    assert all(table.count_behind() == 0 for table in tables.all)
    return statistics.median(seconds[1:])


def _choose_keys(number: int) -> list[PartitionKey]:
    """Readable partitions of one day of three queries, another day for each number."""
    day = FIRST_DAY + timedelta(days=SHAPE.days - 3 - number)
    plain = (each.key for each in SHAPE.partitions() if each.logical_date == day and each.kind == "plain")
    keys = [key for key in plain if key.query_name in QUERIES[:3]][:CHANGED]
    assert len(keys) == CHANGED
    return keys


def _withdraw(ledger: Ledger, partition: PartitionKey, action_id: str) -> None:
    ledger.actions.execute(Action.WITHDRAW, [partition], action_request(action_id))


def _load(ledger: Ledger, keys: Sequence[PartitionKey], run_id: str) -> None:
    """What the ledger records of loading a newer run of each day."""
    runs = [Run(key=key, run_id=run_id) for key in keys]
    ledger.registrations.register([sealed_run(run, 5, schema_version="1") for run in runs])
    ledger.verdicts.record([acceptance(run, 5) for run in runs])
    ledger.loads.publish(runs, table_version=1)


def _fill(home: Path) -> Settings:
    home.mkdir()
    settings = read_settings({"ADS_PIPELINE_HOME": str(home)})
    engine = database.open_engine(settings.database_url)
    database.migrate(engine)
    engine.dispose()
    fill_ledger(settings.database_url, SHAPE)
    return settings


def _measure_load(home: Path) -> float:
    """The median CPU seconds of judging and loading 1,000 new partitions. It writes a small table `days` as well."""
    home.mkdir(parents=True)
    settings = read_settings({"ADS_PIPELINE_HOME": str(home)})
    engine = database.open_engine(settings.database_url)
    database.migrate(engine)
    engine.dispose()
    spark = local_spark()
    runs = [each.seal.run for each in write_runs(Path(settings.raw_location), customers=CHANGED, days=4, rows=5)]
    seconds = []
    with Ledger.opened(settings.database_url) as ledger:
        tables = CompletenessTables(ledger=ledger, settings=settings)
        pipeline = Pipeline(
            start_spark=lambda: spark,
            raw=RawRuns(settings.raw_location),
            ledger=ledger,
            warehouse=Warehouse(settings.warehouse_location),
            contracts=SHIPPED,
            tables=tables,
        )
        for day in sorted({run.key.logical_date for run in runs}):
            group = [run for run in runs if run.key.logical_date == day]
            started = cpu_seconds()
            pipeline.validation.judge(group)
            pipeline.loader.load([run.key for run in group])
            seconds.append(cpu_seconds() - started)
    spark.stop()
    return statistics.median(seconds[1:])
