"""Commands that change partitions: preview, confirmation, execution and report."""
