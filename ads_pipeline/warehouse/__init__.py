"""Replaces whole logical partitions of Delta tables, so that readers see all of the old or all of the new.

`publication` has the verbs; `staging` prepares files, `maintenance` packs and removes them, `commits` writes the log,
`contents` counts what files hold.
"""
