"""Measures judging against pandera per partition, and against Spark that only reads the same files."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.validation.contract_models import CONTRACTS
from ads_pipeline.validation.contract_registry import SHIPPED
from ads_pipeline.validation.contract_rules import PARTITION_CUSTOMER, PARTITION_DAY
from ads_pipeline_tests.benchmarks.ratios import Ratio, compare
from ads_pipeline_tests.benchmarks.runs import write_runs
from ads_pipeline_tests.validation.builders import SealedPayload, judge_runs

RULES = SHIPPED.rules("campaign_daily", "1")
TYPES = {"long": "bigint", "double": "double", "string": "string", "date": "date"}
SCHEMA = ", ".join(f"{column.name} {TYPES[column.kind]}" for column in RULES.columns)


def measure() -> Iterator[Ratio]:
    spark = local_spark()
    with tempfile.TemporaryDirectory() as home:
        small = write_runs(Path(home) / "small", customers=100, days=10, rows=100)
        yield _compare_with_pandera(spark, small)
        yield _compare_with_spark(spark, small, "1,000 partitions of 100 rows", most_time=0.7, rounds=4)
        large = write_runs(Path(home) / "large", customers=20, days=1, rows=50_000)
        yield _compare_with_spark(spark, large, "20 partitions of 50,000 rows", most_time=1.5, rounds=4)
    spark.stop()


def local_spark(*, heap: str = "2g") -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.driver.memory", heap)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def _compare_with_pandera(spark: SparkSession, runs: list[SealedPayload]) -> Ratio:
    """Judging all partitions. A round of pandera validates one partition and counts a thousand times."""
    judge_runs(spark, runs, RULES)
    contract: Any = CONTRACTS["campaign_daily", "1"]
    ratio = compare(
        "judging 1,000 partitions",
        lambda _number: judge_runs(spark, runs, RULES),
        lambda number: contract.validate(_read_frame(spark, runs[number])).pandera.errors,
        baseline_name="pandera on Spark (one partition measured, counted 1,000 times)",
        rounds=8,
        required=50.0,
    )
    return ratio.with_repeated_baseline(len(runs))


def _read_frame(spark: SparkSession, run: SealedPayload) -> Any:
    key = run.seal.run.key
    frame = spark.read.schema(SCHEMA).json(run.payload_path)
    return frame.withColumn(PARTITION_DAY, sf.lit(key.logical_date)).withColumn(
        PARTITION_CUSTOMER, sf.lit(key.customer_id)
    )


def _compare_with_spark(
    spark: SparkSession, runs: list[SealedPayload], shape: str, *, most_time: float, rounds: int
) -> Ratio:
    paths = [run.payload_path for run in runs]

    def read_and_aggregate(_number: int) -> None:
        frame = spark.read.schema(SCHEMA).json(paths)
        frame.agg(
            sf.count("*"), sf.sum("clicks"), sf.sum("cost_micros"), sf.max("campaign_name"), sf.sum("conversions")
        ).collect()

    return compare(
        f"judging {shape}",
        lambda _number: judge_runs(spark, runs, RULES),
        read_and_aggregate,
        baseline_name="Spark alone",
        rounds=rounds,
        required=1 / most_time,
        cpu=True,
    )
