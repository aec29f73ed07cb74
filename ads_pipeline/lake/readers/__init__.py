"""Reads the visible rows of Delta tables, through Spark or DuckDB."""
