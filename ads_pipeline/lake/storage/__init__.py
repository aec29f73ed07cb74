"""Durable storage: files on a disk or in a bucket. The only package that syncs files to disk."""
