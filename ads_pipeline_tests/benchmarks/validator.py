"""Judging beside pandera called partition by partition, and beside Spark reading the same files without judging."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ads_pipeline.contracts.catalogue import contract_for, rules_for
from ads_pipeline.contracts.models import PARTITION_CUSTOMER, PARTITION_DAY
from ads_pipeline.validator.judging import SealedPayload, judge
from ads_pipeline_tests.benchmarks.ratios import Ratio, compare
from ads_pipeline_tests.benchmarks.runs import land

RULES = rules_for("campaign_daily", "1")
TYPES = {"long": "bigint", "double": "double", "string": "string", "date": "date"}
SCHEMA = ", ".join(f"{column.name} {TYPES[column.kind]}" for column in RULES.columns)


def measure() -> Iterator[Ratio]:
    spark = local_spark()
    with tempfile.TemporaryDirectory() as home:
        small = land(Path(home) / "small", customers=100, days=10, rows=100)
        yield _against_pandera(spark, small)
        yield _against_spark(spark, small, "1,000 partitions of 100 rows", most=0.7, rounds=6)
        large = land(Path(home) / "large", customers=20, days=1, rows=50_000)
        yield _against_spark(spark, large, "20 partitions of 50,000 rows", most=3.0, rounds=6)
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


def _against_pandera(spark: SparkSession, runs: list[SealedPayload]) -> Ratio:
    """Pandera is called for one partition a round and counted a thousand times; judging is done for all."""
    judge(spark, runs, RULES)
    rounds, contract = 8, _contract()
    ratio = compare(
        "judging 1,000 partitions, against pandera on Spark once a partition (one measured, counted 1,000 times)",
        lambda _number: judge(spark, runs, RULES),
        lambda number: contract.validate(_frame(spark, runs[number])).pandera.errors,
        rounds=rounds,
        least=50.0,
    )
    return ratio.counted(len(runs))


def _contract() -> Any:
    return contract_for("campaign_daily", "1")


def _frame(spark: SparkSession, run: SealedPayload) -> Any:
    key = run.seal.run.key
    frame = spark.read.schema(SCHEMA).json(run.payload)
    return frame.withColumn(PARTITION_DAY, sf.lit(key.logical_date)).withColumn(
        PARTITION_CUSTOMER, sf.lit(key.customer_id)
    )


def _against_spark(spark: SparkSession, runs: list[SealedPayload], shape: str, *, most: float, rounds: int) -> Ratio:
    paths = [run.payload for run in runs]

    def read_and_aggregate(_number: int) -> None:
        frame = spark.read.schema(SCHEMA).json(paths)
        frame.agg(
            sf.count("*"), sf.sum("clicks"), sf.sum("cost_micros"), sf.max("campaign_name"), sf.sum("conversions")
        ).collect()

    return compare(
        f"judging {shape}, against Spark reading and adding them up (at most {most}x its time)",
        lambda _number: judge(spark, runs, RULES),
        read_and_aggregate,
        rounds=rounds,
        least=1 / most,
    )
