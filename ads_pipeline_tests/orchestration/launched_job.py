"""A job in a module of its own, so that a launcher can name its origin."""

import dagster as dg


@dg.job
def nothing() -> None:
    """A run without a step."""
