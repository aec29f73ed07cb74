"""Tests of ads_pipeline/domain."""
