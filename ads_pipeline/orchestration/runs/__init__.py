"""The process of a run: it waits with everything loaded, executes one run, and ends when that has lost its lease."""
