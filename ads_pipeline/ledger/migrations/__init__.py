"""Creates the ledger's schema, revision by revision. `database.migrate` runs the revisions."""
