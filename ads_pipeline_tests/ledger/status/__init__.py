"""Tests of ads_pipeline/ledger/status."""
