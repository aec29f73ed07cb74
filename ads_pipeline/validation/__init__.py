"""Judges sealed runs: the contracts, the Spark job that judges by them, and its task for one payload."""
