"""The `state` commands: list partitions and explain one, and the actions that change them, with their log."""
