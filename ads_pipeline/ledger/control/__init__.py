"""Stores control actions, requests, the retry queue, leases and the audit log."""
