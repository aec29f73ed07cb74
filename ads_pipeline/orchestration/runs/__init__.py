"""Runs of Dagster: their tags and due partitions, the process that executes one, and how an ended one is closed."""
