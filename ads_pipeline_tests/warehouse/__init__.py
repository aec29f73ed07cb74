"""Tests of ads_pipeline/warehouse."""
