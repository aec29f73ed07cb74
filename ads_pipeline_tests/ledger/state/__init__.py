"""Tests of ads_pipeline/ledger/state."""
