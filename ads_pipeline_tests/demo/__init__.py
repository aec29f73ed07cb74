"""Tests of ads_pipeline/demo."""
