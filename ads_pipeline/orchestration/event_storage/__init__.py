"""Storages of Dagster's events that keep their engines and store the events of a range together."""
