"""The warehouse: whole partitions, of one run, or not at all, at every version of the table."""
