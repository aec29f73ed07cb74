"""Spark overwrites the directories of the partitions that it writes; the others stay."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ads_pipeline_tests.benchmarks.competitors.serving import Batch, serve

SCHEMA = (
    "date date, customer_id string, campaign_id bigint, campaign_name string, campaign_status string, "
    "campaign_advertising_channel_type string, impressions bigint, clicks bigint, cost_micros bigint, "
    "conversions double, conversions_value double"
)


class SparkOverwrite:
    def __init__(self) -> None:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g")
        builder = builder.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2")
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def load(self, batch: Batch) -> None:
        rows = self._spark.read.schema(SCHEMA).json(list(batch.payloads))
        writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy("date", "customer_id").parquet(str(batch.home))

    def read_totals(self, home: Path) -> tuple[int, int]:
        row = self._spark.read.parquet(str(home)).agg(sf.count("*"), sf.sum("clicks")).first()
        assert row is not None
        return row[0], row[1]


if __name__ == "__main__":
    serve(SparkOverwrite())
