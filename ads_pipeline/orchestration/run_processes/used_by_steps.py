"""Imports what the steps of a run import when they first use it. Only a process that waits imports it."""
# ruff: noqa: F401

import dagster_pyspark
import pyspark.sql.connect.session

import ads_pipeline.orchestration.instance_storage
import ads_pipeline.pipeline.pipeline
import ads_pipeline.pipeline.readers
import ads_pipeline.pipeline.reconciliation
import ads_pipeline.pipeline.staged_runs
import ads_pipeline.warehouse.publication
import ads_pipeline.warehouse.sql_session
