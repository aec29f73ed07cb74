"""The `raw` commands."""
