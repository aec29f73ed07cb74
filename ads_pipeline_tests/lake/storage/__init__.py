"""Tests of ads_pipeline/lake/storage, and the servers that stand in for buckets."""
