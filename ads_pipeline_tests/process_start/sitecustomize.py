"""What every Python process of the tests does first: Python imports this file from the search path of modules.

The collector looks for garbage less often: in a process of seconds, which mostly imports, it takes up to a third of
the time. The interval of Dagster's backfill daemon, for which Dagster has no setting, is 3 instead of 30 seconds.
A process of a test over simulated weeks starts with the clock of that test.
"""  # noqa: INP001 - a package of its own would not be imported

import gc
import os
import sys

gc.set_threshold(50_000, 20, 20)

if "dagster._daemon" in sys.orig_argv:
    from dagster._daemon import controller

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 3

if "SIMULATED_CLOCK" in os.environ:
    from pathlib import Path

    from ads_pipeline_tests.healing import simulated_clock

    simulated_clock.start(Path(os.environ["SIMULATED_CLOCK"]))
