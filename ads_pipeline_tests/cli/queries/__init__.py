"""The `queries` commands."""
