"""One conformance suite for the ledger, run over SQLite and Postgres alike."""
