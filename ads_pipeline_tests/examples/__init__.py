"""Runs the examples that read the warehouse, with their own packages."""
