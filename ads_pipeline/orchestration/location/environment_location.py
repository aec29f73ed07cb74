"""The code location of the environment, once for each process that loads it."""

import os
from functools import cache

import dagster as dg

from ads_pipeline.domain.log_lines import configure_logging
from ads_pipeline.lake.storage.durable_files import leave_access_to_umask
from ads_pipeline.orchestration.location.code_location import build_location
from ads_pipeline.settings.environment import read_settings


@cache
def load_location() -> dg.Definitions:
    """Build all definitions from the environment, and configure this process as the environment says.

    A process that waits for a run builds them before, and Dagster loads them again when the run starts.
    """
    settings = read_settings(os.environ)
    leave_access_to_umask(leave=settings.access_by_umask)
    configure_logging(settings.log_format)
    return build_location(settings)


@dg.definitions
def defs() -> dg.Definitions:
    return load_location()
