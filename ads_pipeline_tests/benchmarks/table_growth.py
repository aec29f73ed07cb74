"""Measures whether a partition costs the same while its table grows from 1,000 to 100,000 partitions.

The table grows by files that are written without judging, because judging does not depend on the table. Growing
ledgers are in `growth`.
"""

import tempfile
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.lake.warehouse.file_writer import StagedRows
from ads_pipeline.lake.warehouse.replacement import Warehouse
from ads_pipeline.lake.warehouse.table_values import StagedRun
from ads_pipeline_tests.benchmarks.publishing import QUERY, SOURCE, publish
from ads_pipeline_tests.benchmarks.ratios import Figure, cpu_seconds
from ads_pipeline_tests.benchmarks.runs import FIRST_DAY, write_runs
from ads_pipeline_tests.benchmarks.validator import RULES, local_spark
from ads_pipeline_tests.builders import sealed_run
from ads_pipeline_tests.validation.builders import SealedPayload

CUSTOMERS, ROWS, ROUNDS, WARM_UP_ROUNDS = 1_000, 5, 3, 5
DAYS_IN_LARGE_TABLE: Final = 100
MOST_GROWTH: Final = 1.3


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        home, spark = Path(directory), local_spark()
        runs = write_runs(home / "raw", customers=CUSTOMERS, days=1 + 2 * ROUNDS, rows=ROWS)
        by_day = [[run for run in runs if run.seal.run.key.logical_date == day] for day in _days(1 + 2 * ROUNDS)]
        for number in range(WARM_UP_ROUNDS):
            publish(spark, by_day[0], str(home / f"warm-{number}"))
        table = str(home / "table")
        publish(spark, by_day[0], table)
        small = _measure_days(spark, by_day[1 : 1 + ROUNDS], table)
        _grow(spark, table)
        large = _measure_days(spark, by_day[1 + ROUNDS :], table)
        spark.stop()
    yield Figure(
        name=f"CPU time of loading {CUSTOMERS:,} partitions into a table of {DAYS_IN_LARGE_TABLE * CUSTOMERS:,}, "
        f"against a table of {CUSTOMERS:,} ({small:.2f} s)",
        value=large / small,
        unit="times",
        limit=MOST_GROWTH,
    )


def _days(count: int) -> list[date]:
    return [FIRST_DAY + timedelta(days=number) for number in range(count)]


def _measure_days(spark: SparkSession, days: Sequence[Sequence[SealedPayload]], location: str) -> float:
    seconds = []
    for runs in days:
        started = cpu_seconds()
        publish(spark, runs, location)
        seconds.append(cpu_seconds() - started)
    return median(seconds)


def _grow(spark: SparkSession, location: str) -> None:
    """Load further days, all customers in each, with the same rows in each partition."""
    warehouse = Warehouse(location)
    table = warehouse.table(SOURCE, QUERY)
    staged = StagedRows(table.location, table.folder, RULES.schema_version)
    loads = []
    for day in _days(DAYS_IN_LARGE_TABLE)[1 + ROUNDS :]:
        later = day + timedelta(days=1_000)
        keys = [
            PartitionKey(source=SOURCE, customer_id=str(number), query_name=QUERY, logical_date=later)
            for number in range(1_000_000_000, 1_000_000_000 + CUSTOMERS)
        ]
        staged.add(later, [StagedRun(key.customer_id, "r1", ROWS) for key in keys], _rows())
        loads += [sealed_run(Run(key=key, run_id="r1"), ROWS, schema_version=RULES.schema_version) for key in keys]
    warehouse.replace(
        lambda: spark,
        loads,
        staged.finish(),
        stage=lambda _missing: [],
        columns=RULES.column_types,
        is_publishable=lambda runs: runs,
    )


def _rows() -> pa.Table:
    """A day's rows of all customers, with the columns of the contract."""
    count = CUSTOMERS * ROWS
    values = {
        "long": pa.array(range(count)),
        "double": pa.array(map(float, range(count))),
        "string": pa.array([f"campaign {number}" for number in range(count)]),
    }
    columns = [column for column in RULES.columns if column.kind in values and column.name != "customer_id"]
    return pa.table({column.name: values[column.kind] for column in columns})
