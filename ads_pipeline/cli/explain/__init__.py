"""Explains one partition: its state, its history and the next step."""
