"""A process that runs pipeline scenarios in one Spark session. Classic and Connect sessions cannot share a process.

`python -m ads_pipeline_tests.spark.pipeline_process <address> <home> [<lake>]` reads scenario names, one per line,
and answers each with one line of JSON. Without a lake, raw and warehouse lie in the home.
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

from ads_pipeline.domain.errors import AdsPipelineError
from ads_pipeline.domain.partition import PartitionKey, Run
from ads_pipeline.domain.transitions import Outcome
from ads_pipeline.lake.raw.seal import METADATA, PAYLOAD
from ads_pipeline.lake.storage.open_store import open_store
from ads_pipeline.ledger.sql.ledger_values import DayWindow
from ads_pipeline_tests.builders import acceptance, seal_document
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
from ads_pipeline_tests.validation.builders import RULES, KillOnUnpickle, create_run, judge_runs, row


def run_pipeline(spark: SparkSession, home: Path, lake: str | None = None) -> Any:
    """The whole pipeline, with a restated, a demoted and an unloaded run, then reconciliation and compaction."""
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}", lake=lake) as deployment:
        damaged, raw = Run(key=key(9), run_id="damaged"), open_store(deployment.raw.location)
        raw.create(f"{damaged.path}/{PAYLOAD}", b"{}\n")
        seal = seal_document(damaged, b"{}\n", payload_sha256="0" * 64)
        raw.create(f"{damaged.path}/{METADATA}", json.dumps(seal).encode())
        valid = [seal_run(deployment, key(customer), count=3) for customer in (1, 2, 3)]
        judged, loaded = deployment.pipeline.judge_and_load([*valid, seal_invalid_run(deployment, key(8)), damaged])
        restated = seal_run(deployment, key(3), "r2", all_conversions=2.0, search_impression_share=0.5)
        deployment.pipeline.judge_and_load([restated])
        corrupt_payload(deployment, valid[0])
        deployment.pipeline.validation.judge(valid[:1], validation_id="again")
        deployment.pipeline.validation.judge([seal_run(deployment, key(4, day=2))])
        deployment.reconciliation.repair(DayWindow(source="google_ads", query_name="campaign_daily"))
        deployment.warehouse.optimize(lambda: spark, source="google_ads", query_name="campaign_daily")
        return {
            "judged": [asdict(judgement) for judgement in judged.judgements],
            "published": [str(run) for run in loaded.published],
            "states": [_describe_state(deployment, customer) for customer in (1, 2, 3, 8, 9)],
            "visible": _with_text_keys(visible_runs(deployment)),
            "visible_in_spark": _with_text_keys(visible_runs_in_spark(deployment)),
        }


def _describe_state(deployment: LocalDeployment, customer: int) -> Any:
    state = deployment.ledger.states.get(key(customer))
    return state.status, state.current_run_id, state.attempt_count, state.error_message


def _with_text_keys(runs: Mapping[PartitionKey, str]) -> dict[str, str]:
    return {str(partition): run_id for partition, run_id in sorted(runs.items())}


def judge_ten_thousand_runs(spark: SparkSession, home: Path) -> Any:
    """Judge ten thousand runs in one call and count the accepted ones."""
    run = create_run(home / "raw-thousands", "r1", row())
    judgements = judge_runs(spark, [run] * 10_000, RULES)
    return sum(judgement.verdict.outcome is Outcome.ACCEPTED for judgement in judgements)


def judge_on_missing_disk(spark: SparkSession, home: Path) -> Any:
    """Judge two runs on a disk that is not mounted."""
    good = create_run(home / "raw-mounted", "r1", row())
    missing = replace(good, location=good.location.replace("raw-mounted", "not-mounted"))
    return describe_failure(judge_runs, spark, [missing, missing], RULES)


def judge_on_disk_of_the_driver(spark: SparkSession, home: Path) -> Any:
    """Judge a run that workers find only if they see the driver's disk."""
    return describe_failure(judge_runs, spark, [create_run(home / "raw-of-driver", "r1", row())], RULES)


def judge_with_killed_workers(spark: SparkSession, home: Path) -> Any:
    """Judge with rules that kill every Python worker that unpickles them."""
    rules = replace(RULES, partition_columns=(("date", KillOnUnpickle("x")),))
    return describe_failure(judge_runs, spark, [create_run(home / "raw-killed", "r1", row())], rules)


def use_stopped_server(spark: SparkSession, home: Path) -> Any:
    """Judge a run after the server was killed, and load another that was accepted before by another process."""
    with open_deployment(home, spark, f"sqlite:///{home / 'ledger.db'}") as deployment:
        run, accepted = seal_run(deployment, key(7)), seal_run(deployment, key(9))
        deployment.pipeline.validation.seals.get_or_register([accepted])
        deployment.ledger.verdicts.record([acceptance(accepted, 2)])
        return {
            "judge": describe_failure(deployment.pipeline.validation.judge, [run]),
            "load": describe_failure(deployment.pipeline.loader.load, [accepted.key]),
            "attempts": deployment.ledger.states.get(run.key).attempt_count,
        }


SCENARIOS: Mapping[str, Callable[..., Any]] = {
    scenario.__name__: scenario
    for scenario in (
        run_pipeline,
        judge_ten_thousand_runs,
        judge_on_missing_disk,
        judge_on_disk_of_the_driver,
        judge_with_killed_workers,
        use_stopped_server,
    )
}


def describe_failure(function: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """Class, message and transience of the error that the call raises, as JSON values."""
    try:
        function(*args)
    except AdsPipelineError as error:
        return {"class": type(error).__name__, "message": str(error), "is_transient": error.is_transient}
    return {"class": None, "message": "", "is_transient": False}


def open_session(address: str) -> SparkSession:
    """A Spark session with small resources at this address."""
    if address.startswith("sc://"):
        connected = SparkSession.builder.remote(address).getOrCreate()
        # The default policy retries a lost server for ten minutes.
        connected.client.set_retry_policies([DefaultPolicy(max_retries=2)])
        return connected
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": os.environ["SPARK_SUBMIT_OPTS"],
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
    address, home, *lake = sys.argv[1:]
    spark = open_session(address)
    for name in map(str.strip, sys.stdin):
        places = [Path(home), *(lake if name == run_pipeline.__name__ else [])]
        print(json.dumps(SCENARIOS[name](spark, *places), default=str), flush=True)
    spark.stop()
