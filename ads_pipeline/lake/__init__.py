"""Files: storage, raw runs, the Delta tables of the warehouse, and their readers."""
