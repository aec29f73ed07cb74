"""Tests of the Dagster UI and of the report in a real browser, which only `make test-browser` runs."""
