"""Tests of ads_pipeline/pipeline."""
