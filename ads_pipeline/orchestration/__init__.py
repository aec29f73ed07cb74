"""Presents the product to Dagster: assets, checks, the IO manager, sensors, schedules, resources.

It is the only room that knows Dagster; what it decides nothing of is decided elsewhere.
"""
