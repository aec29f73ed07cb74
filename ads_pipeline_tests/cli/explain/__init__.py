"""Tests of ads_pipeline/cli/explain."""
