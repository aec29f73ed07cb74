"""Stores the tables about the warehouse itself: rows that are replaced by their keys, one file a partition."""
