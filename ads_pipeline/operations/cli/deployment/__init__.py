"""The `events` commands."""
