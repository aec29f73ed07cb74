"""Replays the logs and checks the ledger against itself."""
