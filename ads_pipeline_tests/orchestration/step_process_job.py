"""A job of the code location whose steps are processes of their own. Each process of a step builds it again.

Where the file `stop` is in the home, the process that registers runs of the query named in it writes its id beside
the name, and does no more.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg

from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.orchestration.naming.names import Names
from ads_pipeline.pipeline.registered_seals import SealRegister
from ads_pipeline.settings.environment import read_settings
from ads_pipeline_tests.processes import LIMIT_S

STOP = "stop"


def build_job() -> dg.JobDefinition:
    settings = read_settings(os.environ)
    _stop_at(settings.home / STOP)
    executor = dg.multiprocess_executor.configured({"max_concurrent": 2})
    defs = build_location(settings, executor=executor)
    # Dagster reserves the name of its own job of all assets.
    job = dg.define_asset_job("load", dg.AssetSelection.assets(*Names().assets(settings.google_apis.queries)))
    return dg.Definitions.merge(defs, dg.Definitions(jobs=[job])).resolve_job_def(job.name)


def _stop_at(file: Path) -> None:
    register = SealRegister.register

    def register_or_stop(self: SealRegister, found: Iterable[Any]) -> None:
        runs = list(found)
        if file.exists() and any(each.run.key.query_name == file.read_text() for each in runs):
            file.with_suffix(".pid").write_text(str(os.getpid()))
            time.sleep(LIMIT_S)
        register(self, runs)

    SealRegister.register = register_or_stop  # type: ignore[method-assign]
