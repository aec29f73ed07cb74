"""Imports what the steps of a run import when they first use it. Only a process that waits imports it."""
# ruff: noqa: F401

import dagster_pyspark
import pyspark.sql.connect.session

import ads_pipeline.lake.readers.sql_session
import ads_pipeline.lake.warehouse.replacement
import ads_pipeline.orchestration.event_storage.instance_storage
import ads_pipeline.pipeline.pipeline
import ads_pipeline.pipeline.readers
import ads_pipeline.pipeline.reconciliation
import ads_pipeline.pipeline.staged_runs
