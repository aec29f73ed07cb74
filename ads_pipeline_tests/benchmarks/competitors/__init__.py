"""Loaders that read the same payloads. Each runs as a process of its own, most of them in an own environment."""
