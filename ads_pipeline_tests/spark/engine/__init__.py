"""The engine: one Spark server for the runs of a deployment."""
