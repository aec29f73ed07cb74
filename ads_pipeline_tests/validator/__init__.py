"""Tests of ads_pipeline/validator."""
