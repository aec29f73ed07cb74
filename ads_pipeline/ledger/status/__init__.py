"""Stores ADR-026 partition status and publishes it as a Parquet file."""
