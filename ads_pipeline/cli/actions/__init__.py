"""The commands that change something: previews, confirmations and results."""
