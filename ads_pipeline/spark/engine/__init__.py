"""Keeps one Spark server for the runs of a deployment, and executes these runs in processes that wait warm."""
