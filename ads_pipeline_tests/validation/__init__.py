"""Tests of ads_pipeline/validation."""
