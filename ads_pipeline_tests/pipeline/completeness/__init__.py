"""The tables that tell readers which days are safe to read."""
