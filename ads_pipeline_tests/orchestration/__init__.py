"""The code location as Dagster runs it."""
