"""Builds the ledger's schema, revision by revision; run by `database.migrate`, never by hand."""
