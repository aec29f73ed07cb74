"""The names of a deployment in Dagster."""
