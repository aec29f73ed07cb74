"""Writes durable files."""
