"""Tests of ads_pipeline/operations."""
