"""Fetching: accounts, quota, outages of the source, the retry policy and its forecast."""
