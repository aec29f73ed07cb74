"""Tests of ads_pipeline/lake/raw."""
