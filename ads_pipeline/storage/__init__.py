"""Durable files on a disk. The only package that syncs files to disk."""
