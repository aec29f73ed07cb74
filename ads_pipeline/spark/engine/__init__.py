"""Keeps one Spark server for the runs of a deployment, so that no run waits for a JVM and cold Python workers."""
