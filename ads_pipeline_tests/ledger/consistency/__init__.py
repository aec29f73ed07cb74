"""Tests of ads_pipeline/ledger/consistency."""
