"""Judges sealed runs against their contract, thousands in one Spark job.

`payload` reads one run's bytes, `checks` holds its rows against the contract, `judging` does both on the cluster.
"""
