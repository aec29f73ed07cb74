"""Writes the tables that tell readers which days are safe to read, from the same rules as every other screen."""
