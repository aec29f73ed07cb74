"""The Dagster code location: assets, checks, the IO manager, sensors, schedules and resources."""
