"""Shortens the interval of Dagster's backfill daemon from 30 to 3 seconds, for which Dagster has no setting.

Python imports this file at the start of every process that has this folder on its path.
"""  # noqa: INP001 - a package of its own would not be imported

import sys

if "dagster._daemon" in sys.orig_argv:
    from dagster._daemon import controller

    controller.DEFAULT_DAEMON_INTERVAL_SECONDS = 3
