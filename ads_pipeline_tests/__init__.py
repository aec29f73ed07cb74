"""Holds the product to its promises: real databases, real files, injected faults."""
