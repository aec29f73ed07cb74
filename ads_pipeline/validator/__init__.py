"""Judges sealed runs against their contract, thousands in one Spark job.

`payload` reads the bytes of one run, `contract_checks` checks its rows, and `judging` runs both on Spark.
"""
