"""Work for one Spark, named by its address, in a process of its own: classic sessions and Connect's do not mix.

`python -m ads_pipeline_tests.spark.pipeline_process <address> <home>` reads the names of works, one a line, and
answers each with what came of it, as a line of JSON.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.connect.client.retries import DefaultPolicy

from ads_pipeline.domain.partition import Run
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.errors import AdsPipelineError
from ads_pipeline.validator.judging import judge_runs
from ads_pipeline_tests.builders import seal_by_hand
from ads_pipeline_tests.pipeline.builders import (
    LocalDeployment,
    corrupt_payload,
    key,
    open_deployment,
    seal_invalid_run,
    seal_run,
    visible_runs,
    visible_runs_in_spark,
)
from ads_pipeline_tests.validator.builders import RULES, land_run, row

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def carried(spark: SparkSession, home: Path) -> Any:
    """The whole pipeline: good and bad runs carried, one restated, one demoted, one mended, the table packed."""
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        lying = Run(key=key(9), run_id="lying")
        seal_by_hand(house.home / "raw", lying, b"{}\n", payload_sha256="0" * 64)
        first = [seal_run(house, key(customer), count=3) for customer in (1, 2, 3)]
        judged, loading = house.pipeline.judge_and_load([*first, seal_invalid_run(house, key(8)), lying])
        house.pipeline.judge_and_load(
            [seal_run(house, key(3), "r2", all_conversions=2.0, search_impression_share=0.5)]
        )
        corrupt_payload(house, first[0])
        house.pipeline.validation.judge(first[:1], validation_id="again")
        house.pipeline.validation.judge([seal_run(house, key(4, day=2))])
        house.reconciliation.repair(source="google_ads", query_name="campaign_daily")
        house.warehouse.optimize(spark, source="google_ads", query_name="campaign_daily")
        return {
            "judged": [asdict(each) for each in judged.judgements],
            "published": [str(run) for run in loading.published],
            "states": [_told(house, customer) for customer in (1, 2, 3, 8, 9)],
            "visible": {str(partition): run_id for partition, run_id in sorted(visible_runs(house).items())},
            "visible_in_spark": {str(each): run_id for each, run_id in sorted(visible_runs_in_spark(house).items())},
        }


def _told(house: LocalDeployment, customer: int) -> Any:
    state = house.ledger.state(key(customer))
    return state.status, state.current_run_id, state.attempt_count, state.error_message


def judged_by_thousands(spark: SparkSession, home: Path) -> Any:
    """Ten thousand tickets in one call, and how many were accepted."""
    run = land_run(home / "raw-thousands", "r1", row())
    judged = judge_runs(spark, [run] * 10_000, RULES)
    return sum(each.verdict.outcome is Outcome.ACCEPTED for each in judged)


def judged_without_disk(spark: SparkSession, home: Path) -> Any:
    """A good run beside one whose disk is not there."""
    good = land_run(home / "raw-there", "r1", row())
    return failure(
        judge_runs, spark, [good, replace(good, payload=good.payload_path.replace("raw-there", "away"))], RULES
    )


def judged_by_dying_workers(spark: SparkSession, home: Path) -> Any:
    """Rules that kill every Python that unpacks them."""
    rules = replace(RULES, of_partition=(("date", _Deadly("x")),))
    return failure(judge_runs, spark, [land_run(home / "raw-deadly", "r1", row())], rules)


def asked_of_nobody(spark: SparkSession, home: Path) -> Any:
    """Judging and loading when the server is gone."""
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as house:
        run = seal_run(house, key(7))
        return {
            "judge": failure(house.pipeline.validation.judge, [run]),
            "load": failure(house.pipeline.loader.load, [key(2)]),
            "attempts": house.ledger.state(run.key).attempt_count,
        }


WORKS: Mapping[str, Callable[[SparkSession, Path], Any]] = {
    each.__name__: each
    for each in (carried, judged_by_thousands, judged_without_disk, judged_by_dying_workers, asked_of_nobody)
}


class _Deadly(str):
    """A name that kills whoever unpacks it on another machine."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return os._exit, (9,)


def failure(act: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """What the act was refused with, for the process that asked."""
    try:
        act(*args)
    except AdsPipelineError as error:
        return {"kind": type(error).__name__, "message": str(error), "is_transient": error.is_transient}
    return {"kind": None, "message": "", "is_transient": False}


def session(address: str) -> SparkSession:
    """A session at the address, as small as it can be."""
    if address.startswith("sc://"):
        connected = SparkSession.builder.remote(address).getOrCreate()
        # By default a lost server is asked again for ten minutes.
        connected.client.set_retry_policies([DefaultPolicy(max_retries=2)])
        return connected
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK,
        "spark.executor.extraJavaOptions": QUICK,
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(address)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


if __name__ == "__main__":
    address, place = sys.argv[1:]
    spark = session(address)
    for name in sys.stdin:
        print(json.dumps(WORKS[name.strip()](spark, Path(place)), default=str), flush=True)
    spark.stop()
