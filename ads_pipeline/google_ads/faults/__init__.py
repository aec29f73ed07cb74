"""Reads errors of Google Ads and of its client into the error classes of the retry policy, without secrets."""
