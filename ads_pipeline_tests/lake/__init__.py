"""Tests of ads_pipeline/lake."""
