"""Tests of ads_pipeline/contracts."""
