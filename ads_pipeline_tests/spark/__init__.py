"""Runs the pipeline on every supported kind of Spark: local, a standalone cluster and Spark Connect."""
