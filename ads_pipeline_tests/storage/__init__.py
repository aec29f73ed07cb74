"""Tests of ads_pipeline/storage, and the servers that stand in for buckets."""
