"""Runs a backfill of one partition of the deployment in the environment, and launches a run without a code server.

The last argument is the partition. It prints what Dagster shows afterwards as JSON, and warnings to standard error.
"""

import json
import logging
import sys
import warnings
from typing import Any

import dagster as dg

from ads_pipeline.definitions import defs
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.orchestration.partitions import CUSTOMERS
from ads_pipeline_tests.orchestration import launched_job

QUERY = "campaign_daily"
ASSETS = [Names().raw(QUERY), Names().warehouse(QUERY)]


def no_session() -> object:
    """The Spark session of a run that has nothing to judge and nothing to load."""
    return object()


def run_backfill(partition: str) -> dict[str, Any]:
    tags = {f"dagster/asset_partition_range_{end}": partition for end in ("start", "end")}
    with dg.DagsterInstance.get() as instance:
        instance.add_dynamic_partitions(CUSTOMERS, [partition.partition("|")[0]])
        result = (
            defs()
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(instance=instance, asset_selection=ASSETS, tags=tags, raise_on_error=False)
        )
        return {
            "success": result.success,
            "materialized": [sorted(instance.get_materialized_partitions(asset)) for asset in ASSETS],
            "batches": hasattr(instance.event_log_storage, "batch"),
            "health": instance.run_launcher.supports_check_run_worker_health,
            "launched": launch(instance),
        }


def launch(instance: dg.DagsterInstance) -> str:
    """Why Dagster's own launcher refuses a run: it has no workspace here."""
    origin = dg.reconstructable(launched_job.nothing).get_python_origin()
    run = instance.create_run_for_job(launched_job.nothing, job_code_origin=origin)
    try:
        instance.launch_run(run.run_id, workspace=None)  # type: ignore[arg-type] # so that it refuses
    except dg.DagsterInvariantViolationError as error:
        return str(error)
    return "launched"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(message)s")
    print(json.dumps(run_backfill(sys.argv[-1])))
