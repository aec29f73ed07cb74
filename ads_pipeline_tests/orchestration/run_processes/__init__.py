"""The processes of runs."""
