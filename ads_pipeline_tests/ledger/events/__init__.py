"""Tests of ads_pipeline/ledger/events."""
