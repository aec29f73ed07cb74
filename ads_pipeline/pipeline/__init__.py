"""Joins raw, validator, ledger and warehouse."""
