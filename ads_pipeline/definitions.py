"""The Dagster code location of the environment, which `workspace.yaml` loads. As a program, it runs the demo.

Importing it reads no setting. Dagster calls `defs`.
"""

import os
import sys

from ads_pipeline.orchestration.location.environment_location import defs
from ads_pipeline.settings.environment import read_settings

__all__ = ["defs"]

if __name__ == "__main__":
    from ads_pipeline.orchestration.location.demo_run import run_demo

    run_demo(defs(), read_settings(os.environ), sys.argv[1:])
