"""Reads the environment and the query file."""
