"""The schema of the ledger as SQL: one text for each database."""
