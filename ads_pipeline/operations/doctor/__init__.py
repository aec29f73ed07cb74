"""Checks a whole deployment without changing it."""
