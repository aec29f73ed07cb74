"""Where files are: storage, raw runs, the Delta tables of the warehouse, and their readers."""
