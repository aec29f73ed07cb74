"""Notifications: what an operator must know, found in the ledger, grouped, and delivered to a webhook."""
