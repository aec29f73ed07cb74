"""Assembles the code location that `workspace.yaml` points Dagster to."""

import dagster as dg


def build_definitions() -> dg.Definitions:
    """Everything Dagster is to know of the product."""
    return dg.Definitions()


defs = build_definitions()
