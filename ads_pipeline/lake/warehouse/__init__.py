"""Replaces whole logical partitions of Delta tables; each commit is atomic for readers.

`publication` is the interface for writing and `visible_rows` for reading. `staging` prepares files, `delta_commits`
commits them, `maintenance` compacts and removes them, and `file_contents` counts and digests what they hold.
"""
