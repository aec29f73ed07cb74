"""Tests of ads_pipeline/ledger/control."""
