"""Measures Dagster's range runs over 1,000 partitions: empty assets on stock storage and on ours, and our assets.

The times are CPU seconds of this process and of its children, because a run waits for the disk and for Spark. A run
takes about a minute, so each is measured once, after a run of a few partitions that only warms up.
"""

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg

from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS as CUSTOMER_PARTITIONS
from ads_pipeline.orchestration.partitions import define_partitions
from ads_pipeline_tests.benchmarks.ratios import Ratio, cpu_seconds
from ads_pipeline_tests.benchmarks.runs import FIRST_DAY, write_runs
from ads_pipeline_tests.benchmarks.validator import local_spark
from ads_pipeline_tests.orchestration.builders import RAW, WAREHOUSE, open_location

CUSTOMERS = [str(1_000_000_000 + number) for number in range(1_000)]
WARM_UP = 50
WARM_UP_DAY, DAY = FIRST_DAY, FIRST_DAY + timedelta(days=1)
OUR_STORAGE = {
    "custom": {"module": "ads_pipeline.orchestration.event_storage.instance_storage", "class": "InstanceStorage"}
}


def measure() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spark = local_spark()
        with (
            open_location(directory / "home", spark) as location,
            _open_instance(directory / "stock", {}) as stock,
            _open_instance(directory / "ours", {"storage": OUR_STORAGE}) as ours,
        ):
            write_runs(directory / "home" / "raw", customers=len(CUSTOMERS), days=2, rows=5)
            empty = _define_empty_assets(location.settings.google_apis.start_date)
            baseline = _measure_run(stock, empty)
            yield _compare("a run of empty assets", _measure_run(ours, empty), baseline, required=2.0)
            full = _measure_run(ours, location.defs)
            yield _compare("a run of 1,000 partitions", full, baseline, required=1 / 0.6)
        spark.stop()


def _measure_run(instance: dg.DagsterInstance, defs: dg.Definitions) -> float:
    """The CPU seconds of a run of all customers."""
    _run(instance, defs, CUSTOMERS[:WARM_UP], WARM_UP_DAY)
    started = cpu_seconds()
    _run(instance, defs, CUSTOMERS, DAY)
    return cpu_seconds() - started


def _compare(name: str, ours: float, stock: float, *, required: float) -> Ratio:
    return Ratio(
        name=name,
        baseline="a run of empty assets on stock storage",
        value=stock / ours,
        ours_ms=ours * 1_000,
        baseline_ms=stock * 1_000,
        rounds=1,
        required=required,
        clock="CPU",
    )


@contextmanager
def _open_instance(home: Path, overrides: Mapping[str, Any]) -> Iterator[dg.DagsterInstance]:
    home.mkdir()
    with (
        patch.dict(os.environ, {"ADS_PIPELINE_HOME": str(home), "DAGSTER_HOME": str(home)}),
        dg.instance_for_test(temp_dir=str(home), overrides=dict(overrides)) as instance,
    ):
        instance.add_dynamic_partitions(CUSTOMER_PARTITIONS, CUSTOMERS)
        yield instance


def _run(instance: dg.DagsterInstance, defs: dg.Definitions, customers: Sequence[str], day: date) -> None:
    """A run of these customers and one day."""
    tags = {
        "dagster/asset_partition_range_start": f"{customers[0]}|{day}",
        "dagster/asset_partition_range_end": f"{customers[-1]}|{day}",
    }
    job = defs.resolve_implicit_global_asset_job_def()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert job.execute_in_process(instance=instance, asset_selection=[RAW, WAREHOUSE], tags=tags).success


def _define_empty_assets(start_date: date) -> dg.Definitions:
    """Assets and a check without work, as somebody would write them who knows Dagster."""
    partitions = define_partitions(Names(), start_date)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy = dg.BackfillPolicy.multi_run(1_000)

        @dg.asset(key=RAW, partitions_def=partitions, backfill_policy=policy)
        def raw() -> None: ...

        @dg.asset_check(asset=raw, name="valid", blocking=True, partitions_def=partitions)  # type: ignore[arg-type]
        def valid(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
            for name in context.partition_keys:
                yield dg.AssetCheckEvaluation(
                    asset_key=RAW, check_name="valid", partition=str(name), passed=True, blocking=False
                )
            yield dg.Output(None)

        @dg.asset(key=WAREHOUSE, deps=[RAW], partitions_def=partitions, backfill_policy=policy)
        def warehouse() -> None: ...

    return dg.Definitions(
        assets=[raw, warehouse],
        asset_checks=[valid],
        resources={"io_manager": dg.mem_io_manager},
        executor=dg.in_process_executor,
    )
