"""Tests of ads_pipeline/cli/actions."""
