"""Writes, seals and finds raw runs."""
