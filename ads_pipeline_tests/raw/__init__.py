"""Tests of ads_pipeline/raw."""
